//! Timing an operation on all threads, and its distance from the ceiling.

use std::time::Instant;

use ruvllm_kernels::ceilings::Ceilings;
use ruvllm_kernels::{Pool, Worker};

const SAMPLES: usize = 7;
/// A sample takes at least this long, so that starting a region does not count.
const SAMPLE_S: f64 = 0.02;

/// What is measured with and where results go.
pub struct Bench<'a> {
    pub pool: Pool,
    pub ceilings: Ceilings,
    pub only: String,
    pub report: &'a dyn Fn(Result),
}

/// What limits a kernel at best.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// Bytes read and written.
    Memory { bytes: usize },
    /// Multiplications and additions of bytes.
    Bytes { operations: usize },
    /// Multiplications and additions of floats.
    Floats { operations: usize },
    /// Multiplications and additions of bf16.
    Bf16 { operations: usize },
}

#[derive(Debug)]
pub struct Result {
    name: String,
    seconds: f64,
    limit: Limit,
    /// Of the ceiling.
    share: Option<f64>,
}

impl Bench<'_> {
    /// Whether a kernel of this name is to be measured.
    pub fn wants(&self, name: &str) -> bool {
        name.contains(&self.only)
    }

    /// The same of a kernel and its variant in bf16.
    pub fn wants_any(&self, name: &str) -> bool {
        self.wants(&format!("{name} bf16"))
    }

    /// Times one round of `job`, which every thread calls with the number of the round, and which ends with a barrier;
    /// does nothing if nobody wants to know.
    pub fn time(&mut self, name: String, limit: Limit, job: impl Fn(&mut Worker<'_>, usize) + Sync) {
        if !self.wants(&name) {
            return;
        }
        let mut run = |rounds: usize| {
            let began = Instant::now();
            self.pool.run(|worker| (0..rounds).for_each(|round| job(worker, round)));
            began.elapsed().as_secs_f64()
        };
        let mut rounds = 1;
        while run(rounds) < SAMPLE_S {
            rounds *= 2;
        }
        let mut samples: Vec<f64> = (0..SAMPLES).map(|_| run(rounds) / rounds as f64).collect();
        samples.sort_by(f64::total_cmp);
        let seconds = samples[SAMPLES / 2];
        let share = self.most(limit).map(|most| limit.amount() / seconds / most);
        (self.report)(Result { name, seconds, limit, share });
    }

    fn most(&self, limit: Limit) -> Option<f64> {
        match limit {
            Limit::Memory { .. } => Some(self.ceilings.read_bytes_s),
            Limit::Bytes { .. } => self.ceilings.byte_ops_max_s(),
            Limit::Floats { .. } => self.ceilings.float_ops_s,
            Limit::Bf16 { .. } => self.ceilings.bf16_ops_s,
        }
    }
}

impl Limit {
    fn amount(self) -> f64 {
        match self {
            Self::Memory { bytes } => bytes as f64,
            Self::Bytes { operations } | Self::Floats { operations } | Self::Bf16 { operations } => operations as f64,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Memory { .. } => "GB/s",
            Self::Bytes { .. } | Self::Floats { .. } | Self::Bf16 { .. } => "GOP/s",
        }
    }
}

impl Result {
    pub const HEADING: &str = "kernel                                               µs        rate         ceiling";

    pub fn line(&self) -> String {
        let rate = self.limit.amount() / self.seconds / 1e9;
        let share = self.share.map_or_else(String::new, |share| format!("{:>6.1} %", share * 100.0));
        format!("{:<44} {:>10.1} {rate:>10.1} {:<5} {share}", self.name, self.seconds * 1e6, self.limit.unit())
    }

    /// Names hold nothing that JSON would have to escape.
    pub fn json(&self) -> String {
        let share = self.share.map_or_else(|| "null".to_owned(), |share| format!("{share:.4}"));
        let rate = self.limit.amount() / self.seconds / 1e9;
        format!(
            r#"{{"kernel":"{}","us":{:.2},"rate":{rate:.2},"unit":"{}","share":{share}}}"#,
            self.name,
            self.seconds * 1e6,
            self.limit.unit()
        )
    }
}
