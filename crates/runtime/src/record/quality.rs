//! Estimates the quality of an answer without knowing what it is about.

use std::collections::{BTreeMap, HashSet};

use ruvllm_engine::{FinishReason, TokenId};
use ruvllm_memory::Quality;

use crate::Response;

/// Shorter answers are not checked for repetition.
const TOKENS_MIN: usize = 16;
/// Length of the compared runs of tokens.
const RUN: usize = 4;

/// Returns a score from 0 to 1, the mean of its sources: whether the answer ended by itself, is not empty, does not
/// repeat itself, and is valid where that had to be checked.
pub(super) fn quality(response: &Response) -> Quality {
    let ended = match response.finish_reason {
        Some(FinishReason::Stop) => 1.0,
        Some(FinishReason::Length) => 0.5,
        None => 0.0,
    };
    let says_something = !response.text.trim().is_empty() || !response.tool_calls.is_empty();
    let mut sources =
        BTreeMap::from([("ended".to_owned(), ended), ("not_empty".to_owned(), f64::from(u8::from(says_something)))]);
    if response.tokens.len() >= TOKENS_MIN {
        sources.insert("not_repetitive".to_owned(), distinct_runs(&response.tokens));
    }
    if let Some(validity) = &response.validity {
        sources.insert("valid".to_owned(), f64::from(u8::from(validity.is_ok())));
    }
    let score = sources.values().sum::<f64>() / sources.len() as f64;
    Quality { score, sources }
}

/// Returns the share of runs of tokens that are distinct.
fn distinct_runs(tokens: &[TokenId]) -> f64 {
    let runs: HashSet<&[TokenId]> = tokens.windows(RUN).collect();
    runs.len() as f64 / (tokens.len() + 1 - RUN) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(text: &str, tokens: Vec<u32>, finish_reason: Option<FinishReason>) -> Response {
        Response { text: text.into(), tokens, finish_reason, ..Response::default() }
    }

    #[test]
    fn better_answers_get_more() {
        let good = quality(&response("An answer.", (0..50).collect(), Some(FinishReason::Stop)));
        assert_eq!(good.score, 1.0);
        let cut = quality(&response("An answer", (0..50).collect(), Some(FinishReason::Length)));
        let circles = quality(&response("a a a", vec![7; 200], Some(FinishReason::Length)));
        let empty = quality(&response("", vec![1], Some(FinishReason::Stop)));
        let failed = quality(&response("", vec![], None));
        assert!(good.score > cut.score && cut.score > circles.score && circles.score > failed.score);
        assert!(empty.score < cut.score);
        assert_eq!(failed.score, 0.0);
    }
}
