//! Reads any bytes as the manifest of a model; the text up to the first zero byte is the model's name.

use std::path::{Component, Path};

use ruvllm_store::{Manifest, ModelName};

pub fn run(bytes: &[u8]) {
    let Some(end) = bytes.iter().position(|byte| *byte == 0) else { return };
    let Ok(name) = std::str::from_utf8(&bytes[..end]) else { return };
    let name = match ModelName::parse(name) {
        Ok(name) => name,
        Err(error) => {
            assert!(error.to_string().len() < 2_000);
            return;
        }
    };
    assert_eq!(ModelName::parse(name.as_str()).expect("it is one"), name);
    let Ok(manifest) = Manifest::parse(&bytes[end + 1..], &name) else { return };
    let _ = manifest.bytes();
    for stored in manifest.files() {
        let is_within = |part: Component<'_>| matches!(part, Component::Normal(_));
        assert!(Path::new(&stored.file).components().all(is_within), "{:?} leads out of the folder", stored.file);
    }
}
