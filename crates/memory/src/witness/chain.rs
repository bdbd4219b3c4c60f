//! The hash chain of the log. Each batch includes the hash of the one before it: changing or removing an entry would require
//! changing all batches after it.

use crate::database::{Reading, Value, first_row};
use crate::error::{MemoryError, Result};
use crate::facets::{Part, vector_id};
use crate::schema::meta;
use crate::vector::VectorCode;
use crate::witness::WitnessEntry;

pub(super) type Hash = [u8; 32];

/// The hash before the first batch.
const BEGINNING: Hash = [0; 32];

/// Number and hash of the last batch that retention removed, where the chain begins now.
pub(super) const ANCHOR: &str = "witness_anchor";

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    pub batches: u64,
    pub entries: u64,
    /// Embeddings that were compared with their digests, and those that are no longer stored.
    pub vectors: u64,
    pub vectors_gone: u64,
    /// Hash of the last batch. Noted elsewhere, it proves later that nothing was removed from the end.
    pub hash: String,
    pub problems: Vec<ChainError>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    #[error("batch {batch}: its hash does not fit its entries and the batch before it")]
    Hash { batch: i64 },
    #[error("batch {batch}: its size is not that of its entries")]
    Size { batch: i64 },
    #[error("batch {batch}: {found} of {expected} entries are there")]
    Missing { batch: i64, expected: u64, found: u64 },
    #[error("batch {batch} is missing")]
    Gap { batch: i64 },
    #[error("entry {entry}: its columns do not say what its text says")]
    Columns { entry: i64 },
    #[error("entry {entry}: its embedding is another one")]
    Vector { entry: i64 },
    #[error("entry {entry} cannot be read")]
    Unreadable { entry: i64 },
}

/// Maximum number of problems that are reported.
const PROBLEMS_MAX: usize = 100;

pub(super) struct ChainHash(blake3::Hasher);

impl ChainHash {
    pub fn new(before: &Hash, batch: i64) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(before);
        hasher.update(&batch.to_le_bytes());
        Self(hasher)
    }

    pub fn add(&mut self, id: i64, body: &str) {
        self.0.update(&id.to_le_bytes());
        self.0.update(&(body.len() as u64).to_le_bytes());
        self.0.update(body.as_bytes());
    }

    pub fn finish(&self) -> Hash {
        *self.0.finalize().as_bytes()
    }
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

/// Recomputes the whole chain. `progress` receives the number of batches verified.
pub(crate) fn verify(database: &mut dyn Reading, progress: &mut dyn FnMut(u64)) -> Result<Verified> {
    let (mut last, mut before) = anchor(database)?;
    let mut batches = Vec::new();
    database.rows("SELECT id, first, last, hash, bytes FROM batches ORDER BY id", &[], &mut |row| {
        batches.push((row[0].integer()?, row[1].integer()?, row[2].integer()?, hash(&row[3])?, row[4].integer()?));
        Ok(())
    })?;
    let mut verified = Verified::default();
    for (number, first, end, stored, stored_bytes) in batches {
        if number != last + 1 {
            verified.note(ChainError::Gap { batch: last + 1 });
        }
        let (computed, bytes) = verified.batch(database, number, (first, end), &before)?;
        if bytes != stored_bytes {
            verified.note(ChainError::Size { batch: number });
        }
        if computed != stored {
            verified.note(ChainError::Hash { batch: number });
        }
        verified.batches += 1;
        progress(verified.batches);
        (last, before) = (number, stored);
    }
    verified.hash = blake3::Hash::from_bytes(before).to_hex().to_string();
    Ok(verified)
}

