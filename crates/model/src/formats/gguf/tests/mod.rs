//! Tests of the reader as a whole.

mod damage;
mod facts;
mod mutation;
mod seeds;
mod sound;
mod writing;

use ruvllm_kernels::WeightType;

use super::value::ValueType;
use super::write::{Draft, array, string};

/// A small file with every kind of value, nested arrays and tensors of several types.
pub fn sample() -> Draft {
    let nested = [
        array(ValueType::U8, 2, &[7, 8]),
        array(ValueType::Bool, 1, &[1]),
        array(ValueType::String, 1, &string(b"inner")),
    ];
    Draft::new()
        .string("general.architecture", "llama")
        .entry("test.u8", ValueType::U8, &[250])
        .entry("test.i8", ValueType::I8, &[(-5i8) as u8])
        .entry("test.u16", ValueType::U16, &65_000u16.to_le_bytes())
        .entry("test.i16", ValueType::I16, &(-300i16).to_le_bytes())
        .u32("llama.block_count", 2)
        .entry("test.i32", ValueType::I32, &(-70_000i32).to_le_bytes())
        .entry("test.f32", ValueType::F32, &0.5f32.to_le_bytes())
        .entry("test.bool", ValueType::Bool, &[1])
        .entry("test.u64", ValueType::U64, &u64::MAX.to_le_bytes())
        .entry("test.i64", ValueType::I64, &i64::MIN.to_le_bytes())
        .entry("test.f64", ValueType::F64, &(-2.25f64).to_le_bytes())
        .strings("tokenizer.ggml.tokens", &[b"<s>", b"", "\u{120}t".as_bytes()])
        .array("test.numbers", ValueType::I32, 2, &[1, 0, 0, 0, 255, 255, 255, 255])
        .array("test.bools", ValueType::Bool, 3, &[1, 0, 1])
        .array("test.nested", ValueType::Array, 3, &nested.concat())
        .tensor("token_embd.weight", &[32, 3], WeightType::Q8_0, &[1; 34 * 3])
        .tensor("output_norm.weight", &[5], WeightType::F32, &[2; 20])
        .tensor("blk.0.conv.weight", &[2, 3, 1, 2], WeightType::F16, &[3; 24])
}
