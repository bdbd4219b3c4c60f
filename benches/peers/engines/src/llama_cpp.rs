//! llama.cpp through its Rust bindings, with its own defaults wherever the benchmark does not say otherwise.

use std::ffi::CStr;
use std::num::NonZeroU32;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_sys_2::{LLAMA_FLASH_ATTN_TYPE_DISABLED, LLAMA_FLASH_ATTN_TYPE_ENABLED, llama_print_system_info};
use peers_protocol::{About, Engine, Start, TURN_ANSWER, TURN_CHANGED, Timing, Work, next_turn, prompt};

use crate::greedy::greatest;
use crate::versions::locked;

/// Tokens of one call at most: llama.cpp's default. It cuts them into its own smaller batches of 512.
const BATCH: usize = 2048;

pub struct LlamaCpp {
    backend: &'static LlamaBackend,
    model: &'static LlamaModel,
    start: Start,
    /// The context of works with one sequence.
    single: LlamaContext<'static>,
    /// How many tokens of text 0 are in it, from the beginning.
    computed: usize,
    /// Second turns of chats so far.
    turns: usize,
    /// The context of works with several sequences, and of how many.
    parallel: Option<(usize, LlamaContext<'static>)>,
}

pub fn load(start: &Start) -> Result<(LlamaCpp, About)> {
    // Contexts borrow the model, and both live as long as the process.
    let backend: &'static LlamaBackend = Box::leak(Box::new(LlamaBackend::init()?));
    // The defaults use extra buffer types, which is how weights get repacked for AMX and AVX-512.
    let model = LlamaModel::load_from_file(backend, &start.model, &LlamaModelParams::default())?;
    let model: &'static LlamaModel = Box::leak(Box::new(model));
    let single = context(backend, model, start, 1, start.context)?;
    let threads = if cfg!(feature = "openmp") { "OpenMP" } else { "own threads" };
    let version = format!("{}, {threads}", locked("llama-cpp-2"));
    let about = About { version, system_info: system_info() };
    Ok((LlamaCpp { backend, model, start: start.clone(), single, computed: 0, turns: 0, parallel: None }, about))
}

/// The features of the CPU backend as it was compiled and found at run time.
fn system_info() -> String {
    // SAFETY: the function takes nothing and returns a string that lives until its next call; it is copied at once.
    unsafe { CStr::from_ptr(llama_print_system_info()) }.to_string_lossy().into_owned()
}

fn context(
    backend: &LlamaBackend,
    model: &'static LlamaModel,
    start: &Start,
    sequences: usize,
    tokens: usize,
) -> Result<LlamaContext<'static>> {
    let (flash_attention, kv) = match start.setting.as_str() {
        "no-fa" => (LLAMA_FLASH_ATTN_TYPE_DISABLED, KvCacheType::F16),
        "fa" => (LLAMA_FLASH_ATTN_TYPE_ENABLED, KvCacheType::F16),
        "fa-q8" => (LLAMA_FLASH_ATTN_TYPE_ENABLED, KvCacheType::Q8_0),
        other => bail!("llama.cpp has no setting {other}"),
    };
    let cells = NonZeroU32::new(u32::try_from(sequences * tokens.next_multiple_of(256))?);
    let threads = i32::try_from(start.threads)?;
    let params = LlamaContextParams::default()
        .with_n_ctx(cells)
        .with_n_seq_max(u32::try_from(sequences)?)
        .with_n_threads(threads)
        .with_n_threads_batch(threads)
        .with_flash_attention_policy(flash_attention)
        .with_type_k(kv)
        .with_type_v(kv);
    let context = model.new_context(backend, params)?;
    ensure!(context.n_batch() as usize >= BATCH.min(tokens), "llama.cpp's default batch is not {BATCH}");
    Ok(context)
}

impl Engine for LlamaCpp {
    fn run(&mut self, work: Work) -> Result<Timing> {
        match work {
            Work::Prefill { tokens, depth } => self.prefill(tokens, depth),
            Work::Decode { tokens, depth } => self.decode(tokens, depth),
            Work::NextTurn { depth } => self.next_turn(depth),
            Work::Sequences { count, prompt, tokens } => self.sequences(count, prompt, tokens),
        }
    }

    fn logits_after(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let text: Vec<LlamaToken> = tokens.iter().map(|token| LlamaToken::new(token.cast_signed())).collect();
        self.single.clear_kv_cache();
        self.computed = 0;
        let last = compute(&mut self.single, &text, 0)?;
        Ok(self.single.get_logits_ith(last).to_vec())
    }
}

impl LlamaCpp {
    fn prefill(&mut self, tokens: usize, depth: usize) -> Result<Timing> {
        let text = self.text(0, depth + tokens);
        self.rewind(depth)?;
        let started = Instant::now();
        extend(&mut self.single, &text, depth)?;
        let seconds = started.elapsed().as_secs_f64();
        self.computed = depth + tokens;
        Ok(Timing { tokens, seconds, total_s: None })
    }

