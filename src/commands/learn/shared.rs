//! A version that was learned as others get it: an adapter as PEFT has it, and a signed manifest beside it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ruvllm_packs::{PublicKey, SecretKey, hash_of, verify};
use ruvllm_runtime::{AdapterFile, adapter_digest_of};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub const MANIFEST: &str = "learned.json";
pub const SIGNATURE: &str = "learned.json.sig";
/// What an adapter consists of. Nothing else of a folder is read.
const FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];
const SCHEMA: u32 = 1;
const MANIFEST_BYTES_MAX: u64 = 8 << 20;
const SIGNATURE_BYTES_MAX: u64 = 1024;
const FILE_BYTES_MAX: u64 = 4 << 30;

/// What is said of a version: no texts, and no names of tenants or users.
#[derive(Debug, Serialize, Deserialize)]
pub struct Manifest {
    schema: u32,
    /// The program that wrote it.
    pub runtime: String,
    pub created_ms: i64,
    pub model: String,
    /// Fingerprint of the model's file.
    pub model_digest: String,
    /// Digest of the adapter's contents.
    pub adapter: String,
    /// SHA-256 of each file.
    files: BTreeMap<String, String>,
    /// Digests of the items that it was learned from: others must not be judged by these.
    pub items: Vec<String>,
    /// What the gate has said where it comes from.
    pub gate: Value,
}

impl Manifest {
    pub fn new(model: &str, model_digest: &str, adapter: &str) -> Self {
        Self {
            schema: SCHEMA,
            runtime: env!("CARGO_PKG_VERSION").to_owned(),
            created_ms: ruvllm_memory::now_ms(),
            model: model.to_owned(),
            model_digest: model_digest.to_owned(),
            adapter: adapter.to_owned(),
            files: BTreeMap::new(),
            items: Vec::new(),
            gate: Value::Null,
        }
    }
}

/// Writes a new folder with an adapter, its manifest, and the signature of that.
pub fn write(from: &Path, mut manifest: Manifest, key: &SecretKey, to: &Path) -> Result<()> {
    let cannot = || format!("cannot write {}", to.display());
    fs::create_dir(to).with_context(cannot)?;
    for name in FILES {
        let bytes = fs::read(from.join(name)).with_context(|| format!("{name} of the adapter cannot be read"))?;
        manifest.files.insert(name.to_owned(), hash_of(&bytes));
        fs::write(to.join(name), bytes).with_context(cannot)?;
    }
    let bytes = serde_json::to_vec_pretty(&manifest)?;
    fs::write(to.join(SIGNATURE), key.sign(&bytes)).with_context(cannot)?;
    // The last one: without it, the folder is nothing.
    fs::write(to.join(MANIFEST), bytes).with_context(cannot)
}

/// Checks a folder and copies its adapter to `to`, a path of ours. Nothing is parsed before its signature is known to be of
/// somebody who is trusted. Returns also who that is.
pub fn read(from: &Path, trusted: &[PublicKey], to: &Path) -> Result<(Manifest, PublicKey)> {
    let bytes = read_file(from, MANIFEST, MANIFEST_BYTES_MAX)?;
    let signature = read_file(from, SIGNATURE, SIGNATURE_BYTES_MAX)?;
    let signer =
        verify(&bytes, &signature).with_context(|| format!("{SIGNATURE} is not the signature of {MANIFEST}"))?;
    if !trusted.contains(&signer) {
        bail!(
            "it is signed by {signer}, a key that is not trusted: --trust {signer} trusts it, if it is that of somebody you trust"
        );
    }
    let manifest: Manifest = serde_json::from_slice(&bytes).with_context(|| format!("{MANIFEST} cannot be read"))?;
    if manifest.schema != SCHEMA {
        bail!("{MANIFEST} has the schema {}, and this program reads {SCHEMA}: use a newer one", manifest.schema);
    }
    fs::create_dir(to).with_context(|| format!("cannot create {}", to.display()))?;
    for name in FILES {
        let bytes = read_file(from, name, FILE_BYTES_MAX)?;
        if manifest.files.get(name) != Some(&hash_of(&bytes)) {
            bail!("{name} is not what {MANIFEST} says: it was changed, or is damaged");
        }
        fs::write(to.join(name), bytes).with_context(|| format!("cannot write {}", to.display()))?;
    }
    let found = adapter_digest_of(AdapterFile::open(to)?.id);
    if found != manifest.adapter {
        bail!("the adapter has the digest {found}, and {MANIFEST} says {}", manifest.adapter);
    }
    Ok((manifest, signer))
}

/// Reads a regular file of a folder.
fn read_file(folder: &Path, name: &str, bytes_max: u64) -> Result<Vec<u8>> {
    let path = folder.join(name);
    let cannot = || format!("cannot read {}", path.display());
    // Not opened before it is known to be a file: opening a pipe would wait.
    if !fs::symlink_metadata(&path).with_context(cannot)?.is_file() {
        bail!("{} is no regular file", path.display());
    }
    let mut bytes = Vec::new();
    let taken =
        File::open(&path).and_then(|file| file.take(bytes_max + 1).read_to_end(&mut bytes)).with_context(cannot)?;
    if taken as u64 > bytes_max {
        bail!("{} has more than the {bytes_max} bytes that it may have", path.display());
    }
    Ok(bytes)
}
