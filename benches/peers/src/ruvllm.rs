//! RuvLLM as a measured process: the engine that `ruvllm` runs, driven in token ids.

use std::time::Instant;

use anyhow::{Result, ensure};
use peers_protocol::{About, Engine, Start, TURN_ANSWER, Timing, Work, next_turn, prompt};
use ruvllm_engine::{Core, PrefixUse, Request, SequenceId, Speculation};
use ruvllm_runtime::Prefill;

pub struct RuvLlm {
    engine: ruvllm_runtime::Engine,
    start: Start,
    held: Option<Held>,
    /// Second turns of chats so far.
    turns: usize,
}

/// A sequence that decodes go on with, so that its prompt is not computed for each.
struct Held {
    id: SequenceId,
    depth: usize,
    /// Tokens it may still generate.
    left: usize,
}

pub fn load(start: &Start) -> Result<(RuvLlm, About)> {
    let (kv, prefill) = match start.setting.strip_suffix("-fast") {
        Some(kv) => (kv, Prefill::Fast),
        None => (&*start.setting, Prefill::Exact),
    };
    let engine = ruvllm_runtime::Engine::builder(&start.model)
        .threads(Some(start.threads))
        .context(Some(start.context))
        .sequences(start.sequences)
        .batch_rows(start.batch_rows)
        .kv(kv.parse()?)
        .prefill(prefill)
        .build()?;
    let about = About {
        version: format!("ruvllm {}", env!("CARGO_PKG_VERSION")),
        system_info: format!("{} kernels, batches of {} rows", engine.kernels(), start.batch_rows),
    };
    Ok((RuvLlm { engine, start: start.clone(), held: None, turns: 0 }, about))
}

impl Engine for RuvLlm {
    fn run(&mut self, work: Work) -> Result<Timing> {
        match work {
            Work::Prefill { tokens, depth } => self.prefill(tokens, depth),
            Work::Decode { tokens, depth } => self.decode(tokens, depth),
            Work::NextTurn { depth } => self.next_turn(depth),
            Work::Sequences { count, prompt, tokens } => self.sequences(count, prompt, tokens),
        }
    }

    fn logits_after(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let mut last = Vec::new();
        let mut core = self.engine.core();
        core.evaluate(tokens, tokens.len() - 1..tokens.len(), |_, logits| last = logits.to_vec())?;
        Ok(last)
    }
}

impl RuvLlm {
    fn prefill(&mut self, tokens: usize, depth: usize) -> Result<Timing> {
        self.release();
        // A batch must not hold tokens of both parts, or there is no moment between them to start the clock.
        let batch_rows = self.start.batch_rows;
        ensure!(depth.is_multiple_of(batch_rows), "depth {depth} is no multiple of {batch_rows} rows");
        let prompt = self.prompt(0, depth + tokens);
        let mut core = self.engine.core();
        let mut started = Instant::now();
        core.submit(plain(prompt, 1))?;
        for _ in 0..depth / batch_rows {
            let chosen = step(&mut core)?;
            ensure!(chosen == 0, "a token was chosen before the prompt's end");
            started = Instant::now();
        }
        while step(&mut core)? == 0 {}
        Ok(Timing { tokens, seconds: started.elapsed().as_secs_f64(), total_s: None })
    }

    fn decode(&mut self, tokens: usize, depth: usize) -> Result<Timing> {
        self.hold(tokens, depth)?;
        let mut core = self.engine.core();
        let started = Instant::now();
        let mut chosen = 0;
        while chosen < tokens {
            chosen += step(&mut core)?;
        }
        let seconds = started.elapsed().as_secs_f64();
        self.held =
            self.held.take().filter(|held| held.left > chosen).map(|held| Held { left: held.left - chosen, ..held });
        Ok(Timing { tokens: chosen, seconds, total_s: None })
    }

    /// The one work that is about the prefix cache.
    fn next_turn(&mut self, depth: usize) -> Result<Timing> {
        self.release();
        let cached = |prompt: Vec<u32>, max_tokens: usize| Request {
            prefix_use: PrefixUse::default(),
            ..plain(prompt, max_tokens)
        };
        let first = self.prompt(0, depth);
        let turn = next_turn(self.start.vocabulary, depth, self.turns);
        self.turns += 1;
        let tokens = turn.len();
        let mut core = self.engine.core();
        core.submit(cached(first, TURN_ANSWER))?;
        while !core.is_idle() {
            step(&mut core)?;
        }
        let started = Instant::now();
        core.submit(cached(turn, 1))?;
        while step(&mut core)? == 0 {}
        Ok(Timing { tokens, seconds: started.elapsed().as_secs_f64(), total_s: None })
    }

    /// Makes sure that a sequence of `depth` tokens is there and can go on for `tokens` more. It may be used again until
    /// it has grown by an eighth: a little deeper than what the peers are measured at, never shallower.
    fn hold(&mut self, tokens: usize, depth: usize) -> Result<()> {
        if self.held.as_ref().is_some_and(|held| held.depth == depth && held.left >= tokens) {
            return Ok(());
        }
        self.release();
        let room = (self.start.context - depth.max(1) - 1).min(depth / 8);
        let left = (room / tokens).max(1) * tokens;
        let prompt = self.prompt(0, depth.max(1));
        let mut core = self.engine.core();
        let id = core.submit(plain(prompt, left + 1))?;
        while step(&mut core)? == 0 {}
        self.held = Some(Held { id, depth, left });
        Ok(())
    }

    /// Nothing else may be in the batches of the next measurement.
    fn release(&mut self) {
        if let Some(held) = self.held.take() {
            self.engine.core().cancel(held.id);
        }
    }

    fn sequences(&mut self, count: usize, prompt: usize, tokens: usize) -> Result<Timing> {
        self.release();
        let prompts: Vec<Vec<u32>> = (0..count).map(|sequence| self.prompt(sequence, prompt)).collect();
        let mut core = self.engine.core();
        let all = Instant::now();
        let mut ids = Vec::new();
        for prompt in prompts {
            ids.push(core.submit(plain(prompt, tokens + 1))?);
        }
        // The first to finish their prompts decode while the last are still at theirs: the clock starts when all decode.
        let mut waiting = ids;
        while !waiting.is_empty() {
            for event in core.step() {
                let sequence = event?.sequence;
                waiting.retain(|id| *id != sequence);
            }
        }
        let started = Instant::now();
        let mut chosen = 0;
        while !core.is_idle() {
            chosen += step(&mut core)?;
        }
        let seconds = started.elapsed().as_secs_f64();
        Ok(Timing { tokens: chosen, seconds, total_s: Some(all.elapsed().as_secs_f64()) })
    }

    fn prompt(&self, sequence: usize, count: usize) -> Vec<u32> {
        prompt(self.start.vocabulary, sequence, count)
    }
}

/// A greedy request without end tokens, speculation and prefix cache: one forward pass for each token, as the peers do.
fn plain(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request {
        max_tokens: Some(max_tokens),
        speculation: Speculation::Off,
        prefix_use: PrefixUse::OFF,
        ..Request::new(prompt)
    }
}

/// One step; how many tokens it chose.
fn step(core: &mut Core) -> Result<usize> {
    let results = core.step();
    let chosen = results.len();
    for result in results {
        result?;
    }
    Ok(chosen)
}
