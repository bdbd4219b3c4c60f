//! Measures the gain of the prefix cache: the same requests with and without it, in turns.

mod runs;
mod works;

use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use ruvllm_engine::{Core, PrefixUse, Tenant};
use serde_json::{Value, json};

use self::runs::{Runs, Settings};
use self::works::{WORKLOADS, Work};
use super::filler;
use crate::output::progress::count_bar;

/// Maximum number of concurrent requests.
pub const SEQUENCES: usize = 8;

/// Returns the tokens of the longest request.
pub fn context_min() -> usize {
    WORKLOADS.iter().map(Work::tokens_max).max().expect("there is work")
}

/// Measurements of one workload.
pub struct Comparison {
    work: &'static Work,
    cold: Runs,
    cached: Runs,
    /// Pages that were evicted and needed again.
    regretted_pages: u64,
}

/// Runs every workload `repeat` times both ways. The very first round touches all memory and is not counted.
pub fn compare(core: &mut Core, repeat: usize, interrupted: &AtomicBool) -> Result<Vec<Comparison>> {
    let bar = count_bar(WORKLOADS.len() * repeat + 1, "prefix cache");
    // A new tenant: no pages of earlier runs are found, not even on disk.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let settings =
        |prefix_use| Settings { tenant: Tenant::new(&format!("bench of {now} ns")), prefix_use, interrupted };
    let (without, with) = (settings(PrefixUse::OFF), settings(PrefixUse::default()));
    let mut all = Vec::new();
    let mut rounds = 0;
    for work in &WORKLOADS {
        let regretted_before = core.cache_stats().regretted_pages;
        let mut comparison = Comparison { work, cold: Runs::default(), cached: Runs::default(), regretted_pages: 0 };
        for _ in 0..repeat + usize::from(rounds == 0) {
            // Prompts that were never used before.
            let texts = work.texts(|tokens, number| filler(core, tokens, rounds * 1000 + number));
            for (settings, runs) in [(&without, &mut comparison.cold), (&with, &mut comparison.cached)] {
                let (answered, seconds) = settings.run(core, work, &texts)?;
                if rounds > 0 {
                    runs.add(&answered, seconds);
                }
            }
            rounds += 1;
            bar.inc(1);
        }
        comparison.regretted_pages = core.cache_stats().regretted_pages - regretted_before;
        all.push(comparison);
    }
    bar.finish_and_clear();
    Ok(all)
}

impl Comparison {
    /// Returns how many times more prompt tokens are computed without the cache.
    fn work_gain(&self) -> f64 {
        self.cold.computed_tokens as f64 / self.cached.computed_tokens as f64
    }

    fn first_token_gain(&self) -> f64 {
        self.cold.first_token_ms() / self.cached.first_token_ms()
    }

    fn total_gain(&self) -> f64 {
        self.cold.seconds() / self.cached.seconds()
    }

    /// Returns what limits the cache.
    pub fn remark(&self) -> Option<String> {
        let (name, pages) = (self.work.name, self.regretted_pages);
        (pages > 0).then(|| format!("{name}: {pages} cached pages were evicted too early; raise --kv-memory"))
    }

    pub fn to_json(&self) -> Value {
        json!({
            "work": self.work.name,
            "generated_tokens": self.work.generated,
            "hit_rate": { "tokens": self.cached.tokens_hit(), "requests": self.cached.requests_hit() },
            "without": self.cold.to_json(),
            "with": self.cached.to_json(),
            "computed_gain": self.work_gain(),
            "first_token_gain": self.first_token_gain(),
            "total_gain": self.total_gain(),
            "regretted_pages": self.regretted_pages,
        })
    }

    pub fn heading() -> Vec<String> {
        let titles = [
            ["prefix cache", "hit tokens", "requests"],
            ["computed", "with", "gain"],
            ["first token ms", "with", "gain"],
            ["total s", "with", "gain"],
        ];
        titles.as_flattened().iter().map(|title| (*title).to_owned()).collect()
    }

    pub fn row(&self) -> Vec<String> {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let (cold, cached) = (&self.cold, &self.cached);
        vec![
            self.work.name.to_owned(),
            percent(cached.tokens_hit()),
            percent(cached.requests_hit()),
            cold.computed_tokens.to_string(),
            cached.computed_tokens.to_string(),
            format!("{:.1}", self.work_gain()),
            format!("{:.1}", cold.first_token_ms()),
            format!("{:.1}", cached.first_token_ms()),
            format!("{:.1}", self.first_token_gain()),
            format!("{:.2}", cold.seconds()),
            format!("{:.2}", cached.seconds()),
            format!("{:.1}", self.total_gain()),
        ]
    }
}
