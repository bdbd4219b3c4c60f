//! Models of an Ollama installation, sound and hostile.

use std::fs;
use std::path::Path;

use crate::support::{config, sha256};
use ruvllm_store::{Catalogue, Listed, Store, StoreConfig, StoreError};
use serde_json::{Value, json};

const LAYER: &str = "application/vnd.ollama.image.";

struct Installation {
    folder: tempfile::TempDir,
    store: Store,
}

impl Installation {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("ollama/blobs")).unwrap();
        let ollama = Some(folder.path().join("ollama"));
        let home = folder.path().join("home");
        let store =
            Store::with_config(StoreConfig { ollama, ..config(&home, "http://127.0.0.1:1", Catalogue::built_in()) });
        Self { folder, store }
    }

    fn root(&self) -> std::path::PathBuf {
        self.folder.path().join("ollama")
    }

    /// Adds a blob and returns its layer.
    fn layer(&self, kind: &str, bytes: &[u8]) -> Value {
        let digest = sha256(bytes);
        fs::write(self.root().join(format!("blobs/sha256-{digest}")), bytes).unwrap();
        json!({"mediaType": format!("{LAYER}{kind}"), "digest": format!("sha256:{digest}"), "size": bytes.len()})
    }

    fn manifest(&self, path: &str, layers: &[Value]) {
        self.write(path, &json!({"schemaVersion": 2, "layers": layers}).to_string());
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root().join("manifests").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn names(&self) -> Vec<String> {
        let name = |item: Listed| match item {
            Listed::Model(model) => model.name,
            Listed::Unusable { why, .. } => format!("unusable: {why}"),
        };
        self.store.list().unwrap().into_iter().map(name).collect()
    }

    /// What is said of a manifest with these layers.
    fn said(&self, layers: &[Value]) -> String {
        self.manifest("registry.ollama.ai/library/bad/latest", layers);
        assert!(self.store.resolve("bad").is_err(), "{layers:?}");
        let names = self.names();
        assert!(names.len() == 1 && names[0].starts_with("unusable: "), "{names:?}");
        names[0].clone()
    }
}

