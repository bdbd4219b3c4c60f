//! What a pack must be, and what is refused by name.

use std::fs;
use std::path::Path;

use ruvllm_packs::{
    GateError, MANIFEST, ManifestError, Pack, PackError, SIGNATURE, SecretKey, SignatureError, Trust, write_archive,
};
use semver::Version;
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

use crate::support::{TestPack, archive_of, compressed, kernel};

fn open(pack: &TestPack) -> Result<Pack, PackError> {
    Pack::open(pack.folder.path(), &pack.trust())
}

fn refusal(pack: &TestPack) -> PackError {
    open(pack).unwrap_err()
}

/// Opens an archive made of these bytes.
fn open_archive(bytes: &[u8], trust: &Trust) -> Result<Pack, PackError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pack.tar.zst");
    fs::write(&path, bytes).unwrap();
    Pack::open(&path, trust)
}

#[test]
fn a_signed_pack_opens_as_a_folder_and_as_an_archive() {
    let pack = TestPack::new();
    let opened = open(&pack).unwrap();
    assert_eq!((opened.manifest.name.as_str(), opened.signer), ("test", Some(pack.key.public())));
    let path = pack.path("pack.tar.zst");
    write_archive(&opened, &path).unwrap();
    let unpacked = Pack::open(&path, &pack.trust()).unwrap();
    assert_eq!(unpacked.digest(), opened.digest());
    assert_eq!(unpacked.module("gated/gate.wasm"), opened.module("gated/gate.wasm"));
    let again = pack.path("again.tar.zst");
    write_archive(&unpacked, &again).unwrap();
    assert_eq!(fs::read(path).unwrap(), fs::read(again).unwrap());
}

#[test]
fn what_nobody_trusted_has_signed_is_refused() {
    let pack = TestPack::new();
    let none = Trust::default();
    let key = pack.key.public();
    assert!(matches!(Pack::open(pack.folder.path(), &none), Err(PackError::Untrusted(signer)) if signer == key));
    // Allowing unsigned packs does not allow those of foreign keys.
    let unsigned = Trust { keys: vec![], allow_unsigned: true };
    assert!(matches!(Pack::open(pack.folder.path(), &unsigned), Err(PackError::Untrusted(_))));
    // A trusted key over a manifest that names another.
    let other = SecretKey::generate().unwrap();
    pack.sign_with(&other);
    let both = Trust { keys: vec![key, other.public()], allow_unsigned: false };
    assert!(matches!(Pack::open(pack.folder.path(), &both), Err(PackError::OtherSigner { .. })));
}

#[test]
fn a_signature_that_claims_a_trusted_key_is_refused() {
    let (pack, other) = (TestPack::new(), SecretKey::generate().unwrap());
    // What somebody else has signed, under the name of the key that is trusted.
    let forged = other.sign(&fs::read(pack.path(MANIFEST)).unwrap());
    let (_, digits) = forged.split_once(' ').unwrap();
    fs::write(pack.path(SIGNATURE), format!("{} {digits}", pack.key.public())).unwrap();
    assert!(matches!(refusal(&pack), PackError::Signature(SignatureError::Wrong)));
    // A key of which everybody knows a signature of everything.
    let weak = format!("ed25519:01{} 01{}", "00".repeat(31), "00".repeat(63));
    fs::write(pack.path(SIGNATURE), weak).unwrap();
    assert!(matches!(refusal(&pack), PackError::Signature(SignatureError::NotASignature)));
}

#[test]
fn a_pack_without_a_signature_needs_to_be_allowed() {
    let pack = TestPack::new();
    fs::remove_file(pack.path(SIGNATURE)).unwrap();
    assert!(matches!(refusal(&pack), PackError::Unsigned));
    let allowed = Trust { keys: vec![], allow_unsigned: true };
    // One that was taken off is missed.
    assert!(matches!(Pack::open(pack.folder.path(), &allowed), Err(PackError::Stripped)));
    let pack = pack.change(|manifest| manifest["author"] = json!({ "name": "Nobody" }));
    fs::remove_file(pack.path(SIGNATURE)).unwrap();
    assert_eq!(Pack::open(pack.folder.path(), &allowed).unwrap().signer, None);
}

