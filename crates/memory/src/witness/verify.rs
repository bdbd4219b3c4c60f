//! Recomputes the hash chain, and compares what repeats the bodies with them: columns, sessions, embeddings.

use std::collections::BTreeSet;

use super::annotation::{Annotation, ForgottenEntry, LogEntry, Said};
use super::chain::{self, BEGINNING, ChainHash, Hash, Rule, body_digest};
use super::entry::WitnessEntry;
use crate::database::{Reading, Value, first_row};
use crate::error::Result;
use crate::facets::{Part, vector_id};

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    pub batches: u64,
    pub entries: u64,
    /// Embeddings that were compared with their digests, and those that are no longer stored.
    pub vectors: u64,
    pub vectors_gone: u64,
    /// Entries that were forgotten; their digests are still there.
    pub forgotten: u64,
    /// Batches from before entries could be forgotten, of which one was: they are linked, but cannot be recomputed.
    pub batches_not_recomputed: u64,
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
    #[error("entry {entry} is blank, and no later entry says that it was forgotten")]
    Blank { entry: i64 },
}

/// Maximum number of problems that are reported.
const PROBLEMS_MAX: usize = 100;

/// A batch as it is stored.
struct Batch {
    number: i64,
    first: i64,
    last: i64,
    hash: Hash,
    bytes: i64,
    rule: Rule,
}

/// Recomputes the whole chain. `progress` receives the number of batches verified.
pub(crate) fn verify(database: &mut dyn Reading, progress: &mut dyn FnMut(u64)) -> Result<Verified> {
    let (mut last, mut before) = chain::anchor(database)?;
    let mut batches = Vec::new();
    database.rows("SELECT id, first, last, hash, bytes, rule FROM batches ORDER BY id", &[], &mut |row| {
        let (number, first, last) = (row[0].integer()?, row[1].integer()?, row[2].integer()?);
        let (hash, bytes, rule) = (chain::hash(&row[3])?, row[4].integer()?, Rule::of(&row[5])?);
        batches.push(Batch { number, first, last, hash, bytes, rule });
        Ok(())
    })?;
    let mut check = Check::default();
    for batch in batches {
        if batch.number != last + 1 {
            check.verified.note(ChainError::Gap { batch: last + 1 });
        }
        check.batch(database, &batch, &before)?;
        progress(check.verified.batches);
        (last, before) = (batch.number, batch.hash);
    }
    let mut verified = check.finish();
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
}

/// A verification under way.
#[derive(Default)]
struct Check {
    verified: Verified,
    /// Whether a batch covers digests; all after it do.
    has_digests: bool,
    /// Entries without their bodies, and those that other entries say were forgotten.
    blank: BTreeSet<i64>,
    forgotten: BTreeSet<i64>,
}

/// What was read of a batch.
struct BatchRead {
    hash: ChainHash,
    bytes: i64,
    entries: u64,
    blanks: u64,
    /// Requests, to be compared with their sessions and vectors.
    requests: Vec<Requested>,
}

struct Requested {
    id: i64,
    entry: Box<WitnessEntry>,
    /// Tenant and session, where it names a session but has no link to it: there must not have been one.
    unlinked: Option<(Value, String)>,
}

impl Check {
    fn finish(mut self) -> Verified {
        for entry in self.blank.difference(&self.forgotten) {
            self.verified.note(ChainError::Blank { entry: *entry });
        }
        self.verified.forgotten = self.blank.len() as u64;
        self.verified
    }

    fn batch(&mut self, database: &mut dyn Reading, batch: &Batch, before: &Hash) -> Result<()> {
        let read = self.read(database, batch, before)?;
        let number = batch.number;
        if read.bytes != batch.bytes {
            self.verified.note(ChainError::Size { batch: number });
        }
        // No batch goes back to the older rule: it would not have to be recomputed once an entry of it is blank.
        let is_older = batch.rule == Rule::Bodies && !self.has_digests;
        self.has_digests |= batch.rule == Rule::Digests;
        if is_older && read.blanks > 0 {
            self.verified.batches_not_recomputed += 1;
        } else if read.hash.finish() != batch.hash {
            self.verified.note(ChainError::Hash { batch: number });
        }
        let expected = (batch.last - batch.first + 1).max(0) as u64;
        if read.entries != expected {
            self.verified.note(ChainError::Missing { batch: number, expected, found: read.entries });
        }
        self.verified.entries += read.entries;
        self.verified.batches += 1;
        for Requested { id, entry, unlinked } in read.requests {
            if let Some((tenant, name)) = unlinked {
                let sql = "SELECT id FROM sessions WHERE tenant = $1 AND name = $2 AND id < $3";
                if first_row(database, sql, &[tenant, name.into(), id.into()])?.is_some() {
                    self.verified.note(ChainError::Columns { entry: id });
                }
            }
            self.verified.vector(database, (id, Part::Whole), entry.prompt_vector)?;
            self.verified.vector(database, (id, Part::Answer), entry.answer_vector)?;
        }
        Ok(())
    }

