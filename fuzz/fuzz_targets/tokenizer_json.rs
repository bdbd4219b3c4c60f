#![no_main]

libfuzzer_sys::fuzz_target!(init: ruvllm_fuzz::allow_fenced_panics(), |bytes: &[u8]| ruvllm_fuzz::text::tokenizer_json::run(bytes));
