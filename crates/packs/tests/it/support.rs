//! Packs to test with.

use std::fs;
use std::path::{Path, PathBuf};

use ruvllm_packs::{MANIFEST, SIGNATURE, SecretKey, Trust, hash_of};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A folder with a pack of one kernel.
pub struct TestPack {
    pub folder: TempDir,
    pub key: SecretKey,
    pub manifest: Value,
}

impl TestPack {
    /// A pack whose module has these bytes; what it computes nobody asks.
    pub fn with_module(module: &[u8]) -> Self {
        let (folder, key) = (tempfile::tempdir().unwrap(), SecretKey::generate().unwrap());
        let manifest = json!({
            "schema": 1,
            "name": "test",
            "version": "1.0.0",
            "author": { "name": "Tests", "key": key.public() },
            "kernels": [kernel("gate", "gated/gate.wasm", module)],
        });
        let pack = Self { folder, key, manifest };
        fs::create_dir(pack.path("gated")).unwrap();
        fs::write(pack.path("gated/gate.wasm"), module).unwrap();
        pack
    }

    pub fn new() -> Self {
        let pack = Self::with_module(&crate::sandbox::module(""));
        pack.sign();
        pack
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    pub fn trust(&self) -> Trust {
        Trust { keys: vec![self.key.public()], allow_unsigned: false }
    }

    /// Changes the manifest, and signs it.
    pub fn change(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.manifest);
        self.sign();
        self
    }

    pub fn sign(&self) {
        self.sign_with(&self.key);
    }

    pub fn sign_with(&self, key: &SecretKey) {
        let bytes = serde_json::to_vec_pretty(&self.manifest).unwrap();
        fs::write(self.path(SIGNATURE), key.sign(&bytes)).unwrap();
        fs::write(self.path(MANIFEST), bytes).unwrap();
    }
}

pub fn kernel(id: &str, path: &str, module: &[u8]) -> Value {
    let tensor = |name: &str| json!({ "name": name, "dtype": "f32", "shape": ["n"] });
    json!({
        "id": id,
        "category": "swiglu",
        "path": path,
        "hash": hash_of(module),
        "inputs": [tensor("gate"), tensor("up")],
        "outputs": [tensor("out")],
        "platforms": [{ "runtime": "wasmtime", "features": ["bulk-memory"] }],
    })
}

/// Packs a folder as it is, whatever is in it.
pub fn archive_of(folder: &Path) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    tar.follow_symlinks(false);
    tar.append_dir_all(".", folder).unwrap();
    compressed(&tar.into_inner().unwrap())
}

pub fn compressed(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}
