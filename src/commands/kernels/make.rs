//! `ruvllm kernels keygen|build|sign`: for authors of packs.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use ruvllm_packs::{Pack, SecretKey, Trust, build, sign, write_archive};
use serde_json::json;

use crate::output;

/// Make a key to sign packs with
///
/// The secret key is written to a file that only you can read. The public key is printed; who trusts it passes it to --kernel-key.
#[derive(Debug, Args)]
pub struct Keygen {
    /// New file for the secret key
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Make a pack of a folder with a kernels.json
///
/// If the folder has a src/lib.rs, that is compiled with rustc to each module that kernels.json names, with SIMD for those in the
/// folder simd128/; it is a crate without dependencies. The same sources give the same bytes. Otherwise the modules must be in the
/// folder. Hashes go into the pack's kernels.json.
#[derive(Debug, Args)]
pub struct Build {
    /// Folder of the sources
    #[arg(value_name = "FOLDER")]
    source: PathBuf,
    /// New folder for the pack
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

/// Sign a pack
#[derive(Debug, Args)]
pub struct Sign {
    /// Folder of the pack
    #[arg(value_name = "FOLDER")]
    pack: PathBuf,
    /// File of the secret key (see `ruvllm kernels keygen`)
    #[arg(long, value_name = "FILE")]
    secret_key: PathBuf,
    /// Also write the signed pack to this file, a .tar.zst
    #[arg(long, value_name = "FILE")]
    archive: Option<PathBuf>,
}

impl Keygen {
    pub fn execute(self) -> Result<()> {
        let key = SecretKey::generate()?;
        key.save(&self.file)?;
        if self.json {
            return output::json(&json!({ "public_key": key.public(), "secret_key_file": self.file }));
        }
        output::line(&key.public().to_string())
    }
}

impl Build {
    pub fn execute(self) -> Result<()> {
        let manifest = build(&self.source, &self.out)?;
        let (count, out) = (manifest.kernels.len(), self.out.display());
        output::line(&format!("built {} {} with {count} kernels: {out}", manifest.name, manifest.version))
    }
}

impl Sign {
    pub fn execute(self) -> Result<()> {
        let key = SecretKey::load(&self.secret_key)?;
        let manifest = sign(&self.pack, &key)?;
        // What was signed must be a pack that opens.
        let pack = Pack::open(&self.pack, &Trust { keys: vec![key.public()], allow_unsigned: false })?;
        if let Some(archive) = &self.archive {
            write_archive(&pack, archive)?;
        }
        output::line(&format!("signed {} {} with {}", manifest.name, manifest.version, key.public()))
    }
}
