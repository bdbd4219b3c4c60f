//! Stores what the recorder hands over: an entry of the witness log for each, and with those of requests the turn of their
//! session and the trajectory to learn from.

use std::collections::BTreeSet;

use super::{Memory, now_ms};
use crate::clock;
use crate::database::{Writing, first_row};
use crate::error::Result;
use crate::facets::{Kind, Limits, entry_of};
use crate::recorder::{Queued, Trace};
use crate::schema::take_numbers;
use crate::sessions::{self, Turn};
use crate::vector::VectorCode;
use crate::witness::{self, Annotation, Prepared, PreparedRequest, WitnessRecord};

impl Memory {
    /// Stores traces in one transaction.
    pub fn record(&self, traces: &[Trace]) -> Result<()> {
        let queued: Vec<Queued> = traces.iter().map(|trace| Queued::Trace(Box::new(trace.clone()))).collect();
        self.store(&queued, false)
    }

    pub(crate) fn annotate(&self, annotation: &Annotation) -> Result<()> {
        self.store(&[Queued::Annotation(Box::new(annotation.clone()))], false)
    }

    /// Stores entries in one transaction. `is_doubtful` if an earlier attempt, whose outcome is unknown, may have stored them.
    pub(crate) fn store(&self, queued: &[Queued], is_doubtful: bool) -> Result<()> {
        let mut turns = Vec::new();
        let mut prepared = Vec::with_capacity(queued.len());
        for queued in queued {
            let trace = match queued {
                Queued::Trace(trace) => trace,
                Queued::Annotation(annotation) => {
                    prepared.push(Prepared::Annotation(annotation.clone()));
                    continue;
                }
            };
            if let Some(turn) = &trace.turn {
                turns.push((turn, self.quantize(turn.embedding.as_deref())?));
            }
            prepared.push(Prepared::Request(Box::new(self.prepare(trace)?)));
        }
        let removed = self.write(|writing| {
            if is_doubtful && is_stored(writing, &prepared)? {
                return Ok(0);
            }
            // Sessions come first, so that entries can be linked to them.
            let removed = self.add_turns(writing, &turns)?;
            witness::append(writing, &self.names, &prepared, now_ms())?;
            Ok(removed)
        })?;
        if removed > 0 {
            tracing::warn!(sessions = removed, "the oldest sessions of a tenant made room for its newer ones");
        }
        Ok(())
    }

    /// Returns how many older sessions were removed to keep the tenants within their quota.
    fn add_turns(&self, writing: &mut dyn Writing, turns: &[(&Turn, Option<VectorCode>)]) -> Result<usize> {
        if turns.is_empty() {
            return Ok(0);
        }
        let clock_ms = clock::now(writing)?;
        for (turn, code) in turns {
            sessions::add_turn(writing, &self.names, turn, code.as_ref(), clock_ms.unwrap_or(turn.at_ms))?;
        }
        let tenants: BTreeSet<&str> = turns.iter().map(|(turn, _)| turn.tenant.as_str()).collect();
        let mut removed = 0;
        for tenant in tenants {
            let tenant = self.names.find_or_add(writing, tenant)?;
            removed += sessions::keep_quota(writing, tenant, self.retention.session_bytes_max)?;
        }
        Ok(removed)
    }

    /// Returns whether entries could be stored now.
    pub(crate) fn is_writable(&self) -> bool {
        self.write(|writing| take_numbers(writing, "entry", 0)).is_ok()
    }

    /// Quantizes the embeddings of an entry and looks for similar earlier requests.
    fn prepare(&self, trace: &Trace) -> Result<PreparedRequest> {
        let WitnessRecord { entry, prompt_embedding, answer_embedding } = &trace.witness;
        let prompt = self.quantize(prompt_embedding.as_deref())?;
        let similar = match prompt_embedding {
            Some(vector) => self.similar(&entry.tenant, vector)?,
            None => Vec::new(),
        };
        let answer = self.quantize(answer_embedding.as_deref())?;
        let (entry, trajectory) = (entry.clone(), trace.trajectory.clone());
        Ok(PreparedRequest { entry, prompt, answer, similar, trajectory })
    }

    fn similar(&self, tenant: &str, vector: &[f32]) -> Result<Vec<(i64, f32)>> {
        let policies = self.policies().known(tenant);
        let pattern = policies.get(&("pattern".to_owned(), "default".to_owned()));
        let number = |name: &str, default: f64| {
            pattern.and_then(|policy| policy.parameters.get(name)?.as_f64()).unwrap_or(default)
        };
        let (count, similarity_min) = (number("neighbours", 3.0) as usize, number("similarity_min", 0.6) as f32);
        let Some(tenant) = self.read(|reading| self.names.find(reading, tenant))? else { return Ok(Vec::new()) };
        let limits = Limits { kinds: vec![Kind::Request], tenant: Some(tenant), ..Limits::default() };
        let neighbors = self.database.nearest(vector, count.min(100), &limits.filter())?;
        let similar = neighbors.into_iter().filter(|neighbor| neighbor.similarity >= similarity_min);
        Ok(similar.map(|neighbor| (entry_of(neighbor.id).0, neighbor.similarity)).collect())
    }
}

/// Returns whether a batch is stored already. Waits for a transaction that is storing entries now: it may be the same batch.
fn is_stored(writing: &mut dyn Writing, batch: &[Prepared]) -> Result<bool> {
    take_numbers(writing, "entry", 0)?;
    let (request, at_ms, total_ms) = match batch.first() {
        Some(Prepared::Request(prepared)) => {
            (&prepared.entry.request, prepared.entry.at_ms, prepared.entry.latency.total_ms)
        }
        Some(Prepared::Annotation(annotation)) => (&annotation.request, annotation.at_ms, 0.0),
        None => return Ok(true),
    };
    let sql = "SELECT id FROM witness WHERE request = $1 AND at_ms = $2 AND total_ms = $3";
    let values = [request.as_str().into(), at_ms.into(), total_ms.into()];
    Ok(first_row(writing, sql, &values)?.is_some())
}
