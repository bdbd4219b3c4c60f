//! What `ruvllm learn now` and `ruvllm bench learning` do alike: train a candidate, and measure it beside what it has to
//! be better than.

mod candidate;
mod general;
mod items;
mod measure;

pub use candidate::{Candidate, Scratch, Training};
pub use general::GeneralTexts;
pub use items::Divided;
pub use measure::{HeldOutPairs, Meter, sums};

use std::sync::atomic::{AtomicBool, Ordering};

use crate::exit::Interrupted;

/// Ends the command if Ctrl-C was pressed.
pub fn interrupted(stop: &AtomicBool) -> anyhow::Result<()> {
    if stop.load(Ordering::Relaxed) { Err(Interrupted.into()) } else { Ok(()) }
}
