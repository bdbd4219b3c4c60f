/// The number of a token in a model's vocabulary. A plain number, as in every tokenizer and API, and an alias rather than
/// a type of its own: arrays of them cross to tokenizers, grammars and clients without being copied or wrapped.
pub type TokenId = u32;
