//! Strings to tokens and back: tokenizers, chat templates, detokenizer, stop strings.
