//! Adapters in the store: where they come from, what their names mean, and what is refused.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::*;
use ruvllm_store::{Catalogue, ListedAdapter, Store, StoreError, StoredAdapter};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

fn store_in(home: &Path, endpoint: &str) -> Store {
    Store::with_config(config(home, endpoint, Catalogue { entries: Vec::new() }))
}

fn peft_folder(parent: &Path, name: &str, weights: &[u8]) -> PathBuf {
    let folder = parent.join(name);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(CONFIG), "{\"peft_type\": \"LORA\"}").unwrap();
    fs::write(folder.join(WEIGHTS), weights).unwrap();
    folder
}

fn pull(store: &Store, spec: &Path, name: Option<&str>) -> Result<StoredAdapter, StoreError> {
    store.pull_adapter(spec.to_str().unwrap(), name, &|_| Ok(()), &mut quiet)
}

fn names(store: &Store) -> Vec<String> {
    let listed = store.adapters().unwrap().into_iter();
    listed
        .map(|item| match item {
            ListedAdapter::Adapter(adapter) => adapter.name,
            ListedAdapter::Unusable { folder, why } => panic!("{}: {why}", folder.display()),
        })
        .collect()
}

#[test]
fn folders_and_files_are_stored_by_their_content_and_found_by_name() {
    let (home, source) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = store_in(home.path(), &closed_port());
    assert!(names(&store).is_empty());
    let folder = peft_folder(source.path(), "Pirate", b"arr");
    let one = pull(&store, &folder, None).unwrap();
    assert_eq!((one.name.as_str(), one.manifest.bytes()), ("pirate", 24));
    assert_eq!(fs::read(one.path.join(WEIGHTS)).unwrap(), b"arr");
    let two = pull(&store, &folder.join(WEIGHTS), Some("smollm2:parrot")).unwrap();
    assert_eq!((one.digest.as_str(), &one.path), (two.digest.as_str(), &two.path), "they share files");
    let gguf = source.path().join("Sailor.gguf");
    fs::write(&gguf, "GGUF...").unwrap();
    let three = pull(&store, &gguf, None).unwrap();
    assert_eq!(fs::read(&three.path).unwrap(), b"GGUF...");
    assert_eq!(names(&store), ["pirate", "sailor", "smollm2:parrot"]);
    assert_eq!(store.adapter("Smollm2:Parrot").unwrap(), two);
    store.remove_adapter("pirate").unwrap();
    assert!(store.adapter("smollm2:parrot").unwrap().path.join(WEIGHTS).is_file(), "another name has the files");
    store.remove_adapter("smollm2:parrot").unwrap();
    assert!(!two.path.exists());
    assert_eq!(names(&store), ["sailor"]);
}

#[test]
fn a_name_that_is_pulled_again_is_a_new_version_and_the_last_one_stays_readable() {
    let (home, source) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = store_in(home.path(), &closed_port());
    let versions: Vec<StoredAdapter> = ["one", "two", "three"]
        .map(|weights| pull(&store, &peft_folder(source.path(), "a", weights.as_bytes()), None).unwrap())
        .into();
    assert_eq!(store.adapter("a").unwrap(), versions[2]);
    let is_there: Vec<bool> = versions.iter().map(|version| version.path.exists()).collect();
    assert_eq!(is_there, [false, true, true]);
}

#[test]
fn what_is_no_adapter_is_refused_and_leaves_nothing() {
    let (home, source) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = store_in(home.path(), &closed_port());
    let text = source.path().join("notes.txt");
    fs::write(&text, "hello").unwrap();
    let page = source.path().join("page.gguf");
    fs::write(&page, "<html>").unwrap();
    let empty = source.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let alone = source.path().join("alone");
    fs::create_dir(&alone).unwrap();
    fs::write(alone.join(CONFIG), "{}").unwrap();
    for path in [&text, &page, &empty, &alone, &source.path().join("nothing"), Path::new("/")] {
        assert!(pull(&store, path, None).is_err(), "{}", path.display());
    }
    let folder = peft_folder(source.path(), "judged", b"x");
    let refused = store.pull_adapter(folder.to_str().unwrap(), None, &|_| Err("it is DoRA".to_owned()), &mut quiet);
    assert!(refused.unwrap_err().to_string().contains("it is DoRA"));
    for name in ["../x", "", "a/../b", "hf:a/b", ".content"] {
        assert!(pull(&store, &folder, Some(name)).is_err(), "{name}");
    }
    assert!(names(&store).is_empty());
    for name in ["judged", "../x", "\0"] {
        assert!(matches!(store.adapter(name), Err(StoreError::UnknownAdapter { .. })), "{name:?}");
        assert!(matches!(store.remove_adapter(name), Err(StoreError::UnknownAdapter { .. })), "{name:?}");
    }
}

