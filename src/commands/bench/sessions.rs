//! Measures many sessions within one KV budget: all are opened, then each is resumed, in another order.

mod report;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::Result;
use ruvllm_engine::{CacheStats, Core, Request, Speculation, Tenant};
use ruvllm_runtime::hardware;

use super::answered::{Answered, answer};
use super::filler;
use crate::output::progress::count_bar;

/// Tokens of a session when it is opened.
const SESSION_TOKENS: usize = 500;
/// Tokens of the first answer: the session continues after the first, and the second shows whether it continues
/// unchanged.
const ANSWER_TOKENS: usize = 2;
/// Tokens of a session at the end.
pub const CONTEXT_MIN: usize = SESSION_TOKENS + ANSWER_TOKENS;
/// Sessions that are opened together.
pub const SEQUENCES: usize = 8;
/// Default KV budget.
pub const BUDGET_BYTES_DEFAULT: u64 = 1 << 30;

/// The measurements.
pub struct Sessions {
    open_s: f64,
    /// Prompt tokens that an earlier run left on disk.
    found_tokens: usize,
    after_opening: CacheStats,
    resume_s: f64,
    resumed: Vec<Answered>,
    /// Sessions whose next token was the one generated when they were opened.
    unchanged: usize,
    /// Maximum growth of the process, for pages and all else. Linux only.
    growth_bytes_max: Option<usize>,
    /// Maximum KV bytes in use after any request.
    used_bytes_max: usize,
    end: CacheStats,
}

pub fn measure(core: &mut Core, count: usize, interrupted: &AtomicBool) -> Result<Sessions> {
    let mut watch = Watch::default();
    let bar = count_bar(count, "opening sessions");
    let started = Instant::now();
    let mut opened = Vec::with_capacity(count);
    while opened.len() < count {
        // The first one alone: it allocates all memory that is not for pages.
        let at_once = if opened.is_empty() { 1 } else { SEQUENCES.min(count - opened.len()) };
        let sessions = opened.len()..opened.len() + at_once;
        let requests = sessions.map(|session| request(text(core, session), ANSWER_TOKENS)).collect();
        opened.extend(answer(core, requests, interrupted)?);
        watch.look(core);
        bar.set_position(opened.len() as u64);
    }
    bar.finish_and_clear();
    let open_s = started.elapsed().as_secs_f64();
    let found_tokens = opened.iter().map(|session| session.cached_tokens).sum();
    let after_opening = core.cache_stats();

    let bar = count_bar(count, "resuming sessions");
    let started = Instant::now();
    let mut resumed = Vec::with_capacity(count);
    let mut unchanged = 0;
    for session in shuffled(count) {
        let [first, second] = opened[session].tokens[..] else { unreachable!("no answer ends early") };
        let prompt = [&text(core, session)[..], &[first]].concat();
        let answered = answer(core, vec![request(prompt, 1)], interrupted)?;
        unchanged += usize::from(answered[0].tokens == [second]);
        resumed.extend(answered);
        watch.look(core);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(Sessions {
        open_s,
        found_tokens,
        after_opening,
        resume_s: started.elapsed().as_secs_f64(),
        resumed,
        unchanged,
        growth_bytes_max: watch.growth_bytes_max(),
        used_bytes_max: watch.used_bytes_max,
        end: core.cache_stats(),
    })
}

fn text(core: &Core, session: usize) -> Vec<u32> {
    filler(core, SESSION_TOKENS, session)
}

fn request(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request {
        max_tokens: Some(max_tokens),
        speculation: Speculation::Off,
        tenant: Tenant::new("bench of sessions"),
        ..Request::new(prompt)
    }
}

/// Returns all sessions in an order without a pattern, the same in every run.
fn shuffled(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_cached_key(|session| {
        let mut hasher = DefaultHasher::new();
        session.hash(&mut hasher);
        hasher.finish()
    });
    order
}

/// Observes memory after every request.
#[derive(Default)]
struct Watch {
    /// Memory of the process without the pages in use, when first observed.
    base_bytes: Option<usize>,
    resident_bytes_max: Option<usize>,
    used_bytes_max: usize,
}

impl Watch {
    fn look(&mut self, core: &Core) {
        let (resident, used) = (hardware::resident_bytes(), core.cache_stats().used_bytes);
        self.base_bytes = self.base_bytes.or_else(|| resident?.checked_sub(used));
        self.resident_bytes_max = self.resident_bytes_max.max(resident);
        self.used_bytes_max = self.used_bytes_max.max(used);
    }

    fn growth_bytes_max(&self) -> Option<usize> {
        Some(self.resident_bytes_max?.saturating_sub(self.base_bytes?))
    }
}
