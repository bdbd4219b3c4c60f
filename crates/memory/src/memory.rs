//! The memory as the rest of RuvLLM sees it: opened here, used through a handle for each of its parts.

mod backup;
mod maintenance;
mod recall;
mod record;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::database::{Database, Reading, Writing, first_row, reading, writing};
use crate::embedded::{Durability, Embedded};
use crate::embeddings::Embeddings;
use crate::error::{MemoryError, Result};
use crate::key::KeySource;
use crate::learning::LearningStore;
use crate::names::Names;
use crate::policies::{PolicyCache, PolicyStore};
use crate::postgres::Postgres;
use crate::schema::{meta, set_meta};
use crate::sessions::SessionStore;
use crate::vector::{DIMENSION_DEFAULT, VectorCode};
use crate::witness::{Retention, WitnessLog};
use crate::workers::WorkerStore;

pub use backup::restore_backup;
pub use recall::{Item, Recalled};

/// The store's file in the memory's folder, and its key beside it.
const FILE: &str = "memory.db";
const KEY_FILE: &str = "memory.key";

/// Where the memory is stored.
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

/// Size and contents of a memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryStatus {
    pub place: String,
    /// What is encrypted, by whom, and what is not. For people to read.
    pub encryption: String,
    pub bytes: u64,
    pub embedding: Option<String>,
    pub dimension: usize,
    pub entries: u64,
    pub sessions: u64,
    pub policies: u64,
    /// What is kept to learn from.
    pub trajectories: u64,
    pub vectors: u64,
    pub edges: u64,
    /// Times of the oldest and the newest entry of the witness log.
    pub first_ms: Option<i64>,
    pub last_ms: Option<i64>,
}

#[derive(Debug)]
pub struct Memory {
    pub(crate) database: Box<dyn Database>,
    pub(crate) names: Names,
    pub(crate) policy_cache: PolicyCache,
    retention: Retention,
    dimension: usize,
    /// Time of the last maintenance, by a clock that never jumps.
    maintained: Mutex<Instant>,
}

impl Memory {
    /// Opens the memory, and creates it if it does not exist.
    pub fn open(options: MemoryOptions) -> Result<Self> {
        let dimension = DIMENSION_DEFAULT;
        let database: Box<dyn Database> = match &options.place {
            Place::Folder { folder, key } => {
                let source = key_source(folder, key.as_ref());
                Box::new(Embedded::open(&folder.join(FILE), source, dimension, options.durability)?)
            }
            Place::Postgres { url } => Box::new(Postgres::open(url, dimension)?),
        };
        let memory = Self {
            database,
            names: Names::default(),
            policy_cache: PolicyCache::default(),
            retention: options.retention,
            dimension,
            maintained: Mutex::new(Instant::now()),
        };
        memory.check_dimension()?;
        Ok(memory)
    }

    /// Returns whether a folder contains a memory.
    pub fn is_in(folder: &Path) -> bool {
        folder.join(FILE).exists()
    }

    pub fn sessions(&self) -> SessionStore<'_> {
        SessionStore(self)
    }

    pub fn policies(&self) -> PolicyStore<'_> {
        PolicyStore(self)
    }

    pub fn witness(&self) -> WitnessLog<'_> {
        WitnessLog(self)
    }

    pub fn learning(&self) -> LearningStore<'_> {
        LearningStore(self)
    }

    pub fn workers(&self) -> WorkerStore<'_> {
        WorkerStore(self)
    }

    pub fn retention(&self) -> &Retention {
        &self.retention
    }

    pub fn embeddings(&self) -> Embeddings<'_> {
        Embeddings(self)
    }

    /// Returns the number of dimensions of the stored vectors.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    pub fn status(&self) -> Result<MemoryStatus> {
        let bytes = self.database.bytes()?;
        self.read(|reading| {
            let count = |reading: &mut dyn Reading, table: &str| {
                let row = first_row(reading, &format!("SELECT count(*) FROM {table}"), &[])?;
                Ok::<_, MemoryError>(row.map_or(Ok(0), |row| row[0].integer())? as u64)
            };
            let times = first_row(reading, "SELECT min(at_ms), max(at_ms) FROM witness", &[])?;
            let time = |at: usize| times.as_ref().and_then(|row| row[at].integer().ok());
            Ok(MemoryStatus {
                place: self.database.place(),
                encryption: self.database.encryption(),
                bytes,
                embedding: meta(reading, "embedding")?,
                dimension: self.dimension,
                entries: count(reading, "witness")?,
                sessions: count(reading, "sessions")?,
                policies: count(reading, "policies")?,
                trajectories: count(reading, "trajectories")?,
                vectors: count(reading, "vectors")?,
                edges: count(reading, "edges")?,
                first_ms: time(0),
                last_ms: time(1),
            })
        })
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

    pub(crate) fn read<T>(&self, work: impl Fn(&mut dyn Reading) -> Result<T>) -> Result<T> {
        reading(&*self.database, work)
    }

    pub(crate) fn write<T>(&self, work: impl FnMut(&mut dyn Writing) -> Result<T>) -> Result<T> {
        writing(&*self.database, work)
    }

    /// Quantizes an embedding to the form in which it is stored.
    pub(crate) fn quantize(&self, embedding: Option<&[f32]>) -> Result<Option<VectorCode>> {
        Ok(embedding.map(|vector| VectorCode::new(vector, self.dimension)).transpose()?)
    }
}

fn key_source(folder: &Path, given: Option<&KeySource>) -> KeySource {
    given.cloned().unwrap_or_else(|| KeySource::File(folder.join(KEY_FILE)))
}

/// Returns the milliseconds since 1970.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