#[test]
fn every_changed_byte_is_noticed() {
    let pack = TestPack::new();
    let signature = fs::read(pack.path(SIGNATURE)).unwrap();
    for at in (0..signature.len() - 1).step_by(5) {
        let mut changed = signature.clone();
        changed[at] ^= 1;
        fs::write(pack.path(SIGNATURE), changed).unwrap();
        assert!(open(&pack).is_err(), "byte {at} of the signature");
    }
    fs::write(pack.path(SIGNATURE), "garbage").unwrap();
    assert!(matches!(refusal(&pack), PackError::Signature(SignatureError::NotASignature)));
    fs::write(pack.path(SIGNATURE), &signature).unwrap();

    let manifest = fs::read(pack.path(MANIFEST)).unwrap();
    for at in (0..manifest.len()).step_by(7) {
        let mut changed = manifest.clone();
        changed[at] ^= 1;
        fs::write(pack.path(MANIFEST), changed).unwrap();
        assert!(matches!(refusal(&pack), PackError::Signature(SignatureError::Wrong)), "byte {at} of the manifest");
    }
    fs::write(pack.path(MANIFEST), &manifest).unwrap();

    let mut module = fs::read(pack.path("gated/gate.wasm")).unwrap();
    let last = module.len() - 1;
    module[last] ^= 1;
    fs::write(pack.path("gated/gate.wasm"), module).unwrap();
    assert!(matches!(refusal(&pack), PackError::Hash { .. }));
}

#[test]
fn files_do_not_move_between_packs() {
    let (one, other) = (TestPack::new(), TestPack::with_module(b"another module"));
    other.sign();
    fs::copy(other.path("gated/gate.wasm"), one.path("gated/gate.wasm")).unwrap();
    assert!(matches!(refusal(&one), PackError::Hash { .. }));
    fs::copy(other.path(SIGNATURE), one.path(SIGNATURE)).unwrap();
    assert!(matches!(refusal(&one), PackError::Signature(SignatureError::Wrong)));
    fs::copy(other.path(MANIFEST), one.path(MANIFEST)).unwrap();
    assert!(matches!(refusal(&one), PackError::Untrusted(_)));
}

#[test]
fn paths_stay_within_the_pack() {
    for (path, says) in [
        ("../gate.wasm", "leads out"),
        ("gated/../../gate.wasm", "leads out"),
        ("/etc/passwd", "absolute"),
        ("C:/gate.wasm", "absolute"),
        ("gated\\gate.wasm", "folders and a file"),
        ("gated//gate.wasm", "folders and a file"),
        ("./gate.wasm", "folders and a file"),
        ("gated/gate.wasm\0", "folders and a file"),
        ("gated/gate.txt", "end with .wasm"),
    ] {
        let error = refusal(&TestPack::new().change(|manifest| manifest["kernels"][0]["path"] = json!(path)));
        assert!(matches!(error, PackError::Manifest(ManifestError::Path { .. })), "{path}: {error}");
        assert!(error.to_string().contains(says), "{path}: {error}");
    }
}

#[cfg(unix)]
#[test]
fn links_and_special_files_are_refused() {
    use std::os::unix::fs::symlink;
    let replaced = |how: &dyn Fn(&Path, &Path)| {
        let pack = TestPack::new();
        let (module, elsewhere) = (pack.path("gated/gate.wasm"), pack.path("elsewhere.wasm"));
        fs::rename(&module, &elsewhere).unwrap();
        how(&elsewhere, &module);
        match refusal(&pack) {
            PackError::Kind { kind, .. } => kind,
            other => panic!("{other}"),
        }
    };
    assert_eq!(replaced(&|from, to| symlink(from, to).unwrap()), "symbolic link");
    assert_eq!(replaced(&|from, to| fs::hard_link(from, to).unwrap()), "hard link");
    assert_eq!(replaced(&|_, to| fs::create_dir(to).unwrap()), "special file or folder");
    // Opening a socket or a pipe could wait for ever.
    assert_eq!(replaced(&|_, to| drop(std::os::unix::net::UnixListener::bind(to).unwrap())), "special file or folder");
    // A folder on the way.
    let pack = TestPack::new();
    fs::rename(pack.path("gated"), pack.path("other")).unwrap();
    symlink(pack.path("other"), pack.path("gated")).unwrap();
    assert!(matches!(refusal(&pack), PackError::Kind { kind: "symbolic link", .. }));
}

/// An archive of one entry.
fn entry(kind: EntryType, path: &str) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_size(0);
    // The library refuses to write such paths.
    header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
    header.set_link_name("elsewhere").unwrap();
    header.set_cksum();
    let mut tar = Builder::new(Vec::new());
    tar.append(&header, &[][..]).unwrap();
    compressed(&tar.into_inner().unwrap())
}

