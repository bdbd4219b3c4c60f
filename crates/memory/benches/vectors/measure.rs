//! Times of searches and what they found, as a line of a table.

use std::hint::black_box;
use std::time::Instant;

use crate::data::{Asked, KINDS};

/// Searches are timed so often.
const ROUNDS: usize = 5;

pub struct Line {
    name: String,
    p50_ms: f64,
    p99_ms: f64,
    /// The 99th percentile of queries, each at its best: without what other programs do on the machine.
    p99_alone_ms: f64,
    recall: Option<f64>,
}

impl Line {
    /// From the times of each round, in the same order.
    pub fn new(name: &str, rounds_ms: &[Vec<f64>], recall: Option<f64>) -> Self {
        let sorted = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            move |part: f64| times[((times.len() - 1) as f64 * part) as usize]
        };
        let all = sorted(rounds_ms.concat());
        let best = |i: usize| rounds_ms.iter().map(|round| round[i]).fold(f64::MAX, f64::min);
        let alone = sorted((0..rounds_ms[0].len()).map(best).collect());
        Self { name: name.to_owned(), p50_ms: all(0.5), p99_ms: all(0.99), p99_alone_ms: alone(0.99), recall }
    }

    pub fn print(&self, json: bool) {
        let Self { name, p50_ms, p99_ms, p99_alone_ms, .. } = self;
        if json {
            let recall = self.recall.map_or("null".to_owned(), |recall| format!("{recall:.4}"));
            println!(
                r#"{{"name":"{name}","p50_ms":{p50_ms:.4},"p99_ms":{p99_ms:.4},"p99_alone_ms":{p99_alone_ms:.4},"recall":{recall}}}"#
            );
        } else {
            let recall = self.recall.map_or(String::new(), |recall| format!("{recall:.4}"));
            println!("{name:24} {p50_ms:>8.3} {p99_ms:>8.3} {p99_alone_ms:>8.3} {recall:>8}");
        }
    }
}

pub fn ms(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// Searches for all queries with one kind of filter. `search` gives the ids that it found.
pub fn measure(asked: &[Asked], kind: usize, search: impl Fn(&Asked) -> Vec<u64>) -> Line {
    let (mut rounds, mut found, mut wanted) = (vec![Vec::new(); ROUNDS], 0, 0);
    for (round, times) in rounds.iter_mut().enumerate() {
        for asked in asked {
            let start = Instant::now();
            let ids = black_box(search(asked));
            times.push(ms(start));
            if round == 0 {
                wanted += asked.nearest[kind].len();
                found += asked.nearest[kind].iter().filter(|near| ids.contains(&near.1)).count();
            }
        }
    }
    Line::new(KINDS[kind].name, &rounds, Some(found as f64 / wanted.max(1) as f64))
}