#[test]
fn models_are_found_by_the_names_that_ollama_has_for_them_and_run_in_place() {
    let installed = Installation::new();
    let model = installed.layer("model", b"GGUF");
    let others = [
        installed.layer("params", br#"{"temperature": 0.5, "stop": ["<end>"]}"#),
        installed.layer("system", b"Be brief."),
        installed.layer("template", b"{{ .Prompt }}"),
        installed.layer("license", b"MIT"),
        installed.layer("messages", br#"[{"role": "user", "content": "Hi"}]"#),
    ];
    installed.manifest("registry.ollama.ai/library/toy/latest", &[std::slice::from_ref(&model), &others[..]].concat());
    for path in ["registry.ollama.ai/library/toy/1b", "registry.ollama.ai/ann/toy/latest", "hf.co/Ann/Toy-GGUF/Q4_K_M"]
    {
        installed.manifest(path, std::slice::from_ref(&model));
    }
    // A name of the catalogue means the catalogue's model.
    installed.manifest("registry.ollama.ai/library/smollm2/latest", std::slice::from_ref(&model));
    let mut names = installed.names();
    names.sort();
    assert_eq!(names, ["ann/toy", "hf.co/ann/toy-gguf:q4_k_m", "library/smollm2", "toy", "toy:1b"]);
    for name in names.iter().map(String::as_str).chain(["toy:latest", "library/toy", "ann/toy:latest"]) {
        let found = installed.store.resolve(name).unwrap();
        assert_eq!(fs::read(&found.path).unwrap(), b"GGUF", "{name}");
        assert!(found.path.starts_with(installed.root()), "nothing is copied");
    }
    let toy = installed.store.resolve("toy").unwrap().settings;
    assert_eq!(toy.system.as_deref(), Some("Be brief."));
    assert_eq!((toy.parameters["temperature"].as_f64(), toy.messages.len()), (Some(0.5), 1));
    assert!(matches!(installed.store.resolve("smollm2"), Err(StoreError::NotPulled { .. })));
    assert!(matches!(installed.store.remove("toy"), Err(StoreError::OfOllama { .. })));
    installed.store.derive("mine", "toy:1b", Default::default()).unwrap();
    assert_eq!(installed.store.resolve("mine").unwrap().base.as_deref(), Some("toy:1b"));
}

#[test]
fn bytes_that_are_not_those_of_their_digest_are_refused() {
    let installed = Installation::new();
    let model = installed.layer("model", b"GGUF");
    installed.manifest("registry.ollama.ai/library/toy/latest", std::slice::from_ref(&model));
    installed.store.resolve("toy").unwrap();
    let digest = model["digest"].as_str().unwrap().replace(':', "-");
    fs::write(installed.root().join("blobs").join(digest), b"EVIL").unwrap();
    let error = installed.store.resolve("toy").unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}

#[test]
fn manifests_lead_to_nothing_but_blobs() {
    let installed = Installation::new();
    fs::write(installed.folder.path().join("secret"), b"GGUF").unwrap();
    let hex = sha256(b"GGUF");
    let layer = |digest: &str, size: u64| json!({"mediaType": format!("{LAYER}model"), "digest": digest, "size": size});
    for digest in [
        "sha256:../../secret",
        "sha256:",
        "sha256-../../secret",
        "/etc/passwd",
        "md5:0123",
        &format!("sha256:{}/../../../secret", &hex[..50]),
        &format!("sha256:{}", hex.to_uppercase()),
        &hex,
    ] {
        let said = installed.said(&[layer(digest, 4)]);
        assert!(said.contains("a digest is not sha256"), "{said}");
    }
    std::os::unix::fs::symlink(
        installed.folder.path().join("secret"),
        installed.root().join(format!("blobs/sha256-{hex}")),
    )
    .unwrap();
    let said = installed.said(&[layer(&format!("sha256:{hex}"), 4)]);
    assert!(said.contains("leads out of its folder"), "{said}");
    let missing = format!("sha256:{}", "0".repeat(64));
    assert!(installed.said(&[layer(&missing, 4)]).contains("cannot be read"));
}

#[test]
fn sizes_and_shapes_are_bounded() {
    let installed = Installation::new();
    let model = installed.layer("model", b"GGUF, longer");
    let mut wrong_size = model.clone();
    wrong_size["size"] = json!(4);
    assert!(installed.said(&[wrong_size]).contains("is not a file of 4 bytes"));
    assert!(installed.said(&[]).contains("one layer with a model"));
    assert!(installed.said(&[model.clone(), model.clone()]).contains("one layer with a model"));
    let huge = installed.layer("system", &vec![b'x'; 2 << 20]);
    assert!(installed.said(&[model.clone(), huge]).contains("larger than"));
    for (kind, bytes) in [("params", &b"[1]"[..]), ("params", b"{"), ("messages", b"{}"), ("system", b"\xff\xfe")] {
        let said = installed.said(&[model.clone(), installed.layer(kind, bytes)]);
        assert!(said.contains("is not"), "{said}");
    }
    assert!(installed.said(&vec![model.clone(); 1000]).contains("layers"));
    let path = "registry.ollama.ai/library/bad/latest";
    for text in ["", "{", "[]", "\"x\"", "{\"layers\": 7}", &format!("\"{}\"", "x".repeat(1 << 20))] {
        installed.write(path, text);
        assert!(installed.store.resolve("bad").is_err());
        assert!(installed.names()[0].starts_with("unusable: "));
    }
}

#[test]
fn adapters_are_used_where_they_lie_if_they_are_what_the_manifest_says() {
    let installed = Installation::new();
    let (model, adapter) = (installed.layer("model", b"GGUF"), installed.layer("adapter", b"GGUF lora"));
    installed.manifest("registry.ollama.ai/library/toy/latest", &[model.clone(), adapter]);
    let adapters = installed.store.resolve("toy").unwrap().settings.adapters;
    let blob = installed.root().join(format!("blobs/sha256-{}", sha256(b"GGUF lora")));
    assert_eq!(adapters, [blob.to_str().unwrap()]);
    fs::write(&blob, "GGUF evil").unwrap();
    let error = installed.store.resolve("toy").unwrap_err().to_string();
    assert!(error.contains("has the SHA-256"), "{error}");
    let missing =
        json!({"mediaType": format!("{LAYER}adapter"), "digest": format!("sha256:{}", "0".repeat(64)), "size": 4});
    installed.manifest("registry.ollama.ai/library/toy/latest", &[model, missing]);
    let error = installed.store.resolve("toy").unwrap_err().to_string();
    assert!(error.contains("cannot be read"), "{error}");
}

#[test]
fn links_among_the_manifests_are_not_followed() {
    let installed = Installation::new();
    let model = installed.layer("model", b"GGUF");
    installed.manifest("registry.ollama.ai/library/toy/latest", &[model]);
    let manifests = installed.root().join("manifests/registry.ollama.ai");
    let link = |to: &Path, name: &str| std::os::unix::fs::symlink(to, manifests.join(name)).unwrap();
    link(&manifests, "loop");
    link(&manifests.join("library/toy/latest"), "library/linked");
    fs::create_dir_all(manifests.join("library/odd name \u{1f600}/latest")).unwrap();
    assert_eq!(installed.names(), ["toy"]);
}
