//! Links clang's OpenMP runtime: llama-cpp-sys-2 names GCC's, which does not know the calls that clang makes.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_OPENMP").is_none() {
        return;
    }
    let compiler = std::env::var("CC").unwrap_or_else(|_| "clang-19".to_owned());
    if !compiler.contains("clang") {
        return;
    }
    let asked = Command::new(&compiler).arg("--print-file-name=libomp.so").output();
    let path = asked.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    // A bare name instead of a path means that the compiler has not found it; the linker will say so.
    if let Some((folder, _)) = path.rsplit_once('/') {
        println!("cargo:rustc-link-arg-bins=-L{folder}");
        println!("cargo:rustc-link-arg-bins=-Wl,-rpath,{folder}");
    }
    println!("cargo:rustc-link-arg-bins=-lomp");
}
