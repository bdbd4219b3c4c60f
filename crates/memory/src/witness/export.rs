//! Exports the log for other programs.

use std::io::{self, Write};

use super::annotation::{Annotation, ForgottenEntry, LogEntry};
use super::entry::WitnessEntry;
use super::parquet::{Cell, Column, ColumnType, ParquetWriter};
use super::query::{Kinds, WitnessQuery, conditions};
use crate::database::{Reading, Value};
use crate::error::{MemoryError, Result};
use crate::names::Names;

/// Entries held in memory at a time; in Parquet, the size of a row group.
const AT_ONCE: usize = 5_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// One JSON object per line.
    Jsonl,
    Parquet,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    pub entries: u64,
}

/// Writes the entries of all kinds that a query selects, the oldest first. Ignores the query's embedding and count.
pub(crate) fn export(
    database: &mut dyn Reading,
    names: &Names,
    query: &WitnessQuery,
    format: ExportFormat,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64),
) -> Result<Exported> {
    let failed = |error: io::Error| MemoryError::Io { path: "the export".into(), error };
    let mut exported = Exported::default();
    match format {
        ExportFormat::Jsonl => {
            each_portion(database, names, query, &mut |portion| {
                portion.iter().try_for_each(|row| row.write_line(out)).map_err(failed)?;
                exported.entries += portion.len() as u64;
                progress(exported.entries);
                Ok(())
            })?;
        }
        ExportFormat::Parquet => {
            let mut writer = ParquetWriter::new(out, &COLUMNS).map_err(failed)?;
            each_portion(database, names, query, &mut |portion| {
                let cells: Vec<Vec<Cell<'_>>> = portion.iter().map(Row::cells).collect();
                writer.write_rows(&cells).map_err(failed)?;
                exported.entries += portion.len() as u64;
                progress(exported.entries);
                Ok(())
            })?;
            writer.finish().map_err(failed)?;
        }
    }
    Ok(exported)
}

struct Row {
    id: i64,
    batch: i64,
    body: String,
    kind: &'static str,
    /// The request, or as much of one as an entry of another kind has: no figures.
    entry: WitnessEntry,
    /// The request that it is about, or regenerates.
    about: Option<String>,
    score: Option<f64>,
}

const COLUMNS: [Column; 26] = [
    Column { name: "id", kind: ColumnType::Integer, is_optional: false },
    Column { name: "batch", kind: ColumnType::Integer, is_optional: false },
    Column { name: "request", kind: ColumnType::Text, is_optional: false },
    Column { name: "at", kind: ColumnType::TimestampMs, is_optional: false },
    Column { name: "tenant", kind: ColumnType::Text, is_optional: false },
    Column { name: "session", kind: ColumnType::Text, is_optional: true },
    Column { name: "model", kind: ColumnType::Text, is_optional: false },
    Column { name: "quality", kind: ColumnType::Real, is_optional: true },
    Column { name: "queue_ms", kind: ColumnType::Real, is_optional: false },
    Column { name: "embedding_ms", kind: ColumnType::Real, is_optional: false },
    Column { name: "retrieval_ms", kind: ColumnType::Real, is_optional: false },
    Column { name: "routing_ms", kind: ColumnType::Real, is_optional: false },
    Column { name: "prefill_ms", kind: ColumnType::Real, is_optional: false },
    Column { name: "decode_ms", kind: ColumnType::Real, is_optional: false },
    Column { name: "total_ms", kind: ColumnType::Real, is_optional: false },
    Column { name: "prompt_tokens", kind: ColumnType::Integer, is_optional: false },
    Column { name: "cached_tokens", kind: ColumnType::Integer, is_optional: false },
    Column { name: "answer_tokens", kind: ColumnType::Integer, is_optional: false },
    Column { name: "finish", kind: ColumnType::Text, is_optional: true },
    Column { name: "error", kind: ColumnType::Text, is_optional: true },
    Column { name: "error_message", kind: ColumnType::Text, is_optional: true },
    Column { name: "body", kind: ColumnType::Json, is_optional: false },
    Column { name: "kind", kind: ColumnType::Text, is_optional: false },
    Column { name: "about", kind: ColumnType::Text, is_optional: true },
    Column { name: "user", kind: ColumnType::Text, is_optional: true },
    Column { name: "score", kind: ColumnType::Real, is_optional: true },
];

