//! The memory as the rest of RuvLLM sees it.

mod upkeep;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::clock;
use crate::database::{Database, PATIENCE, Reading, Writing, first_row, reading, reading_within, writing};
use crate::embedded::{Durability, Embedded};
use crate::error::{MemoryError, Result};
use crate::facets::{Kind, Limits, Part, entry_of};
use crate::graph::{self, Direction, Edge, EdgeKind};
use crate::key::KeySource;
use crate::names::Names;
use crate::policies::{self, Policies, Policy, PolicyCache, PolicyQuery};
use crate::postgres::Postgres;
use crate::recorder::Trace;
use crate::schema::{meta, set_meta, take_numbers};
use crate::sessions::{self, Session, SessionQuery, SessionSummary};
use crate::vector::{DIMENSION_DEFAULT, VectorCode};
use crate::witness::{
    self, ExportFormat, Exported, Found, Prepared, Retention, Verified, WitnessEntry, WitnessQuery, WitnessStats,
};

pub use upkeep::restore_backup;

/// The file in the memory's folder, and its key beside it.
const FILE: &str = "memory.db";
const KEY_FILE: &str = "memory.key";

/// Where the memory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// An encrypted file in this folder.
    Folder { folder: PathBuf, key: Option<KeySource> },
    /// The address of a PostgreSQL database.
    Postgres { url: String },
}

#[derive(Clone, Debug)]
pub struct MemoryOptions {
    pub place: Place,
    pub durability: Durability,
    pub retention: Retention,
}

impl MemoryOptions {
    pub fn in_folder(folder: impl Into<PathBuf>) -> Self {
        let place = Place::Folder { folder: folder.into(), key: None };
        Self { place, durability: Durability::default(), retention: Retention::default() }
    }
}

/// What the numbers of embeddings usually are, for those whose numbers differ much in that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standard {
    pub centre: Vec<f32>,
    pub spread: Vec<f32>,
}

/// Something that was found by its meaning.
#[derive(Clone, Debug)]
pub struct Recalled {
    pub id: i64,
    pub kind: Kind,
    pub similarity: f32,
    pub item: Item,
}

#[derive(Clone, Debug)]
pub enum Item {
    Request(Box<WitnessEntry>),
    Session(Box<Session>),
    Policy(Box<Policy>),
}

/// What is in a memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryStatus {
    pub place: String,
    /// What of it is encrypted, by whom, and what is not: for people.
    pub encryption: String,
    pub bytes: u64,
    pub embedding: Option<String>,
    pub dimension: usize,
    pub entries: u64,
    pub sessions: u64,
    pub policies: u64,
    pub vectors: u64,
    pub edges: u64,
    /// From the oldest entry of the witness log to the newest.
    pub first_ms: Option<i64>,
    pub last_ms: Option<i64>,
}

#[derive(Debug)]
pub struct Memory {
    database: Arc<dyn Database>,
    /// The same, where it is a file.
    embedded: Option<(Arc<Embedded>, KeySource)>,
    names: Names,
    policies: PolicyCache,
    retention: Retention,
    dimension: usize,
    /// When the last upkeep was, by a clock that never jumps.
    tended: Mutex<Instant>,
}

impl Memory {
    /// Opens the memory, made if it is not there.
    pub fn open(options: MemoryOptions) -> Result<Self> {
        let dimension = DIMENSION_DEFAULT;
        let (database, embedded): (Arc<dyn Database>, _) = match &options.place {
            Place::Folder { folder, key } => {
                let (path, source) = (folder.join(FILE), key_source(folder, key.as_ref()));
                let embedded = Arc::new(open_file(&path, &source, dimension, options.durability)?);
                (Arc::clone(&embedded) as Arc<dyn Database>, Some((embedded, source)))
            }
            Place::Postgres { url } => (Arc::new(Postgres::open(url, dimension)?), None),
        };
        let memory = Self {
            database,
            embedded,
            names: Names::default(),
            policies: PolicyCache::default(),
            retention: options.retention,
            dimension,
            tended: Mutex::new(Instant::now()),
        };
        memory.check_dimension()?;
        Ok(memory)
    }

    /// Whether there is a memory in a folder.
    pub fn is_in(folder: &Path) -> bool {
        folder.join(FILE).exists()
    }

    pub fn place(&self) -> String {
        self.database.place()
    }

    pub fn dimension(&self) -> usize {
        self.dimension
    }

    fn check_dimension(&self) -> Result<()> {
        let stored = self.write(|writing| {
            let stored = meta(writing, "dimension")?;
            if stored.is_none() {
                set_meta(writing, "dimension", &self.dimension.to_string())?;
            }
            Ok(stored)
        })?;
        match stored {
            Some(stored) if stored != self.dimension.to_string() => {
                Err(MemoryError::damaged(format!("its vectors have {stored} dimensions, not {}", self.dimension)))
            }
            _ => Ok(()),
        }
    }