#[test]
fn archives_hold_regular_files_only() {
    let refused = |kind, path: &str| open_archive(&entry(kind, path), &Trust::default()).unwrap_err();
    for (entry, name) in [
        (EntryType::Symlink, "symbolic link"),
        (EntryType::Link, "hard link"),
        (EntryType::Char, "device"),
        (EntryType::Block, "device"),
        (EntryType::Fifo, "pipe"),
        (EntryType::GNULongName, "entry of an unknown kind"),
        (EntryType::XHeader, "entry of an unknown kind"),
        (EntryType::GNUSparse, "entry of an unknown kind"),
    ] {
        assert!(matches!(refused(entry, "x"), PackError::Kind { kind, .. } if kind == name), "{name}");
    }
    for path in ["../x", "a/../../x", "/x", "./../x"] {
        assert!(matches!(refused(EntryType::Regular, path), PackError::Traversal(_)), "{path}");
    }
}

#[test]
fn archives_are_bounded() {
    let trust = Trust { keys: vec![], allow_unsigned: true };
    let bomb = |files: usize, bytes: usize| {
        let mut tar = Builder::new(Vec::new());
        for i in 0..files {
            let mut header = Header::new_ustar();
            header.set_size(bytes as u64);
            tar.append_data(&mut header, format!("{i}.wasm"), &vec![0; bytes][..]).unwrap();
        }
        compressed(&tar.into_inner().unwrap())
    };
    let bytes = bomb(1, 24 << 20);
    assert!(bytes.len() < 1 << 20, "it is small as long as it is packed");
    assert!(matches!(open_archive(&bytes, &trust), Err(PackError::TooLarge { .. })));
    assert!(matches!(open_archive(&bomb(9, 2 << 20), &trust), Err(PackError::TooLarge { .. })));
    assert!(matches!(open_archive(&bomb(300, 1), &trust), Err(PackError::TooManyFiles(256))));
    assert!(matches!(open_archive(&vec![0; (16 << 20) + 1], &trust), Err(PackError::TooLarge { .. })));
    // A header that would have the decoder keep gigabytes.
    assert!(matches!(open_archive(&[0x28, 0xb5, 0x2f, 0xfd, 0, 0xff], &trust), Err(PackError::Archive(_))));
    for broken in [&b""[..], b"not an archive", &bytes[..bytes.len() / 2]] {
        assert!(open_archive(broken, &trust).is_err());
    }
}

#[test]
fn a_name_that_is_twice_in_an_archive_is_refused() {
    let mut tar = Builder::new(Vec::new());
    for bytes in [&b"one"[..], b"two"] {
        let mut header = Header::new_ustar();
        header.set_size(3);
        tar.append_data(&mut header, MANIFEST, bytes).unwrap();
    }
    let bytes = compressed(&tar.into_inner().unwrap());
    assert!(matches!(open_archive(&bytes, &Trust::default()), Err(PackError::Twice(name)) if name == MANIFEST));
}

#[test]
fn an_archive_that_another_program_made_opens() {
    let pack = TestPack::new();
    assert!(open_archive(&archive_of(pack.folder.path()), &pack.trust()).is_ok());
}

#[test]
fn large_files_are_refused() {
    let pack = TestPack::with_module(&vec![0; (1 << 20) + 1]);
    pack.sign();
    assert!(matches!(refusal(&pack), PackError::TooLarge { .. }));
    fs::write(pack.path(MANIFEST), vec![b' '; (256 << 10) + 1]).unwrap();
    assert!(matches!(refusal(&pack), PackError::TooLarge { .. }));
    fs::remove_file(pack.path(MANIFEST)).unwrap();
    assert!(matches!(refusal(&pack), PackError::Missing(name) if name == MANIFEST));
}

#[test]
fn manifests_are_checked_field_by_field() {
    let says = |change: &dyn Fn(&mut Value), expected: &str| {
        let error = refusal(&TestPack::new().change(|manifest| change(manifest))).to_string();
        assert!(error.contains(expected), "{error}");
    };
    says(&|m| m["schema"] = json!(2), "schema is 2");
    says(&|m| m["surprise"] = json!(1), "unknown field `surprise`");
    says(&|m| m["name"] = json!("../x"), "name is");
    says(&|m| m["version"] = json!("new"), "version");
    says(&|m| m["description"] = json!("\u{1b}[31m"), "control characters");
    says(&|m| m["kernels"] = json!([]), "between 1 and 64");
    says(&|m| m["kernels"][0]["id"] = json!("native"), "cannot be 'native'");
    says(&|m| m["kernels"][0]["category"] = json!("attention"), "unknown variant `attention`");
    says(&|m| m["kernels"][0]["inputs"] = json!([]), "must be 2 and 1 for swiglu");
    says(&|m| m["kernels"][0]["inputs"][1]["dtype"] = json!("f16"), "must be one of");
    says(&|m| m["kernels"][0]["category"] = json!("rms_norm"), "must begin with");
    says(&|m| m["kernels"][0]["limits"] = json!({ "memory_pages": 60000 }), "between 1 and 256");
    says(&|m| m["kernels"][0]["limits"] = json!({ "budget_ms": 10000 }), "between 1 and 100");
    says(&|m| m["kernels"][0]["limits"] = json!({ "table_elements": 1 << 20 }), "between 0 and 1024");
    says(&|m| m["kernels"][0]["platforms"] = json!([]), "at least one");
    says(&|m| m["fallbacks"] = json!({ "other": "native" }), "not there");
    says(&|m| m["fallbacks"] = json!({ "gate": "other" }), "not there");
    says(&|m| m["fallbacks"] = json!({ "gate": "gate" }), "back to itself");
}

