//! A small tokenizer that can write most of what grammars ask for.

use std::sync::{Arc, LazyLock};

use ruvllm_text::{GrammarCompiler, TokenKind, Tokenizer, Vocabulary};

/// All of ASCII that can be seen, space, newline, a few words, and a token that ends the answer.
pub(super) static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let bytes = ('!'..='~').chain(['Ġ', 'Ċ', 'Ã', '©']).map(String::from);
    let tokens: Vec<String> = bytes.chain(["{\"", "\":", "abc", "123", "true", "<|end|>"].map(String::from)).collect();
    let mut kinds = vec![TokenKind::Normal; tokens.len()];
    *kinds.last_mut().unwrap() = TokenKind::Control;
    let eos = Some(tokens.len() as u32 - 1);
    let (model, pre) = ("gpt2".to_owned(), Some("gpt-2".to_owned()));
    Arc::new(Tokenizer::from_vocabulary(Vocabulary { model, pre, tokens, kinds, eos, ..Default::default() }).unwrap())
});

pub(super) static COMPILER: LazyLock<GrammarCompiler> = LazyLock::new(|| GrammarCompiler::new(&TOKENIZER).unwrap());
