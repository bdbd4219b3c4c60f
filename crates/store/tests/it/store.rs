//! What lies on disk: local files, listings, damage, removal, names.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::support::*;
use ruvllm_store::{Listed, Store, StoreError};

const SIZE: usize = 200_000;

struct Fixture {
    server: Server,
    home: tempfile::TempDir,
    store: Store,
}

fn fixture() -> Fixture {
    let server = Server::start(|request, _| Reply::file(request, &content(SIZE), "\"a\""));
    let home = tempfile::tempdir().unwrap();
    let catalogue = toy(&content(SIZE), vec![hub_source()]);
    let store = Store::with_config(config(home.path(), &server.url, catalogue));
    Fixture { server, home, store }
}

fn local_file(folder: &Path, name: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, content(SIZE)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Changes one byte, and sets the time back if asked: then only a full check can see it.
fn damage(path: &Path, keep_time: bool) {
    let before = fs::metadata(path).unwrap().modified().unwrap();
    let mut file = File::options().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(1000)).unwrap();
    file.write_all(b"!").unwrap();
    file.set_modified(if keep_time { before } else { before + Duration::from_secs(1) }).unwrap();
}

#[test]
fn opening_and_listing_create_nothing() {
    let fixture = fixture();
    assert!(fixture.store.list().unwrap().is_empty());
    assert!(fixture.store.resolve("toy").is_err());
    assert_eq!(fs::read_dir(fixture.home.path()).unwrap().count(), 0);
}

#[test]
fn a_local_path_is_used_where_it_lies() {
    let fixture = fixture();
    let spec = local_file(fixture.home.path(), "mine.gguf");
    let model = fixture.store.resolve(&spec).unwrap();
    assert_eq!(model.path, Path::new(&spec));
    assert_eq!((model.name.as_str(), model.manifest), ("mine", None));
}

#[test]
fn a_local_file_is_copied_under_the_given_name_and_survives_its_original() {
    let fixture = fixture();
    let elsewhere = tempfile::tempdir().unwrap();
    let spec = local_file(elsewhere.path(), "mine.gguf");
    let model = fixture.store.pull_as(&spec, "me/mine", &mut quiet).unwrap();
    fs::remove_file(&spec).unwrap();
    assert!(model.path.starts_with(fixture.home.path()));
    assert_eq!(fixture.store.resolve("me/mine").unwrap(), model);
    assert_eq!(fs::read(&model.path).unwrap(), content(SIZE));
    assert_eq!(model.manifest.unwrap().main.sha256, sha256(&content(SIZE)));
}

#[test]
fn a_file_with_an_odd_name_gets_a_plain_one() {
    let fixture = fixture();
    let elsewhere = tempfile::tempdir().unwrap();
    let spec = local_file(elsewhere.path(), "My model (2).gguf");
    let model = fixture.store.pull(&spec, &mut quiet).unwrap();
    assert_eq!(model.name, "my-model--2");
    assert_eq!(fixture.store.resolve("my-model--2").unwrap(), model);
}

#[test]
fn copying_a_changed_file_again_replaces_the_copy() {
    let fixture = fixture();
    let elsewhere = tempfile::tempdir().unwrap();
    let spec = local_file(elsewhere.path(), "mine.gguf");
    fixture.store.pull(&spec, &mut quiet).unwrap();
    fs::write(&spec, b"GGUF second version").unwrap();
    fixture.store.pull(&spec, &mut quiet).unwrap();
    let model = fixture.store.resolve("mine").unwrap();
    assert_eq!(fs::read(&model.path).unwrap(), b"GGUF second version");
}

#[test]
fn names_of_the_catalogue_and_of_other_files_are_not_taken_over() {
    let fixture = fixture();
    let elsewhere = tempfile::tempdir().unwrap();
    let one = local_file(elsewhere.path(), "one.gguf");
    let two = local_file(elsewhere.path(), "two.gguf");
    fixture.store.pull_as(&one, "mine", &mut quiet).unwrap();
    for (spec, name) in [(&two, "mine"), (&one, "toy"), (&one, "Plaything")] {
        let error = fixture.store.pull_as(spec, name, &mut quiet).unwrap_err();
        assert!(matches!(error, StoreError::NameTaken { .. }), "{error}");
    }
}

