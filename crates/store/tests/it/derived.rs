//! Models that are made from others.

use std::fs;
use std::path::Path;

use crate::support::config;
use ruvllm_store::{Catalogue, Listed, ModelSettings, Store, StoreError};
use serde_json::json;

/// A store with the model `toy`.
fn store(home: &Path) -> Store {
    let file = home.join("toy.gguf");
    fs::write(&file, b"GGUF and more").unwrap();
    let store = Store::with_config(config(home, "http://127.0.0.1:1", Catalogue::default()));
    store.pull(file.to_str().unwrap(), &mut |_| {}).unwrap();
    store
}

fn settings(value: serde_json::Value) -> ModelSettings {
    serde_json::from_value(value).unwrap()
}

fn names(store: &Store) -> Vec<String> {
    let name = |item: Listed| match item {
        Listed::Model(model) => model.name,
        Listed::Unusable { why, .. } => format!("unusable: {why}"),
    };
    store.list().unwrap().into_iter().map(name).collect()
}

#[test]
fn it_shares_the_file_of_its_base_and_inherits_its_settings() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path());
    let pirate = json!({"system": "Arr.", "parameters": {"temperature": 0.1, "top_k": 3}});
    store.derive("pirate", "toy:latest", settings(pirate)).unwrap();
    store.derive("calm", "pirate", settings(json!({"parameters": {"temperature": 0}}))).unwrap();
    assert_eq!(names(&store), ["toy", "calm", "pirate"]);
    let (toy, calm) = (store.resolve("toy").unwrap(), store.resolve("calm:latest").unwrap());
    assert_eq!((calm.path, calm.base.as_deref(), calm.name.as_str()), (toy.path, Some("toy"), "calm"));
    let expected = json!({"system": "Arr.", "parameters": {"temperature": 0, "top_k": 3}});
    assert_eq!(*calm.settings, settings(expected));
    store.derive("calm", "toy", ModelSettings::default()).expect("it is made anew");
    assert!(store.resolve("calm").unwrap().settings.is_empty());
}

#[test]
fn what_others_are_made_from_stays() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path());
    store.derive("copy", "toy", ModelSettings::default()).unwrap();
    let error = store.remove("toy").unwrap_err();
    assert!(matches!(&error, StoreError::IsBase { by, .. } if by == "copy"), "{error}");
    store.remove("copy:latest").unwrap();
    assert!(matches!(store.resolve("copy"), Err(StoreError::Unknown { .. })));
    assert_eq!(names(&store), ["toy"]);
    store.remove("toy").unwrap();
}

#[test]
fn no_name_leads_out_of_the_store_or_hides_another_model() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path());
    for name in ["../x", "a/../../x", "/etc/passwd", "", ".derived", "a\0b", "toy"] {
        assert!(store.derive(name, "toy", ModelSettings::default()).is_err(), "{name}");
    }
    for from in
        ["../toy", "/etc/passwd", "no-such-model", "", "hf:a/b/c.gguf", home.path().join("toy.gguf").to_str().unwrap()]
    {
        assert!(store.derive("new", from, ModelSettings::default()).is_err(), "{from}");
    }
    let long = ModelSettings { system: Some("x".repeat(2 << 20)), ..ModelSettings::default() };
    assert!(matches!(store.derive("new", "toy", long), Err(StoreError::TooLong { .. })));
    assert_eq!(names(&store), ["toy"]);
}

#[test]
fn files_that_were_tampered_with_are_reported() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path());
    let path = home.path().join("models/.derived/bad.json");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let made_from = |base: &str| json!({"name": "bad", "base": base, "created_at_unix_s": 1}).to_string();
    let (itself, outside) = (made_from("bad"), made_from("../../etc/passwd"));
    let (file, gone) = (made_from(home.path().join("toy.gguf").to_str().unwrap()), made_from("gone"));
    let other = json!({"name": "other", "base": "toy", "created_at_unix_s": 1}).to_string();
    let wrong = json!({"name": "bad", "base": "toy", "created_at_unix_s": 1, "parameters": 7}).to_string();
    let huge = format!("\"{}\"", "x".repeat(2 << 20));
    for text in ["", "{", "[]", &itself, &outside, &file, &gone, &other, &wrong, &huge] {
        fs::write(&path, text).unwrap();
        let shown = &text[..text.len().min(80)];
        assert!(store.resolve("bad").is_err(), "{shown}");
        let listed = names(&store);
        assert!(listed[0] == "toy" && listed[1].starts_with("unusable: "), "{shown}: {listed:?}");
    }
    store.remove("bad").expect("it can be removed");
}

#[test]
fn only_what_is_known_is_pulled_for_others() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path());
    let outside = home.path().join("toy.gguf");
    for spec in [outside.to_str().unwrap(), "./toy.gguf", "../toy.gguf", "no-such-model"] {
        assert!(store.pull_remote(spec, &mut |_| {}).is_err(), "{spec}");
    }
    fs::write(&outside, b"GGUF, but changed").unwrap();
    let pulled = store.pull_remote("toy", &mut |_| {}).expect("it is here");
    assert_eq!(fs::read(pulled.path).unwrap(), b"GGUF and more", "the file that it came from is not read again");
}
