//! Tokens of texts that were encoded before.

use std::collections::HashMap;

/// Tokens by the run of text between special tokens that they encode. Prompts that differ in a few messages have most of
/// their runs in common, so that a conversation can be tried at several lengths and still be encoded once. Belongs to one
/// tokenizer.
#[derive(Debug, Default)]
pub struct RunCache(HashMap<String, Vec<u32>>);

impl RunCache {
    /// Appends the tokens of `run` to `out`. `encode` appends them where the run is new.
    pub(super) fn encode(&mut self, run: &str, out: &mut Vec<u32>, encode: impl FnOnce(&mut Vec<u32>)) {
        if let Some(known) = self.0.get(run) {
            return out.extend(known);
        }
        let first = out.len();
        encode(out);
        self.0.insert(run.to_owned(), out[first..].to_vec());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_encoded_once() {
        let (mut runs, mut out, mut encoded) = (RunCache::default(), vec![9], 0);
        for run in ["a", "b", "a"] {
            runs.encode(run, &mut out, |out| {
                encoded += 1;
                out.extend([run.as_bytes()[0].into(), 0]);
            });
        }
        assert_eq!((out, encoded), (vec![9, 97, 0, 98, 0, 97, 0], 2));
    }
}