impl Verified {
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    fn note(&mut self, problem: ChainError) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }

    fn batch(
        &mut self,
        database: &mut dyn Reading,
        number: i64,
        (first, last): (i64, i64),
        before: &Hash,
    ) -> Result<(Hash, i64)> {
        let mut chain = ChainHash::new(before, number);
        let (mut entries, mut bytes) = (Vec::new(), 0);
        let sql = format!("{COLUMNS} WHERE w.id >= $1 AND w.id <= $2 AND w.batch = $3 ORDER BY w.id");
        database.rows(&sql, &[first.into(), last.into(), number.into()], &mut |row| {
            let id = row[0].integer()?;
            let Value::Text(body) = &row[1] else {
                self.note(ChainError::Unreadable { entry: id });
                return Ok(());
            };
            chain.add(id, body);
            bytes += body.len() as i64;
            match serde_json::from_str::<WitnessEntry>(body) {
                Ok(entry) => {
                    if !columns_fit(row, &entry) {
                        self.note(ChainError::Columns { entry: id });
                    }
                    // An entry that names a session but has no link to it: there must not have been one.
                    let unlinked = entry.session.as_ref().filter(|_| row[12] == Value::Null);
                    let unlinked = unlinked.map(|name| (row[15].clone(), name.clone()));
                    entries.push((id, entry, unlinked));
                }
                Err(_) => self.note(ChainError::Unreadable { entry: id }),
            }
            Ok(())
        })?;
        let (expected, found) = ((last - first + 1).max(0) as u64, entries.len() as u64);
        if found != expected {
            self.note(ChainError::Missing { batch: number, expected, found });
        }
        self.entries += found;
        for (id, entry, unlinked) in entries {
            if let Some((tenant, name)) = unlinked {
                let sql = "SELECT id FROM sessions WHERE tenant = $1 AND name = $2 AND id < $3";
                if first_row(database, sql, &[tenant, name.into(), id.into()])?.is_some() {
                    self.note(ChainError::Columns { entry: id });
                }
            }
            self.vector(database, (id, Part::Whole), entry.prompt_vector)?;
            self.vector(database, (id, Part::Answer), entry.answer_vector)?;
        }
        Ok((chain.finish(), bytes))
    }

    fn vector(&mut self, database: &mut dyn Reading, (id, part): (i64, Part), expected: Option<String>) -> Result<()> {
        let Some(expected) = expected else { return Ok(()) };
        let row = first_row(database, "SELECT code FROM vectors WHERE id = $1", &[vector_id(id, part).into()])?;
        let Some(row) = row else {
            self.vectors_gone += 1;
            return Ok(());
        };
        self.vectors += 1;
        if blake3::hash(row[0].bytes()?).to_hex()[..32] != expected {
            self.note(ChainError::Vector { entry: id });
        }
        Ok(())
    }
}

/// All columns that repeat what the body says, with the names behind their numbers.
const COLUMNS: &str = "SELECT w.id, b.body, w.request, w.at_ms, w.total_ms, w.quality, w.error, t.name, m.name, \
    w.prompt_tokens, w.cached_tokens, w.answer_tokens, w.session, s.name, s.tenant, w.tenant \
    FROM witness w LEFT JOIN witness_bodies b ON b.id = w.id LEFT JOIN names t ON t.id = w.tenant \
    LEFT JOIN names m ON m.id = w.model LEFT JOIN sessions s ON s.id = w.session";

fn columns_fit(row: &[Value], entry: &WitnessEntry) -> bool {
    let text = |value: &Value| value.as_text().unwrap_or_default().to_owned();
    let count = |tokens: u64| Value::Integer(i64::try_from(tokens).unwrap_or(i64::MAX));
    text(&row[2]) == entry.request
        && row[3] == Value::Integer(entry.at_ms)
        && row[4].real().is_ok_and(|total| total == entry.latency.total_ms)
        && row[5].optional(Value::real).ok() == Some(entry.quality.as_ref().map(|quality| quality.score))
        && text(&row[6]) == entry.error.as_ref().map_or("", |error| error.kind.as_str())
        && text(&row[7]) == entry.tenant
        && text(&row[8]) == entry.model
        && row[9] == count(entry.tokens.prompt)
        && row[10] == count(entry.cache.cached_tokens)
        && row[11] == count(entry.tokens.answer)
        && session_fits(row, entry)
}

/// A session that was removed since cannot be compared.
fn session_fits(row: &[Value], entry: &WitnessEntry) -> bool {
    match (&row[12], &row[13]) {
        (Value::Null, _) => true,
        (_, Value::Text(name)) => entry.session.as_ref() == Some(name) && row[14] == row[15],
        _ => entry.session.is_some(),
    }
}