    fn decode(&mut self, tokens: usize, depth: usize) -> Result<Timing> {
        let depth = depth.max(1);
        let text = self.text(0, depth);
        self.rewind(depth - 1)?;
        let mut choice = extend(&mut self.single, &text, depth - 1)?;
        self.computed = depth;
        let mut batch = LlamaBatch::new(1, 1);
        let started = Instant::now();
        for i in 0..tokens {
            batch.clear();
            batch.add(choice, i32::try_from(depth + i)?, &[0], true)?;
            self.single.decode(&mut batch)?;
            choice = choose(&self.single, 0)?;
        }
        Ok(Timing { tokens, seconds: started.elapsed().as_secs_f64(), total_s: None })
    }

    /// Goes on from what the library can keep of the first turn: all that is the same, or nothing where it cannot go back.
    fn next_turn(&mut self, depth: usize) -> Result<Timing> {
        self.decode(TURN_ANSWER, depth)?;
        let turn = next_turn(self.start.vocabulary, depth, self.turns);
        let turn: Vec<_> = turn.into_iter().map(|token| LlamaToken::new(token.cast_signed())).collect();
        self.turns += 1;
        let mut known = depth - TURN_CHANGED;
        let started = Instant::now();
        if !self.single.clear_kv_cache_seq(Some(0), Some(u32::try_from(known)?), None)? {
            self.single.clear_kv_cache();
            known = 0;
        }
        extend(&mut self.single, &turn, known)?;
        let seconds = started.elapsed().as_secs_f64();
        // What is there now is another text.
        self.single.clear_kv_cache();
        self.computed = 0;
        Ok(Timing { tokens: turn.len(), seconds, total_s: None })
    }

    /// Brings the context to exactly `depth` tokens of text 0.
    fn rewind(&mut self, depth: usize) -> Result<()> {
        if self.computed < depth {
            let text = self.text(0, depth);
            self.single.clear_kv_cache_seq(Some(0), Some(u32::try_from(self.computed)?), None)?;
            extend(&mut self.single, &text, self.computed)?;
        }
        let cut = self.single.clear_kv_cache_seq(Some(0), Some(u32::try_from(depth)?), None)?;
        ensure!(cut, "llama.cpp could not cut its KV cache to {depth} tokens");
        self.computed = depth;
        Ok(())
    }

    fn sequences(&mut self, count: usize, prompt: usize, tokens: usize) -> Result<Timing> {
        let texts: Vec<Vec<LlamaToken>> = (0..count).map(|sequence| self.text(sequence, prompt)).collect();
        if self.parallel.as_ref().is_none_or(|(sequences, _)| *sequences != count) {
            self.parallel = None;
            let made = context(self.backend, self.model, &self.start, count, prompt + tokens + 1)?;
            self.parallel = Some((count, made));
        }
        let (_, context) = self.parallel.as_mut().context("made above")?;
        context.clear_kv_cache();
        let mut batch = LlamaBatch::new(BATCH, 1);
        let all = Instant::now();
        let mut choices = Vec::with_capacity(count);
        for texts in texts.chunks((BATCH / prompt).max(1)) {
            batch.clear();
            for (i, text) in texts.iter().enumerate() {
                let sequence = i32::try_from(choices.len() + i)?;
                for (position, token) in text.iter().enumerate() {
                    batch.add(*token, i32::try_from(position)?, &[sequence], position + 1 == prompt)?;
                }
            }
            context.decode(&mut batch)?;
            for i in 0..texts.len() {
                choices.push(choose(context, (i + 1) * prompt - 1)?);
            }
        }
        let started = Instant::now();
        for i in 0..tokens {
            batch.clear();
            for (sequence, choice) in choices.iter().enumerate() {
                batch.add(*choice, i32::try_from(prompt + i)?, &[i32::try_from(sequence)?], true)?;
            }
            context.decode(&mut batch)?;
            for (sequence, choice) in choices.iter_mut().enumerate() {
                *choice = choose(context, sequence)?;
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        Ok(Timing { tokens: tokens * count, seconds, total_s: Some(all.elapsed().as_secs_f64()) })
    }

    fn text(&self, sequence: usize, count: usize) -> Vec<LlamaToken> {
        let tokens = prompt(self.start.vocabulary, sequence, count);
        tokens.into_iter().map(|token| LlamaToken::new(token.cast_signed())).collect()
    }
}

/// Computes `text` from position `from` on as sequence 0 and chooses what comes after it.
fn extend(context: &mut LlamaContext<'_>, text: &[LlamaToken], from: usize) -> Result<LlamaToken> {
    let last = compute(context, text, from)?;
    choose(context, usize::try_from(last)?)
}

/// Computes `text` from position `from` on as sequence 0 and returns the row of the last batch that has its last logits.
fn compute(context: &mut LlamaContext<'_>, text: &[LlamaToken], from: usize) -> Result<i32> {
    let mut batch = LlamaBatch::new(BATCH, 1);
    let mut position = from;
    while position < text.len() {
        batch.clear();
        let end = text.len().min(position + BATCH);
        for (i, token) in text.iter().enumerate().take(end).skip(position) {
            batch.add(*token, i32::try_from(i)?, &[0], i + 1 == text.len())?;
        }
        context.decode(&mut batch)?;
        position = end;
    }
    Ok(batch.n_tokens() - 1)
}

/// The greedy choice after row `row` of the last batch.
fn choose(context: &LlamaContext<'_>, row: usize) -> Result<LlamaToken> {
    let choice = greatest(context.get_logits_ith(i32::try_from(row)?));
    Ok(LlamaToken::new(i32::try_from(choice)?))
}
