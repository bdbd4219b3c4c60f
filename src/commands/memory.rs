//! `ruvllm memory`: the store of the witness log, sessions and policies.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use ruvllm_memory::{Item, Key, Kind, Recalled, restore_backup};
use ruvllm_runtime::LearnedFiles;
use serde_json::json;

use crate::flags::memory::MemoryLocationFlags;
use crate::loading::embedding;
use crate::output::{self, progress, times};

/// Search, back up, restore and rekey the memory
#[derive(Debug, Args)]
pub struct Memory {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Status(Status),
    Search(Search),
    Backup(Backup),
    Restore(Restore),
    Rekey(Rekey),
    ForgetEmbeddings(ForgetEmbeddings),
}

/// Show the contents and size of the memory
#[derive(Debug, Args)]
struct Status {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

/// Search requests, answers, sessions and policies by meaning
#[derive(Debug, Args)]
struct Search {
    /// Search text
    text: String,
    /// request, answer, session or policy; separate several with commas [default: all]
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = parse_kind)]
    kind: Vec<Kind>,
    /// Only results of this tenant [default: all]
    #[arg(long, value_name = "PATH")]
    tenant: Option<String>,
    /// Maximum number of results
    #[arg(long, short = 'n', value_name = "N", default_value_t = 10)]
    limit: u32,
    /// Print one JSON object per result
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

