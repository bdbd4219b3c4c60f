//! Aggregates of quality, latency, tokens and errors, by time and by model.

use std::collections::BTreeMap;

use serde::Serialize;

use super::query::{Kinds, WitnessQuery, conditions};
use crate::database::Reading;
use crate::error::Result;
use crate::names::Names;

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

/// An interval of the trend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bucket {
    pub from_ms: i64,
    pub requests: u64,
    pub errors: u64,
    /// Mean quality of the entries that have one.
    pub quality: Option<f64>,
    pub latency_p50_ms: f64,
    pub latency_p99_ms: f64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub answer_tokens: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ModelStats {
    pub requests: u64,
    pub errors: u64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub answer_tokens: u64,
    pub quality: Option<f64>,
    pub latency_ms: Percentiles,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WitnessStats {
    pub since_ms: i64,
    pub until_ms: i64,
    pub all: ModelStats,
    pub models: BTreeMap<String, ModelStats>,
    pub errors: BTreeMap<String, u64>,
    /// Equal intervals, including empty ones.
    pub trend: Vec<Bucket>,
}

/// Running totals of some entries.
#[derive(Debug, Default)]
struct Tally {
    errors: u64,
    quality: (f64, u64),
    latencies: Vec<f64>,
    prompt: u64,
    cached: u64,
    answer: u64,
}

impl Tally {
    fn quality(&self) -> Option<f64> {
        (self.quality.1 > 0).then(|| self.quality.0 / self.quality.1 as f64)
    }

    fn percentiles(&mut self) -> Percentiles {
        self.latencies.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (share * self.latencies.len() as f64).ceil() as usize;
            self.latencies.get(rank.saturating_sub(1)).copied().unwrap_or_default()
        };
        Percentiles { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
    }

    fn model(mut self) -> ModelStats {
        ModelStats {
            requests: self.latencies.len() as u64,
            errors: self.errors,
            prompt_tokens: self.prompt,
            cached_tokens: self.cached,
            answer_tokens: self.answer,
            quality: self.quality(),
            latency_ms: self.percentiles(),
        }
    }

    fn bucket(mut self, from_ms: i64) -> Bucket {
        let latency = self.percentiles();
        Bucket {
            from_ms,
            requests: self.latencies.len() as u64,
            errors: self.errors,
            quality: self.quality(),
            latency_p50_ms: latency.p50,
            latency_p99_ms: latency.p99,
            prompt_tokens: self.prompt,
            cached_tokens: self.cached,
            answer_tokens: self.answer,
        }
    }
}

/// The columns of an entry that are aggregated.
struct Counted {
    at_ms: i64,
    model: u32,
    total_ms: f64,
    quality: Option<f64>,
    error: Option<String>,
    tokens: [u64; 3],
}

impl Counted {
    fn add_to(&self, tally: &mut Tally) {
        tally.latencies.push(self.total_ms);
        tally.errors += u64::from(self.error.is_some());
        if let Some(quality) = self.quality {
            tally.quality = (tally.quality.0 + quality, tally.quality.1 + 1);
        }
        let [prompt, cached, answer] = self.tokens;
        tally.prompt += prompt;
        tally.cached += cached;
        tally.answer += answer;
    }
}

/// Aggregates the entries that a query selects, ignoring its embedding and count. The trend has `buckets` intervals from the
/// query's start, or the first entry, to its end, or `now_ms`.
pub(crate) fn stats(
    database: &mut dyn Reading,
    names: &Names,
    query: &WitnessQuery,
    buckets: usize,
    now_ms: i64,
) -> Result<WitnessStats> {
    let entries = read(database, names, query)?;
    let first = entries.iter().map(|entry| entry.at_ms).min();
    let until_ms = query.until_ms.unwrap_or(now_ms);
    let since_ms = query.since_ms.or(first).unwrap_or(until_ms).min(until_ms);
    let buckets = buckets.max(1);
    let width_ms = ((until_ms - since_ms) / buckets as i64 + 1).max(1);
    let (mut all, mut errors) = (Tally::default(), BTreeMap::new());
    let mut models: BTreeMap<u32, Tally> = BTreeMap::new();
    let mut trend: Vec<Tally> = (0..buckets).map(|_| Tally::default()).collect();
    for entry in &entries {
        entry.add_to(&mut all);
        entry.add_to(models.entry(entry.model).or_default());
        let bucket = ((entry.at_ms - since_ms) / width_ms).clamp(0, buckets as i64 - 1);
        entry.add_to(&mut trend[bucket as usize]);
        if let Some(error) = &entry.error {
            *errors.entry(error.clone()).or_default() += 1;
        }
    }
    let names = Names::all(database)?;
    let name = |number: u32| names.get(&number).cloned().unwrap_or_default();
    let trend =
        trend.into_iter().enumerate().map(|(at, tally)| tally.bucket(since_ms + at as i64 * width_ms)).collect();
    let models = models.into_iter().map(|(number, tally)| (name(number), tally.model())).collect();
    Ok(WitnessStats { since_ms, until_ms, all: all.model(), models, errors, trend })
}

fn read(database: &mut dyn Reading, names: &Names, query: &WitnessQuery) -> Result<Vec<Counted>> {
    let Some((conditions, params)) = conditions(database, names, query, Kinds::Requests)? else {
        return Ok(Vec::new());
    };
    let sql = format!(
        "SELECT w.at_ms, w.model, w.total_ms, w.quality, w.error, w.prompt_tokens, w.cached_tokens, w.answer_tokens \
         FROM witness w WHERE {conditions}"
    );
    let mut entries = Vec::new();
    database.rows(&sql, &params, &mut |row| {
        let count =
            |column: usize| Ok::<_, crate::MemoryError>(u64::try_from(row[column].integer()?).unwrap_or_default());
        entries.push(Counted {
            at_ms: row[0].integer()?,
            model: u32::try_from(row[1].integer()?).unwrap_or_default(),
            total_ms: row[2].real()?,
            quality: row[3].optional(|value| value.real())?,
            error: row[4].optional(|value| value.as_text().map(str::to_owned))?,
            tokens: [count(5)?, count(6)?, count(7)?],
        });
        Ok(())
    })?;
    Ok(entries)
}
