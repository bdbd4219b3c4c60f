//! Compiles SQLite with encryption from one C file, which needs nothing but a C compiler.
//!
//! `rusqlite` brings the bindings and links no library of its own (see Cargo.toml). SQLite3 Multiple Ciphers speaks several
//! page formats; only SQLCipher's is built, as version 4 has it.

use sqlite3mc_src::{SOURCE_FILE, source_dir};

const OPTIONS: [(&str, Option<&str>); 16] = [
    // The page format of SQLCipher 4, unless a connection asks for another. The rest of the ciphers are left out.
    ("CODEC_TYPE", Some("CODEC_TYPE_SQLCIPHER")),
    ("SQLITE3MC_USE_SQLCIPHER_LEGACY", None),
    ("HAVE_CIPHER_AES_128_CBC", Some("0")),
    ("HAVE_CIPHER_AES_256_CBC", Some("0")),
    ("HAVE_CIPHER_CHACHA20", Some("0")),
    ("HAVE_CIPHER_RC4", Some("0")),
    ("HAVE_CIPHER_ASCON128", Some("0")),
    ("HAVE_CIPHER_AEGIS", Some("0")),
    // What is stored never lies unencrypted in a temporary file.
    ("SQLITE_TEMP_STORE", Some("3")),
    // Reads every page of a file, whatever it holds: `Memory::check`.
    ("SQLITE_ENABLE_DBPAGE_VTAB", None),
    ("SQLITE_THREADSAFE", Some("1")),
    ("SQLITE_ENABLE_API_ARMOR", None),
    ("SQLITE_ENABLE_COLUMN_METADATA", None),
    ("SQLITE_ENABLE_STAT4", None),
    ("SQLITE_OMIT_LOAD_EXTENSION", None),
    // Waits for a lock by milliseconds rather than whole seconds.
    ("HAVE_USLEEP", Some("1")),
];

fn main() {
    let source = source_dir().join(SOURCE_FILE);
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", source.display());
    let mut build = cc::Build::new();
    for (name, value) in OPTIONS {
        build.define(name, value);
    }
    // -O2, as SQLite is usually built; -O1 for tests, which takes half of the time. The whole archive is linked because a linker that goes through libraries in order would
    // leave it out: `rusqlite`, which needs it, comes later.
    let is_for_tests = std::env::var("PROFILE").is_ok_and(|profile| profile == "debug");
    build.file(source).opt_level(if is_for_tests { 1 } else { 2 }).warnings(false).link_lib_modifier("+whole-archive");
    build.compile("sqlite3mc");
}
