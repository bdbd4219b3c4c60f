#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ruvllm_fuzz::packs::kernel_pack::run(bytes));
