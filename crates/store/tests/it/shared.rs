//! Folders that several machines use: models come from them, and nothing else does.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::support::*;
use ruvllm_store::{Catalogue, Event, Listed, Store, StoreError};
use tempfile::TempDir;

const SIZE: usize = 200_000;

/// A folder with the model `toy`, given by somebody else, and a store that is to find it there.
struct Fixture {
    shared: TempDir,
    home: TempDir,
    store: Store,
}

fn fixture() -> Fixture {
    let server = Server::start(|request, _| Reply::file(request, &content(SIZE), "\"a\""));
    let (shared, giver, home) = (folder(), folder(), folder());
    let catalogue = toy(&content(SIZE), vec![hub_source()]);
    let giving = Store::with_config(config(giver.path(), &server.url, catalogue.clone()));
    giving.pull("toy", &mut quiet).unwrap();
    giving.push("toy", shared.path(), &mut quiet).unwrap();
    let store = at(home.path(), shared.path(), catalogue);
    Fixture { shared, home, store }
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn at(home: &Path, shared: &Path, catalogue: Catalogue) -> Store {
    let mut config = config(home, &closed_port(), catalogue);
    config.shared = vec![shared.to_owned()];
    Store::with_config(config)
}

impl Fixture {
    fn file(&self) -> PathBuf {
        self.shared.path().join("models/toy/toy.gguf")
    }

    fn note(&self) -> PathBuf {
        self.home.path().join("models/.checked/toy.json")
    }

    /// Changes a byte and sets the time back, as whoever wants to hide it does.
    fn forge(&self) {
        let before = fs::metadata(self.file()).unwrap().modified().unwrap();
        let mut file = File::options().write(true).open(self.file()).unwrap();
        file.seek(SeekFrom::Start(1000)).unwrap();
        file.write_all(b"!").unwrap();
        file.set_modified(before).unwrap();
    }
}

/// All paths below a folder, with their contents.
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(contents(&entry.path())),
            false => found.push((entry.path(), fs::read(entry.path()).unwrap())),
        }
    }
    found.sort();
    found
}

#[test]
fn its_models_are_found_and_nothing_is_written_there() {
    let fixture = fixture();
    let (store, before) = (&fixture.store, contents(fixture.shared.path()));
    for name in ["toy", "plaything"] {
        assert_eq!(store.resolve(name).unwrap().path, fixture.file());
    }
    assert_eq!(store.ensure("toy", &mut quiet).unwrap().path, fixture.file());
    assert_eq!(store.verify("toy", &mut quiet).unwrap().path, fixture.file());
    let listed = store.list().unwrap();
    assert!(matches!(&listed[..], [Listed::Model(model)] if model.path == fixture.file()), "{listed:?}");
    let refused = store.remove("toy").unwrap_err().to_string();
    assert!(refused.contains("RUVLLM_MODELS") && refused.contains("only read"), "{refused}");
    assert_eq!(contents(fixture.shared.path()), before);
}

#[test]
fn ones_own_model_comes_first_and_is_listed_once() {
    let fixture = fixture();
    let own = fixture.store.pull_as(fixture.file().to_str().unwrap(), "mine", &mut quiet).unwrap();
    fixture.store.push("mine", fixture.shared.path(), &mut quiet).unwrap();
    assert_eq!(fixture.store.resolve("mine").unwrap().path, own.path);
    assert_eq!(fixture.store.list().unwrap().len(), 2);
    fixture.store.remove("mine").unwrap();
    assert!(fixture.store.resolve("mine").unwrap().path.starts_with(fixture.shared.path()));
}

#[test]
fn a_forged_file_is_refused_whatever_its_size_its_time_and_its_manifest_say() {
    let fixture = fixture();
    fixture.forge();
    let error = fixture.store.resolve("toy").unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "before the first use: {error}");
    fs::write(fixture.file(), content(SIZE)).unwrap();
    fixture.store.resolve("toy").unwrap();
    fixture.forge();
    let error = fixture.store.resolve("toy").unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "after it: {error}");
}

#[test]
fn what_was_hashed_once_is_not_hashed_again_until_it_changes() {
    let fixture = fixture();
    let note = || fs::read_to_string(fixture.note()).unwrap();
    fixture.store.resolve("toy").unwrap();
    // The same note, but recognizable.
    let marked = note() + "\n";
    fs::write(fixture.note(), &marked).unwrap();
    fixture.store.resolve("toy").unwrap();
    assert_eq!(note(), marked);
    // As it is: it only looks as if it had changed.
    File::options().write(true).open(fixture.file()).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    fixture.store.resolve("toy").unwrap();
    assert_ne!(note(), marked);
    fs::write(fixture.note(), "nonsense").unwrap();
    fixture.store.resolve("toy").unwrap();
    assert_ne!(note(), "nonsense");
}

#[test]
fn a_folder_that_is_not_mounted_is_told() {
    let (fixture, nothing) = (fixture(), folder());
    let store = at(fixture.home.path(), nothing.path(), toy(&content(SIZE), vec![hub_source()]));
    let error = store.ensure("toy", &mut quiet).unwrap_err().to_string();
    assert!(error.contains("RUVLLM_MODELS") && error.contains(nothing.path().to_str().unwrap()), "{error}");
    assert!(matches!(&store.list().unwrap()[..], [Listed::Unusable { .. }]));
}

#[test]
fn what_another_pushed_in_the_meantime_is_kept() {
    let (server, mine, shared) = (Server::start(|_, _| Reply::status(404)), folder(), folder());
    let none = Catalogue { entries: Vec::new() };
    let store = |home: &Path| Store::with_config(config(home, &server.url, none.clone()));
    // Three models of one name: mine, a damaged one that lies there, and the one that takes its place.
    let stored = |home: &Path, bytes: usize| {
        let source = mine.path().join(format!("{bytes}.gguf"));
        fs::write(&source, content(bytes)).unwrap();
        store(home).pull_as(source.to_str().unwrap(), "toy", &mut quiet).unwrap();
    };
    let (home, other) = (mine.path().join("home"), mine.path().join("other"));
    stored(&home, 1000);
    stored(&other, 2000);
    stored(shared.path(), 3000);
    let there = shared.path().join("models/toy/3000.gguf");
    fs::write(&there, vec![1; 3000]).unwrap();
    let mut is_replaced = false;
    let outcome = store(&home).push("toy", shared.path(), &mut |event| {
        // The damaged one is being looked at.
        if event == (Event::Verifying { bytes: 3000 }) && !is_replaced {
            is_replaced = true;
            store(&other).push("toy", shared.path(), &mut quiet).unwrap();
        }
    });
    assert!(is_replaced);
    assert!(matches!(outcome, Err(StoreError::NameTaken { .. })), "{outcome:?}");
    assert_eq!(fs::read(shared.path().join("models/toy/2000.gguf")).unwrap(), content(2000));
}