    fn read(&mut self, database: &mut dyn Reading, batch: &Batch, before: &Hash) -> Result<BatchRead> {
        let hash = ChainHash::new(before, batch.number);
        let mut read = BatchRead { hash, bytes: 0, entries: 0, blanks: 0, requests: Vec::new() };
        let sql = format!("{COLUMNS} WHERE w.id >= $1 AND w.id <= $2 AND w.batch = $3 ORDER BY w.id");
        database.rows(&sql, &[batch.first.into(), batch.last.into(), batch.number.into()], &mut |row| {
            let id = row[0].integer()?;
            let kind = row[16].optional(Value::as_text_owned)?;
            let body = row[1].as_text().unwrap_or_default();
            let Ok(entry) = LogEntry::parse(kind.as_deref(), body) else {
                self.verified.note(ChainError::Unreadable { entry: id });
                return Ok(());
            };
            if !columns_fit(row, &entry) {
                self.verified.note(ChainError::Columns { entry: id });
            }
            read.entries += 1;
            match &entry {
                LogEntry::Forgotten(ForgottenEntry { digest, bytes, .. }) => {
                    let digest = blake3::Hash::from_hex(digest).map_or(BEGINNING, |digest| *digest.as_bytes());
                    read.hash.add(id, &digest);
                    read.bytes += bytes;
                    read.blanks += 1;
                    self.blank.insert(id);
                }
                _ => {
                    match batch.rule {
                        Rule::Bodies => read.hash.add_body(id, body),
                        Rule::Digests => read.hash.add(id, &body_digest(body)),
                    }
                    read.bytes += body.len() as i64;
                }
            }
            match entry {
                LogEntry::Request(entry) => {
                    let unlinked = entry.session.as_ref().filter(|_| row[12] == Value::Null);
                    let unlinked = unlinked.map(|name| (row[15].clone(), name.clone()));
                    read.requests.push(Requested { id, entry, unlinked });
                }
                LogEntry::Annotation(annotation) => {
                    if let Said::Forgetting(forgetting) = annotation.said {
                        self.forgotten.extend(forgetting.entries);
                    }
                }
                LogEntry::Forgotten(_) => {}
            }
            Ok(())
        })?;
        Ok(read)
    }
}

impl Verified {
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
    w.prompt_tokens, w.cached_tokens, w.answer_tokens, w.session, s.name, s.tenant, w.tenant, \
    w.kind, w.about, w.response, w.end_user, w.choice \
    FROM witness w LEFT JOIN witness_bodies b ON b.id = w.id LEFT JOIN names t ON t.id = w.tenant \
    LEFT JOIN names m ON m.id = w.model LEFT JOIN sessions s ON s.id = w.session";

fn text(value: &Value) -> &str {
    value.as_text().unwrap_or_default()
}

fn columns_fit(row: &[Value], entry: &LogEntry) -> bool {
    let common = |request: &str, at_ms: i64, tenant: &str, model: &str| {
        text(&row[2]) == request && row[3] == Value::Integer(at_ms) && text(&row[7]) == tenant && text(&row[8]) == model
    };
    match entry {
        LogEntry::Request(entry) => {
            common(&entry.request, entry.at_ms, &entry.tenant, &entry.model) && request_fits(row, entry)
        }
        LogEntry::Annotation(entry) => {
            common(&entry.request, entry.at_ms, &entry.tenant, &entry.model) && annotation_fits(row, entry)
        }
        LogEntry::Forgotten(entry) => common(&entry.request, entry.at_ms, &entry.tenant, &entry.model),
    }
}

fn annotation_fits(row: &[Value], entry: &Annotation) -> bool {
    text(&row[16]) == entry.kind()
        && text(&row[17]) == entry.about.as_deref().unwrap_or_default()
        && text(&row[19]) == entry.user.as_deref().unwrap_or_default()
}

fn request_fits(row: &[Value], entry: &WitnessEntry) -> bool {
    let count = |tokens: u64| Value::Integer(i64::try_from(tokens).unwrap_or(i64::MAX));
    row[4].real().is_ok_and(|total| total == entry.latency.total_ms)
        && row[5].optional(Value::real).ok() == Some(entry.quality.as_ref().map(|quality| quality.score))
        && text(&row[6]) == entry.error.as_ref().map_or("", |error| error.kind.as_str())
        && row[9] == count(entry.tokens.prompt)
        && row[10] == count(entry.cache.cached_tokens)
        && row[11] == count(entry.tokens.answer)
        && text(&row[17]) == entry.regenerates.as_deref().unwrap_or_default()
        && text(&row[18]) == entry.response.as_deref().unwrap_or_default()
        && text(&row[19]) == entry.user.as_deref().unwrap_or_default()
        && (row[20] == Value::Null) == entry.routing.choice.is_none()
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
