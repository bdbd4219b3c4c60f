//! What a server remembers, and where.

use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use ruvllm_memory::{Durability, Memory, Retention, parse_bytes, parse_span};
use ruvllm_runtime::RequestRecorder;

use crate::embedding;
use crate::memory_flags::MemoryPlaceFlags;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Memory")]
pub struct MemoryFlags {
    /// Remember nothing: no witness log, no sessions, no policies
    #[arg(long)]
    no_memory: bool,
    /// Store what was asked and answered with the witness log too. Embeddings are stored in any case. A
    /// memory in a file is encrypted; in PostgreSQL it is as its operator keeps it
    #[arg(long)]
    memory_text: bool,
    /// Wait for the disk when the memory is written, so that not even a loss of power loses what was written
    #[arg(long)]
    memory_fsync: bool,
    /// How long the witness log is kept, such as 36h, 7d or 4w
    #[arg(long, value_name = "TIME", default_value = "7d")]
    memory_age: String,
    /// How large the memory may become; the oldest entries go then
    #[arg(long, value_name = "SIZE", default_value = "5GB")]
    memory_size: String,
    /// Forget sessions that nobody used for so long
    #[arg(long, value_name = "TIME", default_value = "30d")]
    session_age: String,
    /// How much the sessions of one tenant may take together; its own oldest go then [default: a quarter of --memory-size]
    #[arg(long, value_name = "SIZE")]
    session_size: Option<String>,
    /// The embedding model for the memory, such as minilm, fetched if need be: finds better, and reads every prompt and answer
    /// for it. Without one, the answering model's own hidden states are used, which take no time
    #[arg(long, value_name = "MODEL")]
    embedding_model: Option<String>,
    #[command(flatten)]
    place: MemoryPlaceFlags,
}

impl MemoryFlags {
    /// Opens the memory, unless there is to be none.
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
        };
        let mut options = self.place.options()?;
        options.retention = retention;
        options.durability = if self.memory_fsync { Durability::Power } else { Durability::Process };
        let memory = Memory::open(options).context("the memory cannot be opened (--no-memory does without)")?;
        let memory = Arc::new(memory);
        let embedder = match &self.embedding_model {
            Some(name) => Some(embedding::embedder(name)?),
            None => embedding::embedder_of(&memory)?,
        };
        Ok(Some(RequestRecorder::start(memory, embedder, self.memory_text)?))
    }
}
