#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ruvllm_fuzz::memory::vector_graph::run(bytes));
