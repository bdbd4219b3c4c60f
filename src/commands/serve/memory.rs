//! What a server stores in the memory, and where.

use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use ruvllm_memory::{Durability, Memory, Retention, parse_bytes, parse_span};
use ruvllm_runtime::{LearnedFiles, RequestRecorder};

use crate::flags::memory::MemoryLocationFlags;
use crate::flags::size::parse_size;
use crate::loading::embedding;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Memory")]
pub struct MemoryFlags {
    /// Store nothing: no witness log, no sessions, no policies
    #[arg(long)]
    no_memory: bool,
    /// Store prompts and answers in the witness log. Embeddings are always stored. A memory in a file is encrypted;
    /// PostgreSQL stores what its operator configured
    #[arg(long)]
    memory_text: bool,
    /// Sync the disk on every write, so that not even a power failure loses entries
    #[arg(long)]
    memory_fsync: bool,
    /// Retention of the witness log, such as 36h, 7d or 4w
    #[arg(long, value_name = "TIME", default_value = "7d")]
    memory_age: String,
    /// Maximum size of the memory; the oldest entries are deleted first
    #[arg(long, value_name = "SIZE", default_value = "5GB")]
    memory_size: String,
    /// Delete sessions that were not used for this long
    #[arg(long, value_name = "TIME", default_value = "30d")]
    session_age: String,
    /// Maximum size of one tenant's sessions; its oldest are deleted first [default: a quarter of --memory-size]
    #[arg(long, value_name = "SIZE")]
    session_size: Option<String>,
    /// Keep the texts and token ids of prompts and answers to learn from, of local users and of all keys that do not say
    /// otherwise (`ruvllm keys`), and answer them with what was learned. Encrypted like the rest of a memory in a file;
    /// `ruvllm learn` shows and forgets it
    #[arg(long, conflicts_with = "no_memory")]
    learn: bool,
    /// How long that is kept
    #[arg(long, value_name = "TIME", default_value = "90d")]
    learn_retention: String,
    /// Maximum size of it; the oldest of the tenant that has most are deleted first [default: a fifth of --memory-size]
    #[arg(long, value_name = "SIZE")]
    learn_size: Option<String>,
    /// Do not draw answers with what was corrected earlier in the same session, by the same user or for the same
    /// tenant. By default they are, for those that opted in to learning
    #[arg(long)]
    no_recall: bool,
    /// Maximum memory of corrections, within --memory; those of the sessions, users and tenants that were not used for
    /// longest make room, and are read again when they come back
    #[arg(long, value_name = "SIZE", default_value = "32M", value_parser = parse_size, conflicts_with = "no_recall")]
    recall_memory: u64,
    /// Embedding model for the memory, such as minilm, fetched if necessary. It finds more, but has to process every
    /// prompt and answer. Without one, the hidden states of the answering model are used, at no cost
    #[arg(long, value_name = "MODEL")]
    embedding_model: Option<String>,
    #[command(flatten)]
    place: MemoryLocationFlags,
}

impl MemoryFlags {
    /// Returns whether requests are kept to learn from, where a key does not say.
    pub fn learns(&self) -> bool {
        self.learn
    }

    /// Returns the adapters that were learned, unless the memory is turned off.
    pub fn learned_files(&self) -> Result<Option<LearnedFiles>> {
        if self.no_memory { Ok(None) } else { self.place.learned_files().map(Some) }
    }

    /// Opens the memory, unless it is turned off.
    pub fn start(&self) -> Result<Option<RequestRecorder>> {
        if self.no_memory {
            return Ok(None);
        }
        let bytes_max = parse_bytes("--memory-size", &self.memory_size)?;
        let session_bytes_max = match &self.session_size {
            Some(size) => parse_bytes("--session-size", size)?,
            None => Retention::session_share(bytes_max),
        };
        let retention = Retention {
            age_max: parse_span("--memory-age", &self.memory_age)?,
            bytes_max,
            session_bytes_max,
            session_age_max: parse_span("--session-age", &self.session_age)?,
            learn_age_max: parse_span("--learn-retention", &self.learn_retention)?,
            learn_bytes_max: match &self.learn_size {
                Some(size) => parse_bytes("--learn-size", size)?,
                None => Retention::learn_share(bytes_max),
            },
        };
        let mut options = self.place.options()?;
        options.retention = retention;
        options.durability = if self.memory_fsync { Durability::Power } else { Durability::Process };
        let memory = Memory::open(options).context("cannot open the memory (--no-memory runs without it)")?;
        memory.learning().note_retention()?;
        let memory = Arc::new(memory);
        let embedder = match &self.embedding_model {
            Some(name) => Some(embedding::embedder(name)?),
            None => embedding::embedder_of(&memory)?,
        };
        let recall_bytes = usize::try_from(self.recall_memory).unwrap_or(usize::MAX);
        let recall_bytes = (!self.no_recall).then_some(recall_bytes);
        Ok(Some(RequestRecorder::start_with_recall(memory, embedder, self.memory_text, recall_bytes)?))
    }
}