#[test]
fn ids_are_unique_and_few() {
    let module = crate::sandbox::module("");
    let same = kernel("gate", "gated/gate.wasm", &module);
    let twice = TestPack::new().change(|manifest| manifest["kernels"] = json!([same, same]));
    assert!(matches!(refusal(&twice), PackError::Manifest(ManifestError::DuplicateId(id)) if id == "gate"));
    let many = TestPack::new().change(|manifest| {
        let kernels = (0..200).map(|i| kernel(&format!("gate-{i}"), "gated/gate.wasm", &module));
        manifest["kernels"] = kernels.collect();
    });
    assert!(refusal(&many).to_string().contains("between 1 and 64, and are 200"));
}

#[test]
fn gates_say_exactly_what_is_missing() {
    let here = Version::new(0, 5, 0);
    let gate = |change: &dyn Fn(&mut Value)| {
        let pack = TestPack::new().change(|manifest| change(manifest));
        open(&pack).unwrap().manifest.check_runtime(&here)
    };
    assert_eq!(gate(&|_| {}), Ok(()));
    let old = gate(&|m| m["min_runtime_version"] = json!("0.6.0")).unwrap_err();
    assert_eq!(old.to_string(), "it needs RuvLLM 0.6.0 or later, and this is 0.5.0");
    let new = gate(&|m| m["max_runtime_version"] = json!("0.4.9")).unwrap_err();
    assert_eq!(new.to_string(), "it is for RuvLLM up to 0.4.9, and this is 0.5.0");
    let threads = |m: &mut Value| m["kernels"][0]["platforms"][0]["features"] = json!(["simd128", "threads"]);
    let missing = GateError::MissingFeature { kernel: "gate".into(), feature: "threads".into() };
    assert_eq!(gate(&threads), Err(missing));
    let other = GateError::OtherRuntime { kernel: "gate".into() };
    assert_eq!(gate(&|m| m["kernels"][0]["platforms"][0]["runtime"] = json!("wasmi")), Err(other));
    // Where something stands in, nothing is missing.
    let replaced = |m: &mut Value| {
        threads(m);
        m["fallbacks"] = json!({ "gate": "native" });
    };
    assert_eq!(gate(&replaced), Ok(()));
}

#[test]
fn a_fallback_stands_in_for_a_kernel_that_cannot_run() {
    let module = crate::sandbox::module("");
    let pack = TestPack::new().change(|manifest| {
        let mut first = kernel("fast", "gated/gate.wasm", &module);
        first["platforms"][0]["features"] = json!(["threads"]);
        manifest["kernels"] = json!([first, kernel("slow", "gated/gate.wasm", &module)]);
        manifest["fallbacks"] = json!({ "fast": "slow" });
    });
    let manifest = open(&pack).unwrap().manifest;
    assert_eq!(manifest.runnable("fast").map(|kernel| kernel.id.as_str()), Some("slow"));
    assert_eq!(manifest.runnable("slow").map(|kernel| kernel.id.as_str()), Some("slow"));
}

#[test]
fn secret_keys_are_for_their_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let (key, path) = (SecretKey::generate().unwrap(), folder.path().join("key"));
    key.save(&path).unwrap();
    assert_eq!(SecretKey::load(&path).unwrap().public(), key.public());
    assert!(key.save(&path).is_err(), "a key is never replaced");
    assert!(!format!("{key:?}").contains(fs::read_to_string(&path).unwrap().trim()));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(SecretKey::load(&path).unwrap_err().to_string().contains("chmod 600"));
    }
    for wrong in ["", "ed25519:", "ed25519:00", &format!("ed25519:{}", "0".repeat(64)), "ED25519:00"] {
        assert!(wrong.parse::<ruvllm_packs::PublicKey>().is_err(), "{wrong}");
    }
}
