//! Results of a run.

use serde_json::{Value, json};

use super::target::Sample;

/// Latency goals of an answer.
#[derive(Clone, Copy, Debug)]
pub struct Slo {
    pub ttft_ms: f64,
    pub inter_token_ms: f64,
}

/// Percentiles of times in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Percentiles {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
}

impl Percentiles {
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        // Returns the smallest value that this fraction of all values does not exceed.
        let at = |share: f64| match values.len() {
            0 => 0.0,
            count => values[((count as f64 * share).ceil() as usize).clamp(1, count) - 1],
        };
        Self { p50: at(0.5), p95: at(0.95), p99: at(0.99) }
    }

    pub fn to_json(self) -> Value {
        json!({ "p50": self.p50, "p95": self.p95, "p99": self.p99 })
    }
}

/// A workload with one number of clients.
#[derive(Clone, Debug)]
pub struct Summary {
    pub workload: &'static str,
    pub concurrency: usize,
    pub requests: usize,
    pub errors: usize,
    /// The first error.
    pub error: Option<String>,
    pub seconds: f64,
    pub generated_tokens: u64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub ttft: Percentiles,
    pub inter_token: Percentiles,
    pub total: Percentiles,
    /// Answers that met the goals.
    pub good: usize,
}

impl Summary {
    pub fn of(
        workload: &'static str,
        concurrency: usize,
        samples: &[Sample],
        errors: &[String],
        seconds: f64,
        slo: Slo,
    ) -> Self {
        let percentiles = |of: fn(&Sample) -> f64| Percentiles::of(samples.iter().map(of).collect());
        let is_good = |s: &&Sample| s.ttft_ms <= slo.ttft_ms && s.inter_token_ms <= slo.inter_token_ms;
        Self {
            workload,
            concurrency,
            requests: samples.len() + errors.len(),
            errors: errors.len(),
            error: errors.first().cloned(),
            seconds,
            generated_tokens: samples.iter().map(|sample| sample.generated_tokens).sum(),
            prompt_tokens: samples.iter().map(|sample| sample.prompt_tokens).sum(),
            cached_tokens: samples.iter().map(|sample| sample.cached_tokens).sum(),
            ttft: percentiles(|sample| sample.ttft_ms),
            inter_token: percentiles(|sample| sample.inter_token_ms),
            total: percentiles(|sample| sample.total_ms),
            good: samples.iter().filter(is_good).count(),
        }
    }

    pub fn tok_s(&self) -> f64 {
        self.generated_tokens as f64 / self.seconds
    }

    /// Returns the number of answers per second that met the goals.
    pub fn goodput(&self) -> f64 {
        self.good as f64 / self.seconds
    }

    /// Returns the fraction of prompt tokens that were cached.
    pub fn cached_share(&self) -> f64 {
        self.cached_tokens as f64 / (self.prompt_tokens as f64).max(1.0)
    }

    pub fn to_json(&self) -> Value {
        json!({
            "workload": self.workload, "concurrency": self.concurrency, "requests": self.requests, "errors": self.errors,
            "error": self.error, "seconds": self.seconds, "generated_tok_s": self.tok_s(),
            "requests_s": (self.requests - self.errors) as f64 / self.seconds, "goodput_s": self.goodput(),
            "prompt_tokens": self.prompt_tokens, "cached_tokens": self.cached_tokens,
            "generated_tokens": self.generated_tokens, "ttft_ms": self.ttft.to_json(),
            "inter_token_ms": self.inter_token.to_json(), "total_ms": self.total.to_json(),
        })
    }

    pub const HEADING: [&str; 9] =
        ["workload", "clients", "tok/s", "good/s", "ttft p50", "p99 ms", "token p50", "p99 ms", "cached"];

    pub fn row(&self) -> Vec<String> {
        vec![
            self.workload.to_owned(),
            self.concurrency.to_string(),
            format!("{:.1}", self.tok_s()),
            format!("{:.2}", self.goodput()),
            format!("{:.1}", self.ttft.p50),
            format!("{:.1}", self.ttft.p99),
            format!("{:.1}", self.inter_token.p50),
            format!("{:.1}", self.inter_token.p99),
            format!("{:.0} %", self.cached_share() * 100.0),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let Percentiles { p50, p95, p99 } = Percentiles::of((1..=100).map(f64::from).collect());
        assert_eq!((p50, p95, p99), (50.0, 95.0, 99.0));
        let few = Percentiles::of(vec![3.0, 1.0]);
        assert_eq!((few.p50, few.p99), (1.0, 3.0));
        assert_eq!(Percentiles::of(Vec::new()).p50, 0.0);
    }

    #[test]
    fn only_answers_within_both_limits_are_good() {
        let sample = |ttft_ms, inter_token_ms| Sample { ttft_ms, inter_token_ms, ..Sample::default() };
        let samples = [sample(10.0, 5.0), sample(99.0, 5.0), sample(10.0, 50.0)];
        let summary =
            Summary::of("chat", 1, &samples, &["lost".to_owned()], 2.0, Slo { ttft_ms: 50.0, inter_token_ms: 20.0 });
        assert_eq!((summary.good, summary.requests, summary.errors), (1, 4, 1));
        assert_eq!(summary.goodput(), 0.5);
    }
}