    fn read<T>(&self, work: impl Fn(&mut dyn Reading) -> Result<T>) -> Result<T> {
        reading(&*self.database, work)
    }

    fn write<T>(&self, work: impl FnMut(&mut dyn Writing) -> Result<T>) -> Result<T> {
        writing(&*self.database, work)
    }

    #[cfg(test)]
    pub(crate) fn in_transaction<T>(&self, work: impl FnMut(&mut dyn Writing) -> Result<T>) -> Result<T> {
        self.write(work)
    }

    fn code(&self, vector: &[f32]) -> Result<VectorCode> {
        Ok(VectorCode::new(vector, self.dimension)?)
    }
}

/// Embeddings.
impl Memory {
    /// Which embeddings are stored; none until the first.
    pub fn embedding(&self) -> Result<Option<String>> {
        self.read(|reading| meta(reading, "embedding"))
    }

    /// What embeddings were measured by before they were stored, if by anything.
    pub fn standard(&self) -> Result<Option<Standard>> {
        let stored = self.read(|reading| meta(reading, "standard"))?;
        let read = |text: String| {
            serde_json::from_str(&text)
                .map_err(|_| MemoryError::damaged("the standard of its embeddings is unreadable"))
        };
        stored.map(read).transpose()
    }

    /// Notes that embeddings of this name are stored from now on, measured by `standard` unless there were some before. Those of
    /// another name could not be compared with them.
    pub fn use_embedding(&self, name: &str, standard: Option<&Standard>) -> Result<()> {
        let stored = self.write(|writing| {
            let stored = meta(writing, "embedding")?;
            if stored.is_none() {
                set_meta(writing, "embedding", name)?;
                if let Some(standard) = standard {
                    set_meta(writing, "standard", &serde_json::json!(standard).to_string())?;
                }
            }
            Ok(stored)
        })?;
        match stored {
            Some(stored) if stored != name => Err(MemoryError::OtherEmbedding { stored, given: name.to_owned() }),
            _ => Ok(()),
        }
    }

    /// Forgets all embeddings, so that others can be stored. Entries stay, and the chain of the log with them.
    pub fn forget_embeddings(&self) -> Result<()> {
        self.write(|writing| {
            writing.remove_all_vectors()?;
            writing.execute("DELETE FROM meta WHERE name IN ('embedding', 'standard')", &[]).map(drop)
        })
    }

    /// What is like a vector, of the kinds that are named (all, if none is); the most similar first.
    pub fn recall(
        &self,
        vector: &[f32],
        kinds: &[Kind],
        tenant: Option<&str>,
        count_max: usize,
    ) -> Result<Vec<Recalled>> {
        let tenant = match tenant {
            Some(name) => match self.read(|reading| self.names.find(reading, name))? {
                Some(number) => Some(number),
                None => return Ok(Vec::new()),
            },
            None => None,
        };
        let limits = Limits { kinds: kinds.to_vec(), tenant, ..Limits::default() };
        let near = self.database.nearest(vector, count_max, &limits.filter())?;
        self.read(|reading| {
            let mut recalled = Vec::with_capacity(near.len());
            for hit in &near {
                let (id, part) = entry_of(hit.id);
                // What was removed meanwhile is not found any more.
                if let Some((kind, item)) = item(reading, id, part)? {
                    recalled.push(Recalled { id, kind, similarity: hit.similarity, item });
                }
            }
            Ok(recalled)
        })
    }
}

fn item(reading: &mut dyn Reading, id: i64, part: Part) -> Result<Option<(Kind, Item)>> {
    if let Some(entry) = witness::by_id(reading, id)? {
        let kind = if part == Part::Answer { Kind::Answer } else { Kind::Request };
        return Ok(Some((kind, Item::Request(Box::new(entry)))));
    }
    if let Some(session) = sessions::by_id(reading, id)? {
        return Ok(Some((Kind::Session, Item::Session(Box::new(session)))));
    }
    Ok(policies::by_id(reading, id)?.map(|policy| (Kind::Policy, Item::Policy(Box::new(policy)))))
}

/// Sessions.
impl Memory {
    pub fn session(&self, tenant: &str, name: &str) -> Result<Option<Session>> {
        self.session_within(PATIENCE, tenant, name)
    }

    pub(crate) fn session_within(&self, patience: Duration, tenant: &str, name: &str) -> Result<Option<Session>> {
        let get = |reading: &mut dyn Reading| sessions::get(reading, &self.names, tenant, name);
        Ok(reading_within(&*self.database, patience, get)?.map(|(_, session)| session))
    }

    /// Without what was said in them.
    pub fn sessions(&self, query: &SessionQuery) -> Result<Vec<SessionSummary>> {
        self.read(|reading| sessions::list(reading, &self.names, query))
    }