#[test]
fn hostile_names_reach_no_file() {
    let fixture = fixture();
    let elsewhere = tempfile::tempdir().unwrap();
    let spec = local_file(elsewhere.path(), "mine.gguf");
    for name in ["../escape", "a/../../b", "/abs", "a\0b", ".locks", "", "a/b/c/d"] {
        let error = fixture.store.pull_as(&spec, name, &mut quiet).unwrap_err();
        assert!(matches!(error, StoreError::BadName { .. }), "{name:?}: {error}");
        assert!(fixture.store.resolve(name).is_err(), "{name:?}");
        assert!(fixture.store.remove(name).is_err(), "{name:?}");
        assert!(fixture.store.verify(name, &mut quiet).is_err(), "{name:?}");
    }
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
}

#[test]
fn an_unknown_name_gets_a_suggestion_and_the_list() {
    let fixture = fixture();
    let error = fixture.store.resolve("toi").unwrap_err().to_string();
    assert!(error.contains("did you mean `toy`") && error.contains("known models: toy"), "{error}");
    let error = fixture.store.pull("something-else", &mut quiet).unwrap_err().to_string();
    assert!(!error.contains("did you mean"), "{error}");
}

#[test]
fn a_path_that_does_not_exist_is_called_a_missing_file() {
    let fixture = fixture();
    for spec in ["./nowhere.gguf", "/nowhere/x", "nowhere.gguf", "../x"] {
        let error = fixture.store.resolve(spec).unwrap_err();
        assert!(matches!(error, StoreError::NoSuchFile { .. }), "{spec}: {error}");
    }
}

#[test]
fn a_model_that_is_not_there_yet_says_how_to_get_it() {
    let error = fixture().store.resolve("plaything").unwrap_err().to_string();
    assert!(error.contains("ruvllm pull plaything"), "{error}");
}

#[test]
fn a_damaged_model_is_refused_by_name_and_repaired_by_a_pull() {
    let fixture = fixture();
    let model = fixture.store.pull("toy", &mut quiet).unwrap();
    damage(&model.path, false);
    for result in [fixture.store.resolve("toy"), fixture.store.ensure("toy", &mut quiet)] {
        let error = result.unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("`toy`"), "{error}");
    }
    fixture.store.pull("toy", &mut quiet).unwrap();
    assert_eq!(fs::read(&model.path).unwrap(), content(SIZE));
    assert_eq!(fixture.server.requests().len(), 2);
}

#[test]
fn verify_sees_what_size_and_time_do_not_show() {
    let fixture = fixture();
    let model = fixture.store.pull("toy", &mut quiet).unwrap();
    fixture.store.verify("toy", &mut quiet).unwrap();
    damage(&model.path, true);
    assert!(fixture.store.resolve("toy").is_ok(), "the cheap check cannot see this");
    let error = fixture.store.verify("plaything", &mut quiet).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}

#[test]
fn cut_and_vanished_files_are_refused() {
    let fixture = fixture();
    let model = fixture.store.pull("toy", &mut quiet).unwrap();
    File::options().write(true).open(&model.path).unwrap().set_len(10).unwrap();
    let error = fixture.store.resolve("toy").unwrap_err().to_string();
    assert!(error.contains("200000 bytes but has 10 bytes"), "{error}");
    fs::remove_file(&model.path).unwrap();
    let error = fixture.store.resolve("toy").unwrap_err().to_string();
    assert!(error.contains("no file at all"), "{error}");
}

#[test]
fn a_touched_but_unchanged_file_passes_and_is_remembered() {
    let fixture = fixture();
    let model = fixture.store.pull("toy", &mut quiet).unwrap();
    let file = File::options().write(true).open(&model.path).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(5)).unwrap();
    let after = fixture.store.resolve("toy").unwrap();
    assert_ne!(after.manifest, model.manifest);
    assert_eq!(fixture.store.resolve("toy").unwrap(), after);
}

