//! What an adapter costs beside its products: loading it, and the first token after a switch to it on a warm prefix.

use std::time::Instant;

use anyhow::{Context, Result};
use ruvllm_engine::{Core, Request, Speculation};
use ruvllm_runtime::HeldAdapter;
use serde_json::{Value, json};

use crate::commands::bench::{Spread, filler};

/// New tokens behind the prefix, such as a question: those that switch the adapter on come first.
const NEW_TOKENS: usize = 16;

/// Times in milliseconds.
pub struct AdapterCosts {
    /// From the file, which the system has in memory, to where requests can use it.
    pub load: Spread,
    /// `None` if the prompts do not fit the context.
    pub switch: Option<Switch>,
}

/// The first token of prompts whose beginning the model alone has computed before.
pub struct Switch {
    prompt: usize,
    base: Spread,
    adapted: Spread,
    /// Tokens of the prompt that were cached.
    base_cached: usize,
    adapted_cached: usize,
}

impl Switch {
    /// Measures `repeat` times with a prefix of `tokens` tokens, each time with another text.
    pub fn measure(core: &mut Core, adapter: &HeldAdapter, tokens: usize, repeat: usize) -> Result<Option<Self>> {
        // Texts end anywhere: here in the middle of a page.
        let prefix = tokens.next_multiple_of(16) + 8;
        let prompt = prefix + NEW_TOKENS;
        if prompt >= core.limits().context {
            return Ok(None);
        }
        let (mut base, mut adapted, mut cached) = (Vec::new(), Vec::new(), (0, 0));
        for round in 0..=repeat {
            let mut text = filler(core, prompt, round + 1000);
            for (token, invocation) in text[prefix..].iter_mut().zip(adapter.invocation.iter().flat_map(|all| &**all)) {
                *token = *invocation;
            }
            first_token(core, &text[..prefix], None)?;
            let (base_ms, base_cached) = first_token(core, &text, None)?;
            let (adapted_ms, adapted_cached) = first_token(core, &text, Some(adapter))?;
            // The first touches all memory and is not counted.
            if round > 0 {
                base.push(base_ms);
                adapted.push(adapted_ms);
                cached = (base_cached, adapted_cached);
            }
        }
        let (base_cached, adapted_cached) = cached;
        let (base, adapted) = (Spread::of(base), Spread::of(adapted));
        Ok(Some(Self { prompt, base, adapted, base_cached, adapted_cached }))
    }
}

/// Returns the milliseconds to the first token of a prompt, and how many of its tokens were cached.
fn first_token(core: &mut Core, prompt: &[u32], adapter: Option<&HeldAdapter>) -> Result<(f64, usize)> {
    let request = Request {
        max_tokens: Some(1),
        speculation: Speculation::Off,
        adapter: adapter.cloned(),
        ..Request::new(prompt.to_vec())
    };
    let began = Instant::now();
    core.submit(request)?;
    let mut first = None;
    while !core.is_idle() {
        first = first.or(core.step().into_iter().next());
    }
    let elapsed = began.elapsed().as_secs_f64() * 1e3;
    let prefix = first.context("a prompt has a first token")??.prefix;
    Ok((elapsed, prefix.map_or(0, |prefix| prefix.cached_tokens)))
}

impl AdapterCosts {
    pub fn to_json(&self) -> Value {
        let switch = self.switch.as_ref().map(|switch| {
            json!({
                "prompt_tokens": switch.prompt,
                "base_ms": switch.base.to_json(), "base_cached_tokens": switch.base_cached,
                "adapted_ms": switch.adapted.to_json(), "adapted_cached_tokens": switch.adapted_cached,
                "ratio": switch.adapted.median / switch.base.median,
            })
        });
        json!({ "load_ms": self.load.to_json(), "switch": switch })
    }

    pub fn table(&self) -> Vec<Vec<String>> {
        let row = |name: String, spread: &Spread| {
            let ms = [spread.median, spread.least, spread.most].map(|ms| format!("{ms:.2}"));
            [vec![name], ms.to_vec()].concat()
        };
        let mut rows = vec![["adapter", "ms", "least", "most"].map(str::to_owned).to_vec()];
        rows.push(row("load it from its file".to_owned(), &self.load));
        if let Some(switch) = &self.switch {
            let first = |who: &str, cached: usize| format!("first token, {who}, {cached} of {} cached", switch.prompt);
            rows.push(row(first("model alone", switch.base_cached), &switch.base));
            rows.push(row(first("switched to the adapter", switch.adapted_cached), &switch.adapted));
        }
        rows
    }
}