    /// Stores a session in place of one of this name.
    pub fn put_session(&self, session: &Session) -> Result<()> {
        self.write(|writing| sessions::replace(writing, &self.names, session)).map(drop)
    }

    /// Whether there was one.
    pub fn remove_session(&self, tenant: &str, name: &str) -> Result<bool> {
        self.write(|writing| sessions::remove(writing, &self.names, tenant, name))
    }
}

/// Policies.
impl Memory {
    /// What holds for a tenant, built-in ones among it: all that the store has now.
    pub fn policies_in_force(&self, tenant: &str) -> Result<Arc<Policies>> {
        self.refresh_policies()?;
        Ok(self.policies.of_tenant(tenant))
    }

    /// The same as far as is known, without asking the store.
    pub fn policies_known(&self, tenant: &str) -> Arc<Policies> {
        self.policies.of_tenant(tenant)
    }

    /// Follows what others have changed.
    pub fn refresh_policies(&self) -> Result<()> {
        let version = || self.read(policies::version);
        self.policies.refresh(version, || self.policies(&PolicyQuery::default()))
    }

    /// Stored ones.
    pub fn policies(&self, query: &PolicyQuery) -> Result<Vec<Policy>> {
        let found = self.read(|reading| policies::list(reading, &self.names, query))?;
        Ok(found.into_iter().map(|(_, policy)| policy).collect())
    }

    /// Stores a policy in place of one of its type and name.
    pub fn put_policy(&self, policy: &Policy, embedding: Option<&[f32]>) -> Result<()> {
        let code = embedding.map(|vector| self.code(vector)).transpose()?;
        self.write(|writing| policies::put(writing, &self.names, policy, code.as_ref(), now_ms()))?;
        self.refresh_policies()
    }

    /// Whether there was one.
    pub fn remove_policy(&self, tenant: &str, kind: &str, name: &str) -> Result<bool> {
        let removed = self.write(|writing| policies::remove(writing, &self.names, tenant, kind, name))?;
        self.refresh_policies()?;
        Ok(removed)
    }
}

/// The witness log.
impl Memory {
    /// Stores what requests left behind, all of it or nothing.
    pub fn remember(&self, traces: Vec<Trace>) -> Result<()> {
        self.store(&traces, false)
    }

    /// The same; `is_doubtful` if it may have been stored already, by an attempt of which the end is not known.
    pub(crate) fn store(&self, traces: &[Trace], is_doubtful: bool) -> Result<()> {
        let mut turns = Vec::new();
        let mut prepared = Vec::with_capacity(traces.len());
        for trace in traces {
            if let Some(turn) = &trace.turn {
                let code = turn.embedding.as_deref().map(|vector| self.code(vector)).transpose()?;
                turns.push((turn, code));
            }
            prepared.push(self.prepare(&trace.witness)?);
        }
        let tenants: BTreeSet<&str> = turns.iter().map(|(turn, _)| turn.tenant.as_str()).collect();
        let removed = self.write(|writing| {
            if is_doubtful && is_stored(writing, &prepared)? {
                return Ok(0);
            }
            let clock_ms = if turns.is_empty() { None } else { clock::now(writing)? };
            // First, so that entries can be linked to their sessions.
            for (turn, code) in &turns {
                sessions::add_turn(writing, &self.names, turn, code.as_ref(), clock_ms.unwrap_or(turn.at_ms))?;
            }
            let mut removed = 0;
            for tenant in &tenants {
                let tenant = self.names.find_or_add(writing, tenant)?;
                removed += sessions::keep_quota(writing, tenant, self.retention.session_bytes_max)?;
            }
            witness::append(writing, &self.names, &prepared, now_ms())?;
            Ok(removed)
        })?;
        if removed > 0 {
            tracing::warn!(sessions = removed, "the oldest sessions of a tenant made room for its newer ones");
        }
        Ok(())
    }

    /// Whether entries could be stored now.
    pub(crate) fn is_writable(&self) -> bool {
        self.write(|writing| take_numbers(writing, "entry", 0)).is_ok()
    }

    /// Looks for earlier requests that are like one.
    fn prepare(&self, record: &witness::WitnessRecord) -> Result<Prepared> {
        let witness::WitnessRecord { entry, prompt_embedding, answer_embedding } = record;
        let code = |vector: Option<&[f32]>| vector.map(|vector| self.code(vector)).transpose();
        let prompt = code(prompt_embedding.as_deref())?;
        let similar = match prompt_embedding {
            Some(vector) => self.similar(&entry.tenant, vector)?,
            None => Vec::new(),
        };
        Ok(Prepared { entry: entry.clone(), prompt, answer: code(answer_embedding.as_deref())?, similar })
    }

