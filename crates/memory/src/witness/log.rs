//! The witness log of a memory, for those who read it. Entries are written by [`Memory::record`].

use std::io::Write;

use super::{Annotation, ExportFormat, Exported, Found, Verified, WitnessEntry, WitnessQuery, WitnessStats};
use crate::Memory;
use crate::database::PATIENCE;
use crate::error::{MemoryError, Result};
use crate::graph::{self, Edge};
use crate::memory::now_ms;

/// Handle to the witness log, from [`Memory::witness`].
#[derive(Clone, Copy, Debug)]
pub struct WitnessLog<'a>(pub(crate) &'a Memory);

impl WitnessLog<'_> {
    pub fn search(&self, query: &WitnessQuery) -> Result<Vec<Found>> {
        super::search(&*self.0.database, &self.0.names, query)
    }

    pub fn get(&self, id: i64) -> Result<Option<WitnessEntry>> {
        self.0.read(|reading| super::by_id(reading, id))
    }

    /// Returns the feedback on a request, the oldest first. The last counts.
    pub fn feedback(&self, entry: &WitnessEntry) -> Result<Vec<Annotation>> {
        self.0.read(|reading| super::annotations(reading, &self.0.names, entry))
    }

    /// Returns the requests with an id that clients received, of the request or of its response, the newest first.
    pub fn by_request(&self, request: &str) -> Result<Vec<(i64, WitnessEntry)>> {
        self.0.read(|reading| super::by_request(reading, request))
    }

    /// Returns what can be reached from an entry in at most `steps`, with the number of steps, the nearest first. Edges
    /// lighter than `weight_min` are not followed.
    pub fn reachable(&self, entry: i64, steps: usize, weight_min: f64, count_max: usize) -> Result<Vec<(usize, Edge)>> {
        self.0.read(|reading| graph::reachable(reading, entry, steps, weight_min, count_max))
    }

    pub fn stats(&self, query: &WitnessQuery, buckets: usize) -> Result<WitnessStats> {
        self.0.read(|reading| super::stats(reading, &self.0.names, query, buckets, now_ms()))
    }

    /// Recomputes the hash chain. `progress` receives the number of batches verified.
    pub fn verify(&self, progress: &mut dyn FnMut(u64)) -> Result<Verified> {
        let mut verified = None;
        self.0.database.read(PATIENCE, &mut |reading| {
            verified = Some(super::verify(reading, progress)?);
            Ok(())
        })?;
        verified.ok_or_else(|| MemoryError::damaged("nothing was verified"))
    }

    /// Writes the selected entries to `out`. `progress` receives the number of entries written.
    pub fn export(
        &self,
        query: &WitnessQuery,
        format: ExportFormat,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Exported> {
        let mut exported = Exported::default();
        self.0.database.read(PATIENCE, &mut |reading| {
            exported = super::export(reading, &self.0.names, query, format, out, progress)?;
            Ok(())
        })?;
        Ok(exported)
    }
}
