//! `ruvllm witness stats`

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use ruvllm_memory::{Bucket, ModelStats, WitnessStats};
use serde_json::json;

use crate::flags::memory::MemoryLocationFlags;
use crate::flags::witness::WitnessFlags;
use crate::output::plot::{self, Line};
use crate::output::{self, times};

/// Show statistics of the witness log: quality, latency and tokens, by model and over time
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ruvllm witness stats --since 1d\n  ruvllm witness stats --since 1w --report week.html"
)]
pub struct Stats {
    #[command(flatten)]
    which: WitnessFlags,
    /// Number of intervals that the time range is divided into
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=1000))]
    buckets: u32,
    /// Write an HTML page with plots
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

/// The series over time: a title, and the value of each interval.
type Trend = (&'static str, fn(&Bucket) -> Option<f64>);

const TRENDS: [Trend; 6] = [
    ("Requests", |bucket| Some(bucket.requests as f64)),
    ("Quality", |bucket| bucket.quality),
    ("Latency, median (ms)", |bucket| (bucket.requests > 0).then_some(bucket.latency_p50_ms)),
    ("Latency, p99 (ms)", |bucket| (bucket.requests > 0).then_some(bucket.latency_p99_ms)),
    ("Generated tokens", |bucket| Some(bucket.answer_tokens as f64)),
    ("Cached share of prompts (%)", |bucket| {
        (bucket.prompt_tokens > 0).then(|| 100.0 * bucket.cached_tokens as f64 / bucket.prompt_tokens as f64)
    }),
];

impl Stats {
    pub fn execute(self) -> Result<()> {
        let query = self.which.query()?;
        let stats = self.memory.open()?.witness().stats(&query, self.buckets as usize)?;
        if let Some(path) = &self.report {
            std::fs::write(path, page(&stats)).with_context(|| format!("cannot write {}", path.display()))?;
            output::remark(&format!("plots are in {}", path.display()));
        }
        if self.json {
            return output::json(&json!(stats));
        }
        if stats.all.requests == 0 {
            output::remark("there are no requests in this range");
            return Ok(());
        }
        output::line(&range(&stats))?;
        output::line("")?;
        output::table(&table(&stats))?;
        output::line("")?;
        for (title, value) in TRENDS {
            let values: Vec<Option<f64>> = stats.trend.iter().map(value).collect();
            let most = values.iter().flatten().copied().fold(0.0, f64::max);
            let most = if title == "Quality" { 1.0 } else { most };
            output::line(&format!("{title:<38} {} 0..{}", plot::blocks(&values, most), plot::short(most)))?;
        }
        for (kind, count) in &stats.errors {
            output::line(&format!("error {kind}: {count}"))?;
        }
        Ok(())
    }
}

fn range(stats: &WitnessStats) -> String {
    format!("{} to {} UTC", times::moment(stats.since_ms), times::moment(stats.until_ms))
}

fn table(stats: &WitnessStats) -> Vec<Vec<String>> {
    let heading = ["MODEL", "REQUESTS", "ERRORS", "QUALITY", "P50", "P90", "P99", "PROMPT", "CACHED", "ANSWERED"];
    let row = |name: &str, model: &ModelStats| {
        let ms = |ms: f64| format!("{} ms", plot::short(ms));
        vec![
            name.to_owned(),
            model.requests.to_string(),
            model.errors.to_string(),
            model.quality.map_or_else(String::new, |quality| format!("{quality:.2}")),
            ms(model.latency_ms.p50),
            ms(model.latency_ms.p90),
            ms(model.latency_ms.p99),
            model.prompt_tokens.to_string(),
            format!("{:.0} %", 100.0 * model.cached_tokens as f64 / model.prompt_tokens.max(1) as f64),
            model.answer_tokens.to_string(),
        ]
    };
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(stats.models.iter().map(|(name, model)| row(name, model)));
    if stats.models.len() > 1 {
        rows.push(row("all", &stats.all));
    }
    rows
}

fn page(stats: &WitnessStats) -> String {
    let mut page = plot::page("ruvllm witness stats", &range(stats));
    let (since, until) = (times::moment(stats.since_ms), times::moment(stats.until_ms));
    // With the date, unless all have the same.
    let shown = if since[..10] == until[..10] { 11..16 } else { 5..16 };
    let places: Vec<String> =
        stats.trend.iter().map(|bucket| times::moment(bucket.from_ms)[shown.clone()].to_owned()).collect();
    for (title, value) in TRENDS {
        let lines = [Line { points: stats.trend.iter().map(value).collect() }];
        page.push_str(&plot::plot(title, "time (UTC)", &places, &lines));
    }
    page.push_str(&plot::table(&table(stats)));
    page.push_str("</html>\n");
    page
}
