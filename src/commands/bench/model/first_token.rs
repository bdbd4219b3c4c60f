//! Where the time to the first token goes, and how near the products come to what the machine can do.

use std::time::{Duration, Instant};

use anyhow::Result;
use ruvllm_kernels::ceilings::Ceilings;
use ruvllm_runner::PassTimes;
use ruvllm_runtime::{Engine, PrefixUse, Prompt, Request, Sampling, Speculation};
use serde_json::{Value, json};

/// A sentence that prompts are made of.
const SENTENCE: &str = "The keeper counted the ships that passed before noon, wrote their names into a book, and went \
    back up the stairs to trim the lamp before the fog came in from the sea. ";

/// The way of a prompt to the first token of its answer.
pub struct FirstToken {
    tokens: usize,
    encode: Duration,
    queue: Duration,
    pass: PassTimes,
    /// What is left: planning the step, looking for cached pages, sampling, sending the token.
    sample: Duration,
    /// Products of bf16 per second that this machine can do at most, with an addition each; `None` if it has no instructions
    /// for them.
    peak: Option<f64>,
}

impl FirstToken {
    /// Answers a prompt of `tokens` tokens `repeat` times with one token, and returns the median by total time.
    pub fn measure(engine: &mut Engine, tokens: usize, repeat: usize) -> Result<Self> {
        let text = text(engine, tokens)?;
        let peak = Ceilings::bf16_ops_s(engine.threads().unwrap_or(1)).map(|operations| operations / 2.0);
        let mut all = (0..=repeat).map(|_| Self::once(engine, &text, tokens, peak)).collect::<Result<Vec<_>>>()?;
        // The first touches all memory and is not counted.
        all.remove(0);
        all.sort_by_key(Self::total);
        Ok(all.swap_remove(all.len() / 2))
    }

    /// The first tokens of `text` are the prompt.
    fn once(engine: &mut Engine, text: &Prompt, tokens: usize, peak: Option<f64>) -> Result<Self> {
        let began = Instant::now();
        let mut prompt = engine.encode(text)?;
        let encode = began.elapsed().mul_f64(tokens as f64 / prompt.len() as f64);
        prompt.truncate(tokens);
        engine.core().take_pass_times();
        let mut request = Request::new(Prompt::Tokens(prompt));
        request.prefix_use = PrefixUse::OFF;
        request.sampling = Sampling::greedy();
        request.max_tokens = Some(1);
        request.speculation = Speculation::Off;
        let timings = engine.generate(request)?.timings;
        let pass = engine.core().take_pass_times();
        let [queue, first] = [timings.queue_ms, timings.ttft_ms].map(|ms| Duration::from_secs_f64(ms.max(0.0) / 1e3));
        Ok(Self { tokens, encode, queue, pass, sample: first.saturating_sub(queue + pass.total()), peak })
    }

    fn total(&self) -> Duration {
        self.parts().iter().map(|(_, time)| *time).sum()
    }

    fn parts(&self) -> [(&'static str, Duration); 7] {
        let Self { encode, queue, pass, sample, .. } = *self;
        [
            ("encode", encode),
            ("queue", queue),
            ("embed", pass.embed),
            ("matmul", pass.matmul),
            ("attention", pass.attention),
            ("other", pass.other),
            ("sample", sample),
        ]
    }

    /// Returns the share of the peak that products reach in some time.
    fn share(&self, time: Duration) -> Option<f64> {
        self.peak.map(|peak| self.pass.products as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE) / peak)
    }

    pub fn to_json(&self) -> Value {
        let mut object = json!({
            "tokens": self.tokens,
            "total_ms": self.total().as_secs_f64() * 1e3,
            "products": self.pass.products,
            "bf16_peak_gmac_s": self.peak.map(|peak| peak / 1e9),
            "matmul_share_of_peak": self.share(self.pass.matmul),
            "share_of_peak": self.share(self.total()),
        });
        for (name, time) in self.parts() {
            object[format!("{name}_ms")] = json!(time.as_secs_f64() * 1e3);
        }
        object
    }

    pub fn table(&self) -> Vec<Vec<String>> {
        let total = self.total();
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let cells = |name: &str, time: Duration, of_peak: Option<f64>| {
            let share = percent(time.as_secs_f64() / total.as_secs_f64());
            vec![
                name.to_owned(),
                format!("{:.2}", time.as_secs_f64() * 1e3),
                share,
                of_peak.map(percent).unwrap_or_default(),
            ]
        };
        let title = format!("first token of {} tokens", self.tokens);
        // Where there is no peak, nothing stands in its column.
        let heading = [&*title, "ms", "share", if self.peak.is_some() { "of bf16 peak" } else { "" }];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        rows.extend(self.parts().map(|(name, time)| {
            let of_peak = if name == "matmul" { self.share(time) } else { None };
            cells(name, time, of_peak)
        }));
        rows.push(cells("all", total, self.share(total)));
        rows
    }
}

/// Makes a text of at least so many tokens.
fn text(engine: &Engine, tokens: usize) -> Result<Prompt> {
    let text = |sentences: usize| Prompt::Text(SENTENCE.repeat(sentences));
    let each = engine.encode(&text(2))?.len().saturating_sub(engine.encode(&text(1))?.len()).max(1);
    Ok(text(tokens.div_ceil(each)))
}
