//! How a model that reads two texts at a time wants them put together, such as `[CLS] first [SEP] second [SEP]`.

use std::ops::Range;

/// Tokens around a pair of texts, and the segment of every part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairTemplate {
    before: Vec<(u32, u32)>,
    between: Vec<(u32, u32)>,
    after: Vec<(u32, u32)>,
    first_segment: u32,
    second_segment: u32,
}

impl PairTemplate {
    /// Takes the template from an encoded pair: tokens with their segments, and where the texts are. `None` if a text is empty.
    pub(super) fn new(tokens: &[(u32, u32)], first: Range<usize>, second: Range<usize>) -> Option<Self> {
        let segment_of = |text: &Range<usize>| tokens.get(text.clone())?.first().map(|(_, segment)| *segment);
        Some(Self {
            first_segment: segment_of(&first)?,
            second_segment: segment_of(&second)?,
            before: tokens.get(..first.start)?.to_vec(),
            between: tokens.get(first.end..second.start)?.to_vec(),
            after: tokens.get(second.end..)?.to_vec(),
        })
    }

    /// Returns the number of tokens that are added to those of the texts.
    pub fn added_tokens(&self) -> usize {
        self.before.len() + self.between.len() + self.after.len()
    }

    /// Returns the largest number of a segment.
    pub fn segment_max(&self) -> u32 {
        let added = [&self.before, &self.between, &self.after].into_iter().flatten().map(|(_, segment)| *segment);
        added.chain([self.first_segment, self.second_segment]).max().unwrap_or(0)
    }

    /// Returns the tokens of a pair, and the segment of each.
    pub fn join(&self, first: &[u32], second: &[u32]) -> (Vec<u32>, Vec<u32>) {
        let of = |text: &[u32], segment: u32| text.iter().map(move |token| (*token, segment)).collect::<Vec<_>>();
        let (first, second) = (of(first, self.first_segment), of(second, self.second_segment));
        [&self.before, &first, &self.between, &second, &self.after].into_iter().flatten().copied().unzip()
    }
}

#[cfg(test)]
mod tests {
    use crate::{SpecialTokens, Tokenizer};

    fn tokenizer(post_processor: &str) -> Tokenizer {
        let json = format!(
            r###"{{ "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "decoder": null,
                "added_tokens": [
                  {{ "id": 0, "content": "[CLS]", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false }},
                  {{ "id": 1, "content": "[SEP]", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false }}],
                "pre_tokenizer": {{ "type": "BertPreTokenizer" }}, "post_processor": {post_processor},
                "model": {{ "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                            "max_input_chars_per_word": 100,
                            "vocab": {{ "[CLS]": 0, "[SEP]": 1, "[UNK]": 2, "a": 3, "b": 4, "c": 5 }} }} }}"###
        );
        Tokenizer::from_tokenizer_json(json.as_bytes()).unwrap()
    }

    fn joined(post_processor: &str) -> Option<(Vec<u32>, Vec<u32>)> {
        let tokenizer = tokenizer(post_processor);
        let ids = |text| tokenizer.encode(text, SpecialTokens::AsText);
        Some(tokenizer.pair_template()?.join(&ids("a b"), &ids("c")))
    }

    #[test]
    fn pairs_are_put_together_as_the_file_says() {
        let bert = r#"{ "type": "BertProcessing", "sep": ["[SEP]", 1], "cls": ["[CLS]", 0] }"#;
        assert_eq!(joined(bert), Some((vec![0, 3, 4, 1, 5, 1], vec![0, 0, 0, 0, 1, 1])));
        let roberta = r#"{ "type": "RobertaProcessing", "sep": ["[SEP]", 1], "cls": ["[CLS]", 0],
                           "trim_offsets": true, "add_prefix_space": false }"#;
        assert_eq!(joined(roberta), Some((vec![0, 3, 4, 1, 1, 5, 1], vec![0; 7])));
        assert_eq!(tokenizer(bert).pair_template().unwrap().added_tokens(), 3);
        assert_eq!(tokenizer(bert).pair_template().unwrap().segment_max(), 1);
    }

    #[test]
    fn a_file_that_puts_nothing_between_texts_has_no_pairs() {
        assert_eq!(joined("null"), None);
    }
}
