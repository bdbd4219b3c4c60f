//! Text to token ids, and token ids to bytes.
//!
//! A tokenizer first finds special tokens ([`special_tokens`]), then hands the runs of plain text between them to one
//! of the encoders. The encoders never produce a control token.

mod bpe;
mod byte_alphabet;
mod end_of_generation;
mod hugging_face;
mod merge;
mod pair;
mod patterns;
mod pre_tokenizer;
mod run_cache;
mod sentence_piece;
mod special_tokens;
mod token_table;
mod tokenizer_json;

use std::ops::Range;

use crate::chat_template::RenderedPrompt;
use crate::vocabulary::{TokenKind, Vocabulary, VocabularyError, WhitespaceAfterSpecial};
use bpe::{Bpe, VISIBLE_SPACE};
use hugging_face::HuggingFace;
pub use pair::PairTemplate;
use patterns::Spelling;
use pre_tokenizer::PreTokenizer;
pub use run_cache::RunCache;
use sentence_piece::{SentencePiece, SpacePrefix};
pub use special_tokens::SpecialTokens;
use special_tokens::{Piece, SpecialTokenFinder, Surroundings, is_trusted};
use token_table::TokenTable;

/// Why no tokenizer could be built.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error(transparent)]
    Vocabulary(#[from] VocabularyError),
    #[error("the tokenizer model {model:?} is not supported; supported are gpt2, llama and gemma4")]
    UnsupportedModel { model: String },
    #[error("the pre-tokenizer {pre:?} is not known; known are {known}")]
    UnknownPreTokenizer { pre: String, known: String },
    #[error(
        "the vocabulary names no pre-tokenizer (tokenizer.ggml.pre); set it to \"default\" if that is what is meant"
    )]
    MissingPreTokenizer,
    #[error("{count} special tokens cannot be searched for: {reason}")]
    SpecialTokens { count: usize, reason: String },
    #[error(
        "the tokenizer model {model:?} cannot be written as tokenizer.json; use the one that the model was published with"
    )]
    NotWritable { model: String },
    #[error("tokenizer.json is not the model's: {reason}")]
    OtherTokenizer { reason: String },
    #[error("tokenizer.json cannot be read: {reason}")]
    TokenizerJson { reason: String },
}

/// Encodes text into token ids and knows the bytes and kind of each token. Shared by all requests; never changes.
#[derive(Debug)]
pub struct Tokenizer {
    encoder: Encoder,
    table: TokenTable,
    specials: SpecialTokenFinder,
    end_of_generation: Vec<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    adds_bos: bool,
    adds_eos: bool,
    /// How two texts are put together, if the file says so.
    pair: Option<PairTemplate>,
    space_prefix: SpacePrefix,
    /// Maximum number of bytes that a token stands for.
    longest_token: usize,
}

#[derive(Debug)]
enum Encoder {
    Bpe(Bpe),
    SentencePiece(SentencePiece),
    HuggingFace(Box<HuggingFace>),
}

impl Tokenizer {
    /// Builds the tokenizer that a model file describes.
    pub fn from_vocabulary(vocabulary: Vocabulary) -> Result<Self, TokenizerError> {
        vocabulary.validate()?;
        let ids = vocabulary.ids_by_text()?;
        let is_sentence_piece = vocabulary.model == "llama";
        let space_prefix = match vocabulary.add_space_prefix {
            Some(true) | None if is_sentence_piece => SpacePrefix::Added,
            _ => SpacePrefix::Omitted,
        };
        let (encoder, usually_adds_bos) = match vocabulary.model.as_str() {
            "gpt2" | "gemma4" => {
                let own_name = (vocabulary.model == "gemma4").then_some("gemma4");
                let name = own_name.or(vocabulary.pre.as_deref()).ok_or(TokenizerError::MissingPreTokenizer)?;
                let cutter = pre_tokenizer(name)?;
                let adds_bos = cutter.adds_bos;
                (Encoder::Bpe(Bpe::new(&vocabulary, &ids, cutter)?), adds_bos)
            }
            "llama" => (Encoder::SentencePiece(SentencePiece::new(&vocabulary, &ids, space_prefix)), true),
            _ => return Err(TokenizerError::UnsupportedModel { model: vocabulary.model }),
        };
        let swallows_whitespace_after = vocabulary.whitespace_after_special == WhitespaceAfterSpecial::Swallowed;
        // The tokens that stand for a whole text, not for a part of a conversation, keep what follows them.
        let kept = ["<unk>", "<s>", "<|endoftext|>"];
        let decoding = match &encoder {
            Encoder::Bpe(bpe) if bpe.spelling() == Spelling::Bytes => Decoding::ByteLevel,
            _ => Decoding::VisibleSpaces,
        };
        let table = decoding.table(vocabulary.tokens, vocabulary.kinds);
        let specials = SpecialTokenFinder::new(&table, |id| Surroundings {
            swallows_whitespace_after: swallows_whitespace_after && !kept.contains(&table.text(id)),
            ..Default::default()
        })?;
        Ok(Self {
            longest_token: table.longest(),
            end_of_generation: end_of_generation::ids(&table, [vocabulary.eos, vocabulary.eot].into_iter().flatten()),
            encoder,
            table,
            specials,
            bos: vocabulary.bos,
            eos: vocabulary.eos,
            adds_bos: vocabulary.add_bos.unwrap_or(usually_adds_bos),
            adds_eos: vocabulary.add_eos.unwrap_or(false),
            pair: None,
            space_prefix,
        })
    }

