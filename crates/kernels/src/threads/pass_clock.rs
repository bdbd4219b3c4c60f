//! The clock of a region: one thread notes what it does from when on.

use std::time::{Duration, Instant};

use ruvllm_runner::PassTimes;

/// What a region does at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Embed,
    Matmul,
    Attention,
    Other,
}

/// Runs from the start of a region to its end.
#[derive(Debug)]
pub(super) struct PassClock {
    part: Part,
    since: Instant,
    times: PassTimes,
}

impl PassClock {
    pub(super) fn start() -> Self {
        Self { part: Part::Other, since: Instant::now(), times: PassTimes::default() }
    }

    pub(super) fn turn_to(&mut self, part: Part) {
        if part != self.part {
            self.note();
            self.part = part;
        }
    }

    pub(super) fn add_products(&mut self, products: u64) {
        self.times.products += products;
    }

    pub(super) fn stop(mut self) -> PassTimes {
        self.note();
        self.times
    }

    fn note(&mut self) {
        let now = Instant::now();
        let took = now - std::mem::replace(&mut self.since, now);
        *self.of_part() += took;
    }

    fn of_part(&mut self) -> &mut Duration {
        match self.part {
            Part::Embed => &mut self.times.embed,
            Part::Matmul => &mut self.times.matmul,
            Part::Attention => &mut self.times.attention,
            Part::Other => &mut self.times.other,
        }
    }
}
