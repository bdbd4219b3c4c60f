//! Keys, and signatures of manifests.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::Path;
use std::str::FromStr;

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};

const PREFIX: &str = "ed25519:";
/// What a file of a signature or a key may have.
pub(crate) const FILE_BYTES_MAX: u64 = 1024;

/// The key by which a pack's origin is known: `ed25519:` and 64 hexadecimal digits.
#[derive(Clone, Copy, Deserialize, PartialEq, Eq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey([u8; 32]);

/// The key that signs.
pub struct SecretKey(SigningKey);

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SignatureError {
    #[error("{0:?} is no key: it is '{PREFIX}' and 64 hexadecimal digits")]
    NotAKey(String),
    #[error("kernels.json.sig is no signature: it is a key and 128 hexadecimal digits on one line")]
    NotASignature,
    #[error("the signature in kernels.json.sig is not that of this kernels.json: one of the two was changed")]
    Wrong,
}

#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error("cannot make random bytes: {0}")]
    Random(getrandom::Error),
    #[error("cannot write {path}: {error}")]
    Write { path: String, error: io::Error },
    #[error("cannot read {path}: {error}")]
    Read { path: String, error: io::Error },
    #[error("{path} is no secret key of `ruvllm kernels keygen`")]
    Content { path: String },
    #[error("{path} can be read by others: chmod 600 {path}")]
    Exposed { path: String },
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", hex(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey of {}", self.public())
    }
}

impl FromStr for PublicKey {
    type Err = SignatureError;

    fn from_str(text: &str) -> Result<Self, SignatureError> {
        let not_a_key = || SignatureError::NotAKey(text.chars().take(80).collect());
        let bytes = text.strip_prefix(PREFIX).and_then(unhex::<32>).ok_or_else(not_a_key)?;
        let key = VerifyingKey::from_bytes(&bytes).map_err(|_| not_a_key())?;
        if key.is_weak() { Err(not_a_key()) } else { Ok(Self(bytes)) }
    }
}

impl TryFrom<String> for PublicKey {
    type Error = SignatureError;
    fn try_from(text: String) -> Result<Self, SignatureError> {
        text.parse()
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        key.to_string()
    }
}

impl SecretKey {
    pub fn generate() -> Result<Self, KeyFileError> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(KeyFileError::Random)?;
        Ok(Self(SigningKey::from_bytes(&bytes)))
    }

    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    /// Writes it to a new file that only its owner can read. Never replaces one.
    pub fn save(&self, path: &Path) -> Result<(), KeyFileError> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let text = format!("{PREFIX}secret:{}\n", hex(self.0.as_bytes()));
        let written = options.open(path).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        written.map_err(|error| KeyFileError::Write { path: path.display().to_string(), error })
    }

    /// Reads what `save` has written. Refuses one that others can read.
    pub fn load(file: &Path) -> Result<Self, KeyFileError> {
        let path = file.display().to_string();
        let mut text = String::new();
        let read = std::fs::File::open(file).and_then(|file| {
            let metadata = file.metadata()?;
            file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
            Ok(metadata)
        });
        let metadata = read.map_err(|error| KeyFileError::Read { path: path.clone(), error })?;
        #[cfg(unix)]
        if std::os::unix::fs::MetadataExt::mode(&metadata) & 0o077 != 0 {
            return Err(KeyFileError::Exposed { path });
        }
        #[cfg(not(unix))]
        drop(metadata);
        let bytes = text.trim().strip_prefix(PREFIX).and_then(|text| text.strip_prefix("secret:")).and_then(unhex);
        bytes.map(|bytes| Self(SigningKey::from_bytes(&bytes))).ok_or(KeyFileError::Content { path })
    }

    /// Returns what goes into `kernels.json.sig`.
    pub fn sign(&self, manifest: &[u8]) -> String {
        format!("{} {}\n", self.public(), hex(&self.0.sign(manifest).to_bytes()))
    }
}

/// Checks the signature of a manifest's bytes, and returns whose it is.
pub fn verify(manifest: &[u8], signature: &[u8]) -> Result<PublicKey, SignatureError> {
    let text = str::from_utf8(signature).map_err(|_| SignatureError::NotASignature)?;
    let (key, signature) = text.trim_end().split_once(' ').ok_or(SignatureError::NotASignature)?;
    let key: PublicKey = key.parse().map_err(|_| SignatureError::NotASignature)?;
    let signature = unhex::<64>(signature).ok_or(SignatureError::NotASignature)?;
    let checks = VerifyingKey::from_bytes(&key.0).map_err(|_| SignatureError::NotASignature)?;
    let verified = checks.verify_strict(manifest, &Signature::from_bytes(&signature));
    verified.map(|()| key).map_err(|_| SignatureError::Wrong)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N || !digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, digits) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}