#[test]
fn a_file_without_its_manifest_is_adopted_without_a_transfer() {
    let fixture = fixture();
    let model = fixture.store.pull("toy", &mut quiet).unwrap();
    let manifest = model.path.with_file_name("manifest.json");
    fs::remove_file(&manifest).unwrap();
    assert!(matches!(fixture.store.resolve("toy"), Err(StoreError::NotPulled { .. })));
    fixture.store.pull("toy", &mut quiet).unwrap();
    fs::write(&manifest, "garbage").unwrap();
    assert!(matches!(fixture.store.resolve("toy"), Err(StoreError::BadManifest { .. })));
    fixture.store.pull("toy", &mut quiet).unwrap();
    assert_eq!(fixture.server.requests().len(), 1);
}

#[test]
fn a_listing_tells_good_entries_from_foreign_and_damaged_ones() {
    let fixture = fixture();
    fixture.store.pull("toy", &mut quiet).unwrap();
    let models = fixture.home.path().join("models");
    fs::write(models.join("a-stray-file"), "x").unwrap();
    fs::create_dir(models.join("empty")).unwrap();
    fs::create_dir(models.join("Not A Name")).unwrap();
    fs::create_dir(models.join("garbage")).unwrap();
    fs::write(models.join("garbage/manifest.json"), [0xff, 0xfe]).unwrap();
    let listed = fixture.store.list().unwrap();
    let good: Vec<&str> = listed
        .iter()
        .filter_map(|listed| match listed {
            Listed::Model(model) => Some(model.name.as_str()),
            Listed::Unusable { .. } => None,
        })
        .collect();
    assert_eq!(good, ["toy"]);
    assert_eq!(listed.len(), 5);
    // What is listed as unusable can be removed by its name.
    fixture.store.remove("garbage").unwrap();
    assert_eq!(fixture.store.list().unwrap().len(), 4);
}

#[test]
fn a_removed_model_is_gone_but_stays_readable_for_who_has_it_open() {
    let fixture = fixture();
    let model = fixture.store.pull("toy", &mut quiet).unwrap();
    let mut open = File::open(&model.path).unwrap();
    fixture.store.remove("plaything").unwrap();
    assert!(matches!(fixture.store.resolve("toy"), Err(StoreError::NotPulled { .. })));
    assert!(matches!(fixture.store.remove("toy"), Err(StoreError::NotPulled { .. })));
    assert!(matches!(fixture.store.remove("never-heard-of"), Err(StoreError::Unknown { .. })));
    let mut read = Vec::new();
    open.read_to_end(&mut read).unwrap();
    assert_eq!(read, content(SIZE));
}

#[test]
fn a_local_file_that_is_no_model_is_refused_whatever_its_name() {
    let fixture = fixture();
    let path = fixture.home.path().join("notes");
    fs::write(&path, "not a model").unwrap();
    let error = fixture.store.pull_as(path.to_str().unwrap(), "notes", &mut quiet).unwrap_err();
    assert!(error.to_string().contains("does not begin like a GGUF file"), "{error}");
}

#[test]
fn pulls_and_removals_at_once_never_leave_half_a_model() {
    let fixture = fixture();
    let store = &fixture.store;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..15 {
                    let model = store.pull("toy", &mut quiet).unwrap();
                    // Another thread may have removed it since; what is there must be whole.
                    if let Ok(read) = fs::read(&model.path) {
                        assert_eq!(read.len(), SIZE);
                    }
                }
            });
            scope.spawn(|| {
                for _ in 0..30 {
                    match store.remove("toy") {
                        Ok(()) | Err(StoreError::Busy { .. } | StoreError::NotPulled { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    std::thread::sleep(Duration::from_millis(3));
                }
            });
        }
    });
    let model = store.pull("toy", &mut quiet).unwrap();
    assert_eq!(fs::read(&model.path).unwrap(), content(SIZE));
}