/// Copy the memory to a file, even while a server uses it
///
/// The copy is encrypted with the same key: keep the key with it. Adapters that were learned are copied to FILE.learned,
/// as they are: what was learned from texts can give them away.
#[derive(Debug, Args)]
struct Backup {
    /// File to write
    file: PathBuf,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

/// Replace the memory with a backup; no server may be using it
///
/// The backup is checked first. The old memory is kept beside it. Adapters that were learned come from FILE.learned.
#[derive(Debug, Args)]
struct Restore {
    /// File of the backup
    file: PathBuf,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

/// Encrypt the memory with another key; no server may be using it
#[derive(Debug, Args)]
struct Rekey {
    /// File with the new key, 64 hexadecimal digits, if the key is not in the memory's own file [default: a random key,
    /// which replaces the one in that file]
    #[arg(long, value_name = "FILE")]
    new_key_file: Option<PathBuf>,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

/// Delete all embeddings, so that those of another model can be stored
///
/// Entries stay, but can no longer be found by meaning. The hash chain of the witness log stays intact.
#[derive(Debug, Args)]
struct ForgetEmbeddings {
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

fn parse_kind(text: &str) -> Result<Kind, String> {
    Kind::from_name(text).ok_or_else(|| "must be request, answer, session or policy".to_owned())
}

impl Memory {
    pub fn execute(self) -> Result<()> {
        match self.what {
            What::Status(command) => command.execute(),
            What::Search(command) => command.execute(),
            What::Backup(command) => command.execute(),
            What::Restore(command) => command.execute(),
            What::Rekey(command) => command.execute(),
            What::ForgetEmbeddings(command) => {
                command.memory.open()?.embeddings().clear()?;
                Ok(())
            }
        }
    }
}

impl Status {
    fn execute(self) -> Result<()> {
        let status = self.memory.open()?.status()?;
        if self.json {
            return output::json(&json!({
                "place": status.place, "encryption": status.encryption, "bytes": status.bytes, "embedding": status.embedding,
                "dimension": status.dimension, "entries": status.entries, "sessions": status.sessions,
                "policies": status.policies, "trajectories": status.trajectories, "vectors": status.vectors, "edges": status.edges,
                "first_ms": status.first_ms, "last_ms": status.last_ms,
            }));
        }
        let range = match (status.first_ms, status.last_ms) {
            (Some(first), Some(last)) => format!(" from {} to {} UTC", times::moment(first), times::moment(last)),
            _ => String::new(),
        };
        let rows = [
            ("place", status.place),
            ("encrypted", status.encryption),
            ("size", output::bytes(status.bytes)),
            ("embeddings", status.embedding.unwrap_or_else(|| "none yet".to_owned())),
            ("witness log", format!("{} entries{range}", status.entries)),
            ("sessions", status.sessions.to_string()),
            ("policies", status.policies.to_string()),
            ("trajectories", format!("{} kept to learn from", status.trajectories)),
            ("vectors", format!("{} of {} dimensions", status.vectors, status.dimension)),
            ("edges", status.edges.to_string()),
        ];
        output::table(&rows.map(|(name, value)| vec![name.to_owned(), value]))
    }
}

impl Search {
    fn execute(self) -> Result<()> {
        let memory = self.memory.open()?;
        let vector = embedding::embed_text(&memory, &self.text)?;
        let found = memory.recall(&vector, &self.kind, self.tenant.as_deref(), self.limit as usize)?;
        if self.json {
            return found.iter().try_for_each(|found| {
                let item = match &found.item {
                    Item::Request(entry) => json!(entry),
                    Item::Session(session) => json!(session),
                    Item::Policy(policy) => json!(policy),
                };
                let (kind, similarity) = (found.kind.name(), found.similarity);
                output::json(&json!({ "id": found.id, "kind": kind, "similarity": similarity, "item": item }))
            });
        }
        if found.is_empty() {
            output::remark("no results");
            return Ok(());
        }
        let mut rows = vec![["LIKE", "KIND", "WHAT", "WHEN"].map(str::to_owned).to_vec()];
        rows.extend(found.iter().map(row));
        output::table(&rows)
    }
}

fn row(found: &Recalled) -> Vec<String> {
    let (what, at_ms) = match &found.item {
        Item::Request(entry) => (format!("{} ({})", entry.request, entry.model), entry.at_ms),
        Item::Session(session) => (format!("{} ({} turns)", session.name, session.turns), session.active_ms),
        Item::Policy(policy) => (format!("{}/{}", policy.kind, policy.name), policy.created_ms),
    };
    let like = format!("{:.2}", found.similarity);
    vec![like, found.kind.name().to_owned(), output::printable(&what), times::ago(at_ms)]
}

impl Backup {
    fn execute(self) -> Result<()> {
        let bar = progress::counter("pages copied");
        let memory = self.memory.open()?;
        memory.backup(&self.file, &mut |copied, _| bar.set_position(copied))?;
        bar.finish_and_clear();
        output::remark(&format!("copied to {}; it needs the same key", self.file.display()));
        let (to, wanted) = (learned_of(&self.file), memory.learning().version_adapters()?);
        let copied = self.memory.learned_files()?.copy_to(&LearnedFiles::in_folder(to.clone()), &wanted)?;
        if copied > 0 {
            output::remark(&format!("{copied} adapters that were learned: copied to {}, not encrypted", to.display()));
        }
        Ok(())
    }
}

impl Restore {
    fn execute(self) -> Result<()> {
        if self.memory.memory_postgres.is_some() {
            bail!("back up and restore a PostgreSQL database with its own tools");
        }
        let folder = self.memory.folder()?;
        restore_backup(&self.file, &folder, self.memory.key().as_ref())?;
        let wanted = self.memory.open()?.learning().version_adapters()?;
        let (from, files) = (learned_of(&self.file), self.memory.learned_files()?);
        LearnedFiles::in_folder(from.clone()).copy_to(&files, &wanted)?;
        let missing = wanted.iter().filter(|digest| files.find(digest).is_none()).count();
        if missing > 0 {
            output::remark(&format!(
                "{missing} adapters that were learned are not in {}: their versions cannot be served until they are",
                from.display()
            ));
        }
        output::remark(&format!("the memory in {} was replaced with {}", folder.display(), self.file.display()));
        Ok(())
    }
}

/// Returns the folder of what was learned that belongs to a backup.
fn learned_of(backup: &Path) -> PathBuf {
    let mut name = backup.as_os_str().to_owned();
    name.push(".learned");
    name.into()
}

impl Rekey {
    fn execute(self) -> Result<()> {
        let new = match &self.new_key_file {
            Some(path) => {
                let name = path.display().to_string();
                let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
                Some(Key::from_hex(&text, &name)?)
            }
            None => None,
        };
        self.memory.open()?.rekey(new)?;
        match (&self.new_key_file, self.memory.key()) {
            (Some(_), Some(_)) => output::remark("the memory has the new key; replace the old one with it now"),
            _ => output::remark("the memory has a new key; earlier backups still need the old one"),
        }
        Ok(())
    }
}
