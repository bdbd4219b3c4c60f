//! The hash chain of the log. Each batch includes the hash of the one before it: changing or removing an entry would require
//! changing all batches after it.
//!
//! A batch covers the digests of its bodies, so that one of them can be forgotten: its digest stays, and a later entry names it.

use crate::database::{Reading, Value, first_row};
use crate::error::{MemoryError, Result};
use crate::schema::meta;
use crate::vector::VectorCode;

pub(super) type Hash = [u8; 32];

/// The hash before the first batch.
pub(super) const BEGINNING: Hash = [0; 32];

/// Number and hash of the last batch that retention removed, where the chain begins now.
pub(super) const ANCHOR: &str = "witness_anchor";

/// What the hash of a batch covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// The bodies themselves: batches from before entries could be forgotten.
    Bodies,
    /// Digests of the bodies.
    Digests,
}

impl Rule {
    /// The number of [`Rule::Digests`] in the table.
    pub const DIGESTS: i64 = 2;

    pub fn of(value: &Value) -> Result<Self> {
        match value.optional(Value::integer)? {
            None => Ok(Self::Bodies),
            Some(Self::DIGESTS) => Ok(Self::Digests),
            Some(other) => Err(MemoryError::damaged(format!("a batch of the log has the unknown rule {other}"))),
        }
    }
}

pub(super) struct ChainHash(blake3::Hasher);

impl ChainHash {
    pub fn new(before: &Hash, batch: i64) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(before);
        hasher.update(&batch.to_le_bytes());
        Self(hasher)
    }

    pub fn add(&mut self, id: i64, digest: &Hash) {
        self.0.update(&id.to_le_bytes());
        self.0.update(digest);
    }

    /// Adds an entry by the rule of older batches.
    pub fn add_body(&mut self, id: i64, body: &str) {
        self.0.update(&id.to_le_bytes());
        self.0.update(&(body.len() as u64).to_le_bytes());
        self.0.update(body.as_bytes());
    }

    pub fn finish(&self) -> Hash {
        *self.0.finalize().as_bytes()
    }
}

/// Returns the digest of a body.
pub(super) fn body_digest(body: &str) -> Hash {
    *blake3::hash(body.as_bytes()).as_bytes()
}

/// Returns the digest of an embedding as it is stored.
pub(super) fn digest(code: &VectorCode) -> String {
    blake3::hash(&code.to_bytes()).to_hex()[..32].to_owned()
}

/// Returns the number and hash of the last batch.
pub(super) fn end(database: &mut dyn Reading) -> Result<(i64, Hash)> {
    match first_row(database, "SELECT id, hash FROM batches ORDER BY id DESC LIMIT 1", &[])? {
        Some(row) => Ok((row[0].integer()?, hash(&row[1])?)),
        None => anchor(database),
    }
}

pub(super) fn anchor(database: &mut dyn Reading) -> Result<(i64, Hash)> {
    let Some(anchor) = meta(database, ANCHOR)? else { return Ok((0, BEGINNING)) };
    let malformed = || MemoryError::damaged("the beginning of the witness log cannot be read");
    let (number, hex) = anchor.split_once(' ').ok_or_else(malformed)?;
    let hash = blake3::Hash::from_hex(hex).map_err(|_| malformed())?;
    Ok((number.parse().map_err(|_| malformed())?, *hash.as_bytes()))
}

pub(super) fn anchor_text(number: i64, hash: &Hash) -> String {
    format!("{number} {}", blake3::Hash::from_bytes(*hash).to_hex())
}

pub(super) fn hash(value: &Value) -> Result<Hash> {
    let bytes = value.bytes()?;
    bytes.try_into().map_err(|_| MemoryError::damaged("a hash has the wrong length"))
}