    fn similar(&self, tenant: &str, vector: &[f32]) -> Result<Vec<(i64, f32)>> {
        let policies = self.policies_known(tenant);
        let pattern = policies.get(&("pattern".to_owned(), "default".to_owned()));
        let number = |name: &str, default: f64| {
            pattern.and_then(|policy| policy.parameters.get(name)?.as_f64()).unwrap_or(default)
        };
        let (count, least) = (number("neighbours", 3.0) as usize, number("similarity_min", 0.6) as f32);
        let Some(tenant) = self.read(|reading| self.names.find(reading, tenant))? else { return Ok(Vec::new()) };
        let limits = Limits { kinds: vec![Kind::Request], tenant: Some(tenant), ..Limits::default() };
        let near = self.database.nearest(vector, count.min(100), &limits.filter())?;
        let like = near.into_iter().filter(|hit| hit.similarity >= least);
        Ok(like.map(|hit| (entry_of(hit.id).0, hit.similarity)).collect())
    }

    pub fn search_witness(&self, query: &WitnessQuery) -> Result<Vec<Found>> {
        witness::search(&*self.database, &self.names, query)
    }

    pub fn witness(&self, id: i64) -> Result<Option<WitnessEntry>> {
        self.read(|reading| witness::by_id(reading, id))
    }

    /// By the id that the client was told, the newest first.
    pub fn witness_of_request(&self, request: &str) -> Result<Vec<(i64, WitnessEntry)>> {
        self.read(|reading| witness::by_request(reading, request))
    }

    pub fn witness_stats(&self, query: &WitnessQuery, buckets: usize) -> Result<WitnessStats> {
        self.read(|reading| witness::stats(reading, &self.names, query, buckets, now_ms()))
    }

    /// Computes the chain of hashes again. `progress` hears of each batch.
    pub fn verify_witness(&self, progress: &mut dyn FnMut(u64)) -> Result<Verified> {
        let mut verified = None;
        self.database.read(PATIENCE, &mut |reading| {
            verified = Some(witness::verify(reading, progress)?);
            Ok(())
        })?;
        verified.ok_or_else(|| MemoryError::damaged("nothing was verified"))
    }

    /// `progress` hears how many entries were written.
    pub fn export_witness(
        &self,
        query: &WitnessQuery,
        format: ExportFormat,
        out: &mut dyn std::io::Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Exported> {
        let mut exported = Exported::default();
        self.database.read(PATIENCE, &mut |reading| {
            exported = witness::export(reading, &self.names, query, format, out, progress)?;
            Ok(())
        })?;
        Ok(exported)
    }
}

/// The graph.
impl Memory {
    /// Edges of an entry, the heaviest first.
    pub fn neighbours(
        &self,
        entry: i64,
        direction: Direction,
        kind: Option<EdgeKind>,
        count_max: usize,
    ) -> Result<Vec<Edge>> {
        self.read(|reading| graph::neighbours(reading, entry, direction, kind, count_max))
    }

    /// What can be reached from an entry in a few steps, with the number of steps.
    pub fn reachable(&self, entry: i64, steps: usize, weight_min: f64, count_max: usize) -> Result<Vec<(usize, Edge)>> {
        self.read(|reading| graph::reachable(reading, entry, steps, weight_min, count_max))
    }

    /// Adds an edge, or gives it another weight.
    pub fn connect(&self, edge: Edge) -> Result<()> {
        self.write(|writing| graph::connect(writing, edge, now_ms()))
    }
}

/// Whether a batch is stored already. Waits for whoever is storing something now: that may be the same batch.
fn is_stored(writing: &mut dyn Writing, batch: &[Prepared]) -> Result<bool> {
    take_numbers(writing, "entry", 0)?;
    let Some(Prepared { entry, .. }) = batch.first() else { return Ok(true) };
    let sql = "SELECT id FROM witness WHERE request = $1 AND at_ms = $2 AND total_ms = $3";
    let values = [entry.request.as_str().into(), entry.at_ms.into(), entry.latency.total_ms.into()];
    Ok(first_row(writing, sql, &values)?.is_some())
}

fn key_source(folder: &Path, given: Option<&KeySource>) -> KeySource {
    given.cloned().unwrap_or_else(|| KeySource::File(folder.join(KEY_FILE)))
}

/// A change of keys that was cut off is brought to its end.
fn open_file(path: &Path, source: &KeySource, dimension: usize, durability: Durability) -> Result<Embedded> {
    match Embedded::open(path, source.key_of(path)?, dimension, durability) {
        Err(MemoryError::WrongKey { path: wrong }) => {
            let staged = source.staged()?.ok_or(MemoryError::WrongKey { path: wrong })?;
            let opened = Embedded::open(path, staged, dimension, durability)?;
            source.promote()?;
            Ok(opened)
        }
        opened => opened,
    }
}

/// Milliseconds since 1970.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