impl Row {
    fn new(id: i64, batch: i64, kind: Option<&str>, body: String) -> Result<Self> {
        let entry = LogEntry::parse(kind, &body);
        let entry = entry.map_err(|error| MemoryError::damaged(format!("an entry cannot be read: {error}")))?;
        let kind = entry.kind();
        let (entry, about, score) = match entry {
            LogEntry::Request(entry) => {
                let about = entry.regenerates.clone();
                (*entry, about, None)
            }
            LogEntry::Annotation(entry) => {
                let score = entry.feedback().and_then(|feedback| feedback.score);
                let Annotation { request, at_ms, tenant, user, model, about, .. } = *entry;
                (WitnessEntry { request, at_ms, tenant, user, model, ..WitnessEntry::default() }, about, score)
            }
            LogEntry::Forgotten(ForgottenEntry { request, at_ms, tenant, model, .. }) => {
                (WitnessEntry { request, at_ms, tenant, model, ..WitnessEntry::default() }, None, None)
            }
        };
        Ok(Self { id, batch, body, kind, entry, about, score })
    }

    fn write_line(&self, out: &mut dyn Write) -> io::Result<()> {
        // The body is an object that we wrote: the rest of its text follows the opening brace.
        let rest = self.body.trim_start().strip_prefix('{').unwrap_or("}");
        writeln!(out, "{{\"id\":{},\"batch\":{},{rest}", self.id, self.batch)
    }

    /// Returns the cells in the order of `COLUMNS`.
    fn cells(&self) -> Vec<Cell<'_>> {
        let entry = &self.entry;
        let count = |tokens: u64| Cell::Integer(i64::try_from(tokens).unwrap_or(i64::MAX));
        let latency = entry.latency;
        vec![
            Cell::Integer(self.id),
            Cell::Integer(self.batch),
            Cell::Text(&entry.request),
            Cell::Integer(entry.at_ms),
            Cell::Text(&entry.tenant),
            Cell::optional(entry.session.as_deref()),
            Cell::Text(&entry.model),
            entry.quality.as_ref().map_or(Cell::Null, |quality| Cell::Real(quality.score)),
            Cell::Real(latency.queue_ms),
            Cell::Real(latency.embedding_ms),
            Cell::Real(latency.retrieval_ms),
            Cell::Real(latency.routing_ms),
            Cell::Real(latency.prefill_ms),
            Cell::Real(latency.decode_ms),
            Cell::Real(latency.total_ms),
            count(entry.tokens.prompt),
            count(entry.cache.cached_tokens),
            count(entry.tokens.answer),
            Cell::optional(entry.finish.as_deref()),
            Cell::optional(entry.error.as_ref().map(|error| error.kind.as_str())),
            Cell::optional(entry.error.as_ref().map(|error| error.message.as_str())),
            Cell::Text(&self.body),
            Cell::Text(self.kind),
            Cell::optional(self.about.as_deref()),
            Cell::optional(entry.user.as_deref()),
            self.score.map_or(Cell::Null, Cell::Real),
        ]
    }
}

fn each_portion(
    database: &mut dyn Reading,
    names: &Names,
    query: &WitnessQuery,
    each: &mut dyn FnMut(&[Row]) -> Result<()>,
) -> Result<()> {
    let Some((conditions, params)) = conditions(database, names, query, Kinds::All)? else { return Ok(()) };
    let mut last = 0;
    loop {
        let sql = format!(
            "SELECT w.id, w.batch, b.body, w.kind FROM witness w JOIN witness_bodies b ON b.id = w.id \
             WHERE {conditions} AND w.id > {last} ORDER BY w.id LIMIT {AT_ONCE}"
        );
        let mut portion = Vec::new();
        database.rows(&sql, &params, &mut |row| {
            let kind = row[3].optional(Value::as_text_owned)?;
            portion.push(Row::new(row[0].integer()?, row[1].integer()?, kind.as_deref(), row[2].as_text_owned()?)?);
            Ok(())
        })?;
        if let Some(row) = portion.last() {
            last = row.id;
            each(&portion)?;
        }
        if portion.len() < AT_ONCE {
            return Ok(());
        }
    }
}
