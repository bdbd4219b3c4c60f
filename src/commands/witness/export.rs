//! `ruvllm witness export`

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use ruvllm_memory::ExportFormat;

use crate::flags::memory::MemoryLocationFlags;
use crate::flags::witness::WitnessFlags;
use crate::output;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Jsonl,
    Parquet,
}

/// Export entries of the witness log for other programs
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ruvllm witness export log.parquet --since 1d\n  ruvllm witness export - --error any | jq .error"
)]
pub struct Export {
    /// File to write; - is standard output
    file: PathBuf,
    /// One JSON object per line, or a Parquet table [default: by the file's name]
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<Format>,
    #[command(flatten)]
    which: WitnessFlags,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

impl Export {
    pub fn execute(self) -> Result<()> {
        let query = self.which.query()?;
        let memory = self.memory.open()?;
        let is_parquet = self.file.extension().is_some_and(|extension| extension == "parquet");
        let format = match self.format {
            Some(Format::Parquet) => ExportFormat::Parquet,
            None if is_parquet => ExportFormat::Parquet,
            Some(Format::Jsonl) | None => ExportFormat::Jsonl,
        };
        let bar = crate::output::progress::counter("entries written");
        let mut progress = |entries| bar.set_position(entries);
        if self.file.as_os_str() == "-" {
            let mut out = BufWriter::new(io::stdout().lock());
            memory.witness().export(&query, format, &mut out, &mut progress)?;
            bar.finish_and_clear();
            return Ok(out.flush()?);
        }
        if self.file.exists() {
            bail!("{} already exists; name a new file", self.file.display());
        }
        // The file appears under its name when it is complete.
        let beside = self.file.with_extension("partial");
        let cannot = || format!("cannot write {}", beside.display());
        let mut out = BufWriter::new(File::create(&beside).with_context(cannot)?);
        let exported = memory.witness().export(&query, format, &mut out, &mut progress);
        bar.finish_and_clear();
        let exported = exported.and_then(|exported| {
            let finish = out.flush().and_then(|()| std::fs::rename(&beside, &self.file));
            finish.map_err(|error| ruvllm_memory::MemoryError::Io { path: self.file.clone(), error })?;
            Ok(exported)
        });
        if exported.is_err() {
            std::fs::remove_file(&beside).ok();
        }
        output::remark(&format!("{} entries written to {}", exported?.entries, self.file.display()));
        Ok(())
    }
}