    /// Builds the tokenizer that a Hugging Face `tokenizer.json` describes.
    pub fn from_tokenizer_json(bytes: &[u8]) -> Result<Self, TokenizerError> {
        hugging_face::load(bytes)
    }

    /// Encodes text, without BOS or EOS (see [`Self::with_bos_and_eos`]).
    ///
    /// A byte-level vocabulary may lack rare bytes; those are left out, as the model has no way to read them.
    /// [`Self::first_unencodable`] finds them.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Vec<u32> {
        self.encode_guarded(text, special, &[])
    }

    /// Encodes a rendered chat: special tokens of the template become tokens, those of the conversation stay text.
    pub fn encode_prompt(&self, prompt: &RenderedPrompt) -> Vec<u32> {
        self.encode_guarded(prompt.text(), SpecialTokens::Parse, prompt.guards())
    }

    /// Encodes a rendered chat as [`Self::encode_prompt`] does, and returns which of the tokens hold bytes of `part` of its
    /// text; possibly one more where the model puts a space before a text. Runs of text in `runs` are not encoded again.
    pub fn encode_prompt_with_part(
        &self,
        prompt: &RenderedPrompt,
        part: Range<usize>,
        mut runs: Option<&mut RunCache>,
    ) -> (Vec<u32>, Range<usize>) {
        let mut out = Vec::with_capacity(prompt.text().len() / 3);
        let mut tokens: Option<Range<usize>> = None;
        for piece in self.specials.split(prompt.text(), SpecialTokens::Parse, prompt.guards()) {
            let first = out.len();
            let Piece::Text(run) = piece else {
                self.encode_piece(&piece, &mut out);
                continue;
            };
            match &mut runs {
                Some(runs) => runs.encode(run, &mut out, |out| self.encode_piece(&piece, out)),
                None => self.encode_piece(&piece, &mut out),
            }
            let mut at = run.as_ptr().addr() - prompt.text().as_ptr().addr();
            for (index, id) in out.iter().enumerate().skip(first) {
                let end = at + self.token_bytes(*id).len();
                if at < part.end && end > part.start {
                    tokens = Some(tokens.map_or(index, |tokens| tokens.start)..index + 1);
                }
                at = end;
            }
        }
        let tokens = tokens.unwrap_or(out.len()..out.len());
        (out, tokens)
    }

    fn encode_guarded(&self, text: &str, special: SpecialTokens, guards: &[usize]) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 3);
        self.specials.split(text, special, guards).iter().for_each(|piece| self.encode_piece(piece, &mut out));
        out
    }

    fn encode_piece(&self, piece: &Piece<'_>, out: &mut Vec<u32>) {
        match (piece, &self.encoder) {
            (Piece::Token(id), _) => out.push(*id),
            (Piece::Text(run), Encoder::Bpe(bpe)) => bpe.encode(run, out),
            (Piece::Text(run), Encoder::SentencePiece(pieces)) => pieces.encode(run, out),
            (Piece::Text(run), Encoder::HuggingFace(model)) => model.encode(run, &self.table, out),
        }
    }

    /// Returns the first character of `text` that encoding would leave out or replace by "unknown".
    pub fn first_unencodable(&self, text: &str) -> Option<char> {
        text.chars().find(|&char| match &self.encoder {
            Encoder::Bpe(bpe) => !bpe.can_encode(char),
            Encoder::SentencePiece(pieces) => !pieces.can_encode(char),
            Encoder::HuggingFace(_) => false,
        })
    }

    /// Returns the minimum number of tokens of a text of `text_bytes` bytes: none stands for more bytes than the longest. 0 where
    /// texts may be shortened before they become tokens.
    pub fn tokens_min(&self, text_bytes: usize) -> usize {
        match &self.encoder {
            Encoder::HuggingFace(_) => 0,
            Encoder::Bpe(_) | Encoder::SentencePiece(_) => text_bytes / self.longest_token.max(1),
        }
    }

    /// Adds the BOS and EOS that the model was trained with. A BOS that is already there (many chat templates write
    /// it themselves) is not doubled.
    pub fn with_bos_and_eos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if let Some(bos) = self.bos.filter(|&bos| self.adds_bos && ids.first() != Some(&bos)) {
            ids.insert(0, bos);
        }
        if let Some(eos) = self.eos.filter(|&eos| self.adds_eos && ids.last() != Some(&eos)) {
            ids.push(eos);
        }
        ids
    }

    /// Returns the bytes that a token adds to the output; none for control tokens and for ids outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.table.bytes(id)
    }

    /// Returns the token as the vocabulary writes it, control tokens included; empty for ids outside the vocabulary.
    pub fn token_text(&self, id: u32) -> &str {
        self.table.text(id)
    }

    pub fn token_id(&self, text: &str) -> Option<u32> {
        (0..self.table.len() as u32).find(|&id| self.table.text(id) == text)
    }

    pub fn vocab_size(&self) -> usize {
        self.table.len()
    }

    pub fn is_control(&self, id: u32) -> bool {
        matches!(self.table.kind(id), TokenKind::Control | TokenKind::Unknown)
    }

    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.end_of_generation.binary_search(&id).is_ok()
    }

    /// Returns all tokens that end a generation, ascending.
    pub fn end_of_generation(&self) -> &[u32] {
        &self.end_of_generation
    }

    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    pub fn adds_bos(&self) -> bool {
        self.adds_bos
    }

    pub fn adds_eos(&self) -> bool {
        self.adds_eos
    }

    /// Returns how two texts are put together for models that read pairs of texts.
    pub fn pair_template(&self) -> Option<&PairTemplate> {
        self.pair.as_ref()
    }

    /// Returns whether a text's first token carries a space that the text does not have.
    pub(crate) fn adds_space_prefix(&self) -> bool {
        self.space_prefix == SpacePrefix::Added
    }

    /// Returns the texts of special tokens, which a conversation must not contain as such.
    pub(crate) fn trusted_texts(&self) -> impl Iterator<Item = &str> {
        (0..self.table.len() as u32)
            .filter(|&id| is_trusted(self.table.kind(id), self.table.text(id)))
            .map(|id| self.table.text(id))
            .filter(|text| !text.is_empty())
    }
}

/// How a vocabulary writes the bytes of its normal tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decoding {
    ByteLevel,
    VisibleSpaces,
    Plain,
}

impl Decoding {
    fn table(self, texts: Vec<String>, kinds: Vec<TokenKind>) -> TokenTable {
        let alphabet = byte_alphabet::ByteDecoder::new();
        TokenTable::new(texts, kinds, |text, bytes| match self {
            Self::ByteLevel => alphabet.decode(text, bytes),
            Self::VisibleSpaces => bytes.extend_from_slice(text.replace(VISIBLE_SPACE, " ").as_bytes()),
            Self::Plain => bytes.extend_from_slice(text.as_bytes()),
        })
    }
}

fn pre_tokenizer(name: &str) -> Result<PreTokenizer, TokenizerError> {
    PreTokenizer::named(name).ok_or_else(|| TokenizerError::UnknownPreTokenizer {
        pre: name.to_owned(),
        known: patterns::names().collect::<Vec<_>>().join(", "),
    })
}

#[cfg(test)]
mod tests;