#[test]
fn a_changed_file_is_refused_and_a_touched_one_is_not() {
    let (home, source) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = store_in(home.path(), &closed_port());
    let adapter = pull(&store, &peft_folder(source.path(), "a", b"good"), None).unwrap();
    fs::write(adapter.path.join(WEIGHTS), "good").unwrap();
    assert_eq!(store.adapter("a").unwrap().digest, adapter.digest);
    fs::write(adapter.path.join(WEIGHTS), "evil").unwrap();
    let error = store.adapter("a").unwrap_err();
    assert!(matches!(&error, StoreError::AdapterDamaged { .. }), "{error}");
    assert!(error.to_string().contains("ruvllm adapters rm a"), "{error}");
    assert!(matches!(store.adapters().unwrap()[..], [ListedAdapter::Unusable { .. }]));
    pull(&store, &peft_folder(source.path(), "a", b"good"), None).unwrap();
    assert_eq!(store.adapter("a").unwrap().digest, adapter.digest);
}

#[test]
fn repositories_of_the_hub_give_what_peft_saved_or_their_one_gguf_file() {
    let server = Server::start(|request, _| {
        let entry = |path: &str, size: usize| format!(r#"{{"type": "file", "path": "{path}", "size": {size}}}"#);
        let files = match request.path.as_str() {
            "/api/models/Some/Lora/tree/main" => [entry(CONFIG, 2), entry(WEIGHTS, 7), entry("README.md", 3)].join(","),
            "/api/models/Some/Gguf/tree/main" => entry("lora-f16.gguf", 6),
            "/api/models/Some/Two/tree/main" => [entry("a.gguf", 6), entry("b.gguf", 6)].join(","),
            "/api/models/Some/Pickle/tree/main" => [entry(CONFIG, 2), entry("adapter_model.bin", 9)].join(","),
            "/api/models/Some/None/tree/main" => entry("README.md", 3),
            path if path.ends_with(CONFIG) => return Reply::file(request, b"{}", "\"a\""),
            path if path.ends_with(WEIGHTS) => return Reply::file(request, b"weights", "\"a\""),
            path if path.ends_with(".gguf") => return Reply::file(request, b"GGUF12", "\"a\""),
            _ => return Reply::status(404),
        };
        Reply { status: 200, body: format!("[{files}]").into_bytes(), ..Reply::default() }
    });
    let home = tempfile::tempdir().unwrap();
    let store = store_in(home.path(), &server.url);
    let pull = |spec: &str| store.pull_adapter(spec, None, &|_| Ok(()), &mut quiet);
    let peft = pull("hf:Some/Lora").unwrap();
    assert_eq!((peft.name.as_str(), peft.manifest.source.as_str()), ("some/lora", "hf:Some/Lora"));
    assert_eq!(fs::read(peft.path.join(WEIGHTS)).unwrap(), b"weights");
    assert!(!peft.path.join("README.md").exists());
    assert_eq!(fs::read(pull("hf:Some/Gguf").unwrap().path).unwrap(), b"GGUF12");
    assert_eq!(pull("hf:Some/Two/b.gguf").unwrap().name, "some/b");
    assert_eq!(pull("hf:Some/Lora/checkpoint-5/adapter_model.safetensors").unwrap().digest, peft.digest);
    for (spec, why) in [
        ("hf:Some/Two", "several GGUF files (a.gguf, b.gguf)"),
        ("hf:Some/Pickle", "adapter_model.bin"),
        ("hf:Some/None", "none of their files"),
        ("hf:Some/Missing", "does not exist"),
        ("hf:Some/Lora/README.md", "neither"),
    ] {
        let error = pull(spec).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
