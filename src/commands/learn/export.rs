//! `ruvllm learn export`

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use ruvllm_memory::{Example, ExampleQuery, Memory, MemoryError, now_ms, parse_span};

use crate::flags::memory::MemoryLocationFlags;
use crate::output;

/// Export what explicit feedback says, as data for a trainer
///
/// One JSON object per line: {"messages": […]}, or {"prompt", "completion"} for plain texts. The last message is the
/// correction where there is one, otherwise the answer if it was scored above 0. Answers that were corrected or scored
/// below 0 are in "rejected"; without a correction, such a line has no answer to learn.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ruvllm learn export corrections.jsonl --preferred\n  \
                        ruvllm learn export - --tenant acme --user ada | jq .rejected")]
pub struct Export {
    /// File to write; - is standard output
    file: PathBuf,
    /// Only lines with an answer to learn: that is the data of `ruvllm adapters train`
    #[arg(long)]
    preferred: bool,
    /// Only requests of this tenant [default: all]
    #[arg(long, value_name = "PATH")]
    tenant: Option<String>,
    /// Only requests of this end user
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Only answers of this model
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Only requests newer than this, such as 36h, 2d or 1w
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

impl Export {
    pub fn execute(self) -> Result<()> {
        let since = self.since.as_ref().map(|text| parse_span("--since", text)).transpose()?;
        let since_ms = since.map(|span| now_ms() - i64::try_from(span.as_millis()).unwrap_or(i64::MAX));
        let (tenant, user, model) = (self.tenant.clone(), self.user.clone(), self.model.clone());
        let query = ExampleQuery { tenant, user, model, since_ms };
        let memory = self.memory.open()?;
        if self.file.as_os_str() == "-" {
            let mut out = BufWriter::new(io::stdout().lock());
            self.write(&memory, &query, &mut out)?;
            return Ok(out.flush()?);
        }
        if self.file.exists() {
            bail!("{} already exists; name a new file", self.file.display());
        }
        // The file appears under its name when it is complete.
        let beside = self.file.with_extension("partial");
        let written = File::create(&beside).map_err(anyhow::Error::from).and_then(|file| {
            let mut out = BufWriter::new(file);
            let count = self.write(&memory, &query, &mut out)?;
            out.flush()?;
            std::fs::rename(&beside, &self.file)?;
            Ok(count)
        });
        if written.is_err() {
            std::fs::remove_file(&beside).ok();
        }
        let count = written.with_context(|| format!("cannot write {}", self.file.display()))?;
        output::remark(&format!("{count} examples written to {}", self.file.display()));
        Ok(())
    }

    /// Returns the number of lines.
    fn write(&self, memory: &Memory, query: &ExampleQuery, out: &mut dyn Write) -> Result<u64> {
        let mut count = 0;
        memory.learning().examples(query, &mut |example: Example| {
            let line = example.line().filter(|_| !self.preferred || example.preferred().is_some());
            let Some(line) = line else { return Ok(()) };
            count += 1;
            writeln!(out, "{line}").map_err(|error| MemoryError::Io { path: self.file.clone(), error })
        })?;
        Ok(count)
    }
}
