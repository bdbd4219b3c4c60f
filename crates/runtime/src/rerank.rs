//! Reranking: how well each of several documents answers a query.
//!
//! [`Reranker`] is implemented by models that read query and document together (`ruvllm-backends`). An [`Embedder`] reads them
//! apart: it is faster and less exact.
//!
//! [`Embedder`]: crate::Embedder

use std::fmt::Debug;

use crate::{CancellationToken, TooLong};

/// A loaded model that scores documents by a query.
pub trait Reranker: Debug + Send + Sync {
    /// Returns the name of the implementation, such as `candle`.
    fn name(&self) -> &'static str;

    /// Returns the maximum number of tokens of query and document together, including those that the model puts around them.
    fn context(&self) -> usize;

    /// Returns a score for each document, in the order of the documents and independent of the other documents. Blocks until
    /// all are computed.
    fn rerank(&self, request: &RerankRequest) -> Result<RerankScores, RerankError>;
}

/// A query, and the documents that may answer it.
#[derive(Clone, Debug, Default)]
pub struct RerankRequest {
    pub query: String,
    pub documents: Vec<String>,
    /// Number of tokens after which a document is cut whatever the model takes.
    pub document_tokens_max: Option<usize>,
    /// For a query and a document that are too long together. If the end is to be cut, then of the longer of the two.
    pub too_long: TooLong,
    pub cancellation: CancellationToken,
}

/// Scores of a request's documents, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RerankScores {
    /// What the model computed: the higher, the better the document answers the query. See [`relevance`].
    pub logits: Vec<f32>,
    /// Number of tokens computed for each document, with those of the query.
    pub tokens: Vec<usize>,
    /// Number of tokens left out of each document.
    pub cut_tokens: Vec<usize>,
    /// Maximum number of tokens left out of the query, which happens beside long documents if it is long itself.
    pub query_cut_tokens: usize,
}

impl RerankScores {
    /// Returns the indices of the documents, the best first; of equals the first one.
    pub fn ranking(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.logits.len()).collect();
        order.sort_by(|&a, &b| self.logits[b].total_cmp(&self.logits[a]));
        order
    }
}

/// Returns the probability of a logit, 0 to 1. In doubles: as floats, good scores would all become 1.
pub fn relevance(logit: f32) -> f64 {
    1.0 / (1.0 + (-f64::from(logit)).exp())
}

/// Why documents could not be scored. `index` counts from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RerankError {
    #[error("the query is empty")]
    EmptyQuery,
    #[error("document {index} is empty")]
    EmptyDocument { index: usize },
    #[error("the query and document {index} have {tokens} tokens; the model takes at most {tokens_max}")]
    TooLong { index: usize, tokens: usize, tokens_max: usize },
    /// The request was cancelled after this many tokens were computed.
    #[error("nobody waits for the result any more")]
    Abandoned { tokens: usize },
    #[error("the model failed: {why}")]
    Failed { why: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_first_and_equals_keep_their_order() {
        let scores = RerankScores { logits: vec![-1.0, 3.0, -1.0, 3.5, 3.0], ..RerankScores::default() };
        assert_eq!(scores.ranking(), [3, 1, 4, 0, 2]);
    }

    #[test]
    fn relevance_is_a_probability_that_tells_good_documents_apart() {
        assert_eq!(relevance(0.0), 0.5);
        assert!(relevance(-200.0) < 1e-80 && relevance(20.0) < relevance(20.5) && relevance(20.5) < 1.0);
    }
}
