//! Tells on standard error what runs and how long it may still take.

use std::time::Instant;

use peers_protocol::Work;

use crate::schedule::Task;

/// Work done and to do, in a rough common currency: a prompt token is 1.
#[derive(Debug)]
pub struct Progress {
    began: Instant,
    done: f64,
    total: f64,
}

impl Progress {
    pub fn new(tasks: &[Task], candidates: usize, samples: usize) -> Self {
        let rounds = (candidates * (samples + 1)) as f64;
        let total =
            tasks.iter().map(|task| weight(*task) * if *task == Task::Memory { candidates as f64 } else { rounds });
        Self { began: Instant::now(), done: 0.0, total: total.sum() }
    }

    pub fn say(&self, what: &str) {
        let elapsed = self.began.elapsed().as_secs_f64();
        let left = if self.done > 0.0 {
            format!("about {} left", duration(elapsed * (self.total - self.done).max(0.0) / self.done))
        } else {
            "time left unknown".to_owned()
        };
        eprintln!("[{}] {what} ({left})", duration(elapsed));
    }

    pub fn add(&mut self, task: Task) {
        self.done += weight(task);
    }
}

/// Decoding reads all weights for each token, which takes as long as some ten tokens of a prompt.
fn weight(task: Task) -> f64 {
    match task {
        Task::Load => 300.0,
        Task::Memory => 2048.0 + 64.0 * 10.0,
        Task::Work(Work::Prefill { tokens, .. }) => tokens as f64,
        Task::Work(Work::Decode { tokens, .. }) => tokens as f64 * 10.0,
        Task::Work(Work::NextTurn { depth }) => depth as f64,
        Task::Work(Work::Sequences { count, prompt, tokens }) => (count * (prompt + tokens * 5)) as f64,
    }
}

fn duration(seconds: f64) -> String {
    if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}
