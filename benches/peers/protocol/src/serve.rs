//! The loop of a measured process.

use std::io::{self, BufRead, Write};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::{About, Answer, Engine, Order, Ready, Start};

/// Loads an engine as `start` (JSON) says and answers orders until standard input ends.
pub fn serve<E: Engine>(start: &str, load: impl FnOnce(&Start) -> Result<(E, About)>) -> Result<()> {
    let start: Start = serde_json::from_str(start).context("the argument is not how a process is started")?;
    let began = Instant::now();
    let (mut engine, about) = load(&start)?;
    let load_s = began.elapsed().as_secs_f64();
    answer(&Answer::Ready(Ready { load_s, version: about.version, system_info: about.system_info }))?;
    for line in io::stdin().lock().lines() {
        let order: Order = serde_json::from_str(&line?).context("a line of standard input is not an order")?;
        let outcome = match order {
            Order::Time(work) => engine.run(work).map(Answer::Timing),
            Order::LogitsAfter(tokens) => engine.logits_after(&tokens).map(Answer::Logits),
        };
        answer(&outcome.unwrap_or_else(|error| Answer::Failed(format!("{error:#}"))))?;
    }
    Ok(())
}

fn answer(answer: &Answer) -> Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, answer)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}
