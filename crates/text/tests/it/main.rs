//! All tests of this crate from outside: one program, as each more costs a link.

mod grammar_support;
#[path = "../../../../fuzz/replay.rs"]
mod replay;
mod support;

mod chat_templates;
mod fuzz_corpus;
mod grammar;
mod grammar_gbnf;
mod grammar_hostile;
mod json_schema_suite;
mod llama_cpp_vectors;
mod published_schemas;
mod smollm2;
mod tokenizer_json;
mod tools;
