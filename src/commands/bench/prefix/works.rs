//! Workloads whose requests have common prefixes, and their texts.

/// Requests that each generate some tokens.
pub struct Work {
    pub name: &'static str,
    pub pattern: Pattern,
    pub generated: usize,
}

/// What requests have in common: shared tokens, and tokens of their own.
pub enum Pattern {
    /// All share a prefix and run one after the other.
    InTurn { shared: usize, own: usize, requests: usize },
    /// All share a prefix and run together.
    AtOnce { shared: usize, own: usize, requests: usize },
    /// One chat whose prefix other chats had before. Each turn sends the whole conversation and `own` tokens more.
    Chat { shared: usize, own: usize, turns: usize },
    /// Most requests start with one of several documents that are cached already. The others are as long and share
    /// nothing.
    Mixed { documents: usize, shared: usize, own: usize, requests: usize },
}

/// In the mixed workload, one request in this many shares nothing.
const UNLIKE_OTHERS: usize = 5;

pub const WORKLOADS: [Work; 6] = [
    Work {
        name: "chat, 200-token system prompt",
        pattern: Pattern::InTurn { shared: 200, own: 20, requests: 4 },
        generated: 1,
    },
    Work {
        name: "chat of 10 turns, first of 820",
        pattern: Pattern::Chat { shared: 800, own: 20, turns: 10 },
        generated: 32,
    },
    Work {
        name: "1,000-token context, 20 new",
        pattern: Pattern::InTurn { shared: 1000, own: 20, requests: 4 },
        generated: 1,
    },
    Work {
        name: "mixed, 80 % share 4 documents",
        pattern: Pattern::Mixed { documents: 4, shared: 600, own: 20, requests: 40 },
        generated: 4,
    },
    Work {
        name: "100 with a 50-token instruction",
        pattern: Pattern::AtOnce { shared: 50, own: 10, requests: 100 },
        generated: 1,
    },
    Work {
        name: "8 at once, 1,000 tokens shared",
        pattern: Pattern::AtOnce { shared: 1000, own: 20, requests: 8 },
        generated: 64,
    },
];

/// The texts of a workload.
pub struct Texts {
    /// Prompts that fill the cache beforehand. They do not count: hit rates are those of a warm cache.
    pub before: Vec<Vec<u32>>,
    /// Prompts in order; for a chat, what each turn adds.
    pub requests: Vec<Vec<u32>>,
}

impl Work {
    /// Returns the tokens of the longest request with its answer.
    pub fn tokens_max(&self) -> usize {
        match self.pattern {
            Pattern::InTurn { shared, own, .. }
            | Pattern::AtOnce { shared, own, .. }
            | Pattern::Mixed { shared, own, .. } => shared + own + self.generated,
            Pattern::Chat { shared, own, turns } => shared + turns * (own + self.generated),
        }
    }

    /// `text` returns a text of a number of tokens; texts with different numbers differ from the first token on.
    pub fn texts(&self, text: impl Fn(usize, usize) -> Vec<u32>) -> Texts {
        let behind = |start: &[u32], own: usize, number: usize| [start, &text(own, number)].concat();
        match self.pattern {
            Pattern::InTurn { shared, own, requests } => {
                let start = text(shared, 0);
                let requests = (1..=requests).map(|number| behind(&start, own, number)).collect();
                Texts { before: vec![start], requests }
            }
            Pattern::AtOnce { shared, own, requests } => {
                let start = text(shared, 0);
                let requests = (1..=requests).map(|number| behind(&start, own, number)).collect();
                Texts { before: Vec::new(), requests }
            }
            Pattern::Chat { shared, own, turns } => {
                let start = text(shared, 0);
                let later = (2..=turns).map(|turn| text(own, turn));
                let requests = [behind(&start, own, 1)].into_iter().chain(later).collect();
                Texts { before: vec![start], requests }
            }
            Pattern::Mixed { documents, shared, own, requests } => {
                let before: Vec<_> = (0..documents).map(|document| text(shared, document)).collect();
                let request = |number: usize| {
                    if number.is_multiple_of(UNLIKE_OTHERS) {
                        text(shared + own, documents + number)
                    } else {
                        behind(&before[number % documents], own, documents + number)
                    }
                };
                let requests = (1..=requests).map(request).collect();
                Texts { before, requests }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(tokens: usize, number: usize) -> Vec<u32> {
        vec![number as u32; tokens]
    }

    #[test]
    fn texts_are_as_long_as_the_work_says() {
        for work in &WORKLOADS {
            let texts = work.texts(text);
            let longest = match work.pattern {
                Pattern::Chat { turns, .. } => texts.requests.concat().len() + (turns - 1) * work.generated,
                _ => texts.requests.iter().map(Vec::len).max().expect("there are requests"),
            };
            assert_eq!(longest + work.generated, work.tokens_max(), "{}", work.name);
        }
    }

    #[test]
    fn four_of_five_mixed_requests_begin_with_a_document() {
        let work = WORKLOADS.iter().find(|work| matches!(work.pattern, Pattern::Mixed { .. })).expect("there is one");
        let texts = work.texts(text);
        let is_shared = |request: &&Vec<u32>| texts.before.iter().any(|document| request.starts_with(document));
        assert_eq!(texts.requests.iter().filter(is_shared).count() * 5, texts.requests.len() * 4);
    }
}
