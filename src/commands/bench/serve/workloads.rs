//! Prompts for the server: workloads with common prefixes, as in practice, and one without.

use clap::ValueEnum;
use serde_json::{Value, json};

/// Workloads. Lengths are in words, each about one token or a little more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Chats with the same instructions of 200 words
    Chat,
    /// Questions about the same 1,000 words
    Rag,
    /// Short texts with the same instruction of 50 words
    Batch,
    /// Four of five questions are about one of four documents of 600 words, the others share nothing
    Mixed,
    /// Prompts of 200 words that have nothing in common
    Unique,
}

/// In the mixed workload, one request in this many shares nothing.
const UNLIKE_OTHERS: usize = 5;
const DOCUMENTS: usize = 4;

impl Workload {
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Rag => "rag",
            Self::Batch => "batch",
            Self::Mixed => "mixed",
            Self::Unique => "unique",
        }
    }

    /// Returns the messages of one request of a run. Runs with another `salt` share nothing with it, so that each
    /// starts with a cold cache.
    pub fn messages(self, salt: u64, number: usize) -> Value {
        let own = |words: usize| text(words, mix(salt, 1000 + number as u64));
        let shared = |words: usize, which: u64| text(words, mix(salt, which));
        let (system, user) = match self {
            Self::Chat => (shared(200, 0), own(20)),
            Self::Rag => (shared(1000, 0), own(20)),
            Self::Batch => (shared(50, 0), own(10)),
            Self::Mixed if number.is_multiple_of(UNLIKE_OTHERS) => (own(600), own(20)),
            Self::Mixed => (shared(600, 1 + (number % DOCUMENTS) as u64), own(20)),
            Self::Unique => (own(5), own(195)),
        };
        json!([{ "role": "system", "content": system }, { "role": "user", "content": user }])
    }
}

const WORDS: [&str; 32] = [
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "problem",
    "hand",
    "part",
    "place",
    "case",
    "week",
    "company",
    "system",
    "program",
    "question",
    "work",
    "government",
    "number",
    "night",
    "point",
];

/// Returns this many common words, the same for the same seed.
fn text(words: usize, seed: u64) -> String {
    let mut state = seed;
    let mut next = || {
        state = mix(state, 1);
        WORDS[(state >> 32) as usize % WORDS.len()]
    };
    (0..words).map(|_| next()).collect::<Vec<_>>().join(" ")
}

fn mix(a: u64, b: u64) -> u64 {
    let mut x = a ^ b.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_share_what_they_should_and_nothing_else() {
        let system = |work: Workload, salt, number| work.messages(salt, number)[0]["content"].clone();
        let user = |work: Workload, salt, number| work.messages(salt, number)[1]["content"].clone();
        for work in [Workload::Chat, Workload::Rag, Workload::Batch] {
            assert_eq!(system(work, 1, 0), system(work, 1, 7));
            assert_ne!(user(work, 1, 0), user(work, 1, 7));
            assert_ne!(system(work, 1, 0), system(work, 2, 0), "another run starts cold");
        }
        assert_eq!(system(Workload::Mixed, 1, 1), system(Workload::Mixed, 1, 9));
        assert_ne!(system(Workload::Mixed, 1, 5), system(Workload::Mixed, 1, 10));
        assert_ne!(system(Workload::Unique, 1, 0), system(Workload::Unique, 1, 1));
    }
}
