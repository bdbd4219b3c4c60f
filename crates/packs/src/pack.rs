//! A pack that was checked: signature, manifest, hashes, in this order. Only then is anything compiled.

mod source;
mod write;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::gates::GateError;
use crate::manifest::{Manifest, ManifestError};
use crate::sandbox::MODULE_BYTES_MAX;
use crate::signature::{self, PublicKey, SignatureError, hex};

pub use write::{hash_of, write_archive};

use source::Source;
pub(crate) use source::read_within;

pub const MANIFEST: &str = "kernels.json";
pub const SIGNATURE: &str = "kernels.json.sig";
pub(crate) const MANIFEST_BYTES_MAX: u64 = 256 << 10;
const HASH_PREFIX: &str = "sha256:";

#[derive(Debug, thiserror::Error)]
pub enum PackError {
    #[error("cannot read {what}: {error}")]
    Io { what: String, error: io::Error },
    #[error("{0} is missing")]
    Missing(String),
    #[error("{what} is a {kind}; a pack has regular files only")]
    Kind { what: String, kind: &'static str },
    #[error("{what} has more than the {max} bytes that it may have")]
    TooLarge { what: String, max: u64 },
    #[error("{0} leads out of the pack")]
    Traversal(String),
    #[error("{0} is in the archive twice")]
    Twice(String),
    #[error("the archive has more than {0} files")]
    TooManyFiles(usize),
    #[error("the archive cannot be unpacked: {0}")]
    Archive(String),
    #[error(transparent)]
    Signature(#[from] SignatureError),
    #[error(
        "it is signed by {0}, a key that is not trusted: --kernel-key {0} trusts it, if it is that of somebody you trust"
    )]
    Untrusted(PublicKey),
    #[error("it is not signed (there is no {SIGNATURE}); --allow-unsigned uses it all the same")]
    Unsigned,
    #[error("it is signed by {signer}, but its manifest names {named} as the author's key")]
    OtherSigner { signer: PublicKey, named: PublicKey },
    #[error("it is not signed, but its manifest names an author's key: its signature was removed")]
    Stripped,
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("{path} is not what the manifest says: its hash is {got}, not {expected}")]
    Hash { path: String, expected: String, got: String },
    #[error(transparent)]
    Gate(#[from] GateError),
}

/// Who may have made a pack.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    pub keys: Vec<PublicKey>,
    /// Whether a pack without any signature is taken. One that has a signature needs a key.
    pub allow_unsigned: bool,
}

/// A checked pack in memory.
#[derive(Clone, Debug)]
pub struct Pack {
    pub manifest: Manifest,
    /// Whose signature it has; `None` if it is unsigned.
    pub signer: Option<PublicKey>,
    manifest_bytes: Vec<u8>,
    signature: Option<Vec<u8>>,
    modules: BTreeMap<String, Vec<u8>>,
}

impl Pack {
    /// Reads a folder or a `.tar.zst` and checks everything that can be checked without compiling.
    pub fn open(path: &Path, trust: &Trust) -> Result<Self, PackError> {
        let source = Source::open(path)?;
        let manifest_bytes = source.read(MANIFEST, MANIFEST_BYTES_MAX)?;
        let signature = match source.read(SIGNATURE, signature::FILE_BYTES_MAX) {
            Ok(signature) => Some(signature),
            Err(PackError::Missing(_)) => None,
            Err(error) => return Err(error),
        };
        let signer = match &signature {
            Some(signature) => Some(signature::verify(&manifest_bytes, signature)?),
            None if trust.allow_unsigned => None,
            None => return Err(PackError::Unsigned),
        };
        if let Some(key) = signer.filter(|key| !trust.keys.contains(key)) {
            return Err(PackError::Untrusted(key));
        }
        let manifest = Manifest::parse(&manifest_bytes)?;
        match (signer, manifest.author.key) {
            (Some(signer), Some(named)) if signer != named => return Err(PackError::OtherSigner { signer, named }),
            (None, Some(_)) => return Err(PackError::Stripped),
            _ => {}
        }
        let mut modules = BTreeMap::new();
        for kernel in &manifest.kernels {
            if !modules.contains_key(&kernel.path) {
                let bytes = source.read(&kernel.path, MODULE_BYTES_MAX as u64)?;
                let got = hash_of(&bytes);
                if got != kernel.hash {
                    let (path, expected) = (kernel.path.clone(), kernel.hash.clone());
                    return Err(PackError::Hash { path, expected, got });
                }
                modules.insert(kernel.path.clone(), bytes);
            }
        }
        Ok(Self { manifest, signer, manifest_bytes, signature, modules })
    }

    /// Returns what identifies it: the hash of its manifest, which has those of everything else.
    pub fn digest(&self) -> String {
        hex(&Sha256::digest(&self.manifest_bytes))
    }

    /// Returns the module at a path of the manifest.
    pub fn module(&self, path: &str) -> &[u8] {
        &self.modules[path]
    }

    /// Returns what it takes on disk, unpacked.
    pub fn bytes(&self) -> u64 {
        let files = self.modules.values().map(Vec::len);
        (files.sum::<usize>() + self.manifest_bytes.len() + self.signature.as_ref().map_or(0, Vec::len)) as u64
    }

    /// Its files, with their paths.
    pub(crate) fn files(&self) -> impl Iterator<Item = (PathBuf, &[u8])> {
        let signature = self.signature.as_ref().map(|bytes| (PathBuf::from(SIGNATURE), &bytes[..]));
        let modules = self.modules.iter().map(|(path, bytes)| (PathBuf::from(path), &bytes[..]));
        [(PathBuf::from(MANIFEST), &self.manifest_bytes[..])].into_iter().chain(signature).chain(modules)
    }
}
