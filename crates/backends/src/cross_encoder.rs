//! A loaded model that scores documents by a query, reading both together.

mod head;
mod truncation;

use std::path::Path;

use ruvllm_runtime::{RerankError, RerankRequest, RerankScores, Reranker, TooLong};
use ruvllm_text::{PairTemplate, SpecialTokens};

use self::head::Head;
use self::truncation::longest_first;
use crate::config::{Architecture, Config, Purpose};
use crate::error::LoadError;
use crate::trunk::{Stopped, Trunk, folder_of};

/// A reranking model.
#[derive(Debug)]
pub struct CrossEncoder {
    trunk: Trunk,
    head: Head,
    pairs: PairTemplate,
}

/// A query and a document as the model reads them.
#[derive(Debug)]
struct Pair {
    tokens: Vec<u32>,
    segments: Vec<u32>,
    query_cut_tokens: usize,
    document_cut_tokens: usize,
}

impl CrossEncoder {
    /// Loads the weights at `path` and the files beside them.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let config = Config::read(folder_of(path))?;
        if config.purpose != Purpose::Reranking {
            return Err(LoadError::NotForReranking);
        }
        let (trunk, head) = Trunk::open(path, config, Head::load)?;
        let Config { architecture, segments, context, .. } = trunk.config;
        let fits = |pairs: &&PairTemplate| {
            let knows_segments = architecture != Architecture::Bert || (pairs.segment_max() as usize) < segments;
            // Room for a token of each text.
            knows_segments && pairs.added_tokens() + 2 <= context
        };
        let pairs = trunk.tokenizer.pair_template().filter(fits).cloned().ok_or(LoadError::NoPairs)?;
        Ok(Self { trunk, head, pairs })
    }

    fn tokens(&self, text: &str) -> Vec<u32> {
        self.trunk.tokenizer.encode(text, SpecialTokens::AsText)
    }

    fn pair(&self, index: usize, query: &[u32], request: &RerankRequest) -> Result<Pair, RerankError> {
        let text = &request.documents[index];
        if text.is_empty() {
            return Err(RerankError::EmptyDocument { index });
        }
        let mut document = self.tokens(text);
        let whole = document.len();
        document.truncate(request.document_tokens_max.unwrap_or(usize::MAX));
        let (tokens_max, added) = (self.trunk.config.context, self.pairs.added_tokens());
        let tokens = query.len() + document.len() + added;
        if tokens > tokens_max && request.too_long == TooLong::Refuse {
            return Err(RerankError::TooLong { index, tokens, tokens_max });
        }
        let (of_query, of_document) = longest_first(query.len(), document.len(), tokens_max - added);
        let (tokens, segments) = self.pairs.join(&query[..of_query], &document[..of_document]);
        Ok(Pair {
            tokens,
            segments,
            query_cut_tokens: query.len() - of_query,
            document_cut_tokens: whole - of_document,
        })
    }

    /// Computes the logits of a batch.
    fn compute(&self, batch: &[&Pair]) -> candle_core::Result<Vec<f32>> {
        let tokens: Vec<&[u32]> = batch.iter().map(|pair| &*pair.tokens).collect();
        // Only BERT was trained with segments, whatever a tokenizer says.
        let has_segments = self.trunk.config.architecture == Architecture::Bert;
        let segments = has_segments.then(|| batch.iter().map(|pair| &*pair.segments).collect::<Vec<&[u32]>>());
        self.head.logits(&self.trunk.forward(&tokens, segments.as_deref())?)
    }
}

impl Reranker for CrossEncoder {
    fn name(&self) -> &'static str {
        "candle"
    }

    fn context(&self) -> usize {
        self.trunk.config.context
    }

    fn rerank(&self, request: &RerankRequest) -> Result<RerankScores, RerankError> {
        if request.query.is_empty() {
            return Err(RerankError::EmptyQuery);
        }
        let query = self.tokens(&request.query);
        let pair = |index| {
            if request.cancellation.is_cancelled() {
                return Err(RerankError::Abandoned { tokens: 0 });
            }
            self.pair(index, &query, request)
        };
        let pairs: Vec<Pair> = (0..request.documents.len()).map(pair).collect::<Result<_, _>>()?;
        let lengths: Vec<usize> = pairs.iter().map(|pair| pair.tokens.len()).collect();
        let compute = |batch: &[usize]| self.compute(&batch.iter().map(|&pair| &pairs[pair]).collect::<Vec<_>>());
        let computed = self.trunk.in_batches(&lengths, &request.cancellation, compute, |logit| logit.is_finite());
        let logits = computed.map_err(|stopped| match stopped {
            Stopped::Abandoned { tokens } => RerankError::Abandoned { tokens },
            Stopped::Failed { why } => RerankError::Failed { why },
        })?;
        Ok(RerankScores {
            logits,
            tokens: lengths,
            cut_tokens: pairs.iter().map(|pair| pair.document_cut_tokens).collect(),
            query_cut_tokens: pairs.iter().map(|pair| pair.query_cut_tokens).max().unwrap_or(0),
        })
    }
}
