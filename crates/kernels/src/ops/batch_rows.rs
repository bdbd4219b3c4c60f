//! Which rows of a batch are multiplied how.

use std::ops::Range;

use ruvllm_runner::Batch;

/// The rows of a batch: some whose products are exact, then rows of prompts that are multiplied in bf16. What a row is decides,
/// never how many there are: its result must not depend on its company.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRows {
    exact: usize,
    count: usize,
    /// Whether some have adapters, which take their inputs as floats.
    has_adapters: bool,
}

impl BatchRows {
    pub fn of(batch: &Batch) -> Self {
        Self { exact: batch.exact_rows(), count: batch.rows(), has_adapters: batch.has_adapters() }
    }

    /// `count` rows, of which the first `exact` are exact. Panics if there are fewer.
    pub fn new(exact: usize, count: usize) -> Self {
        assert!(exact <= count, "{exact} rows of {count}");
        Self { exact, count, has_adapters: false }
    }

    /// The same, some of them with adapters.
    pub fn with_adapters(self) -> Self {
        Self { has_adapters: true, ..self }
    }

    pub fn count(self) -> usize {
        self.count
    }

    pub(crate) fn has_adapters(self) -> bool {
        self.has_adapters
    }

    pub(crate) fn exact(self) -> Range<usize> {
        0..self.exact
    }

    pub(crate) fn in_bf16(self) -> Range<usize> {
        self.exact..self.count
    }
}

/// All of them exact.
impl From<usize> for BatchRows {
    fn from(count: usize) -> Self {
        Self { exact: count, count, has_adapters: false }
    }
}
