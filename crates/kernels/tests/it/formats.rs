//! Dequantizing every weight format against an implementation that is not ours: blocks that gguf-py dequantized.
//! The same against candle is among the tests of the root package, because candle takes long to build.

use crate::support::{Random, linear};
use ruvllm_kernels::{WeightType, dequantize_row};

/// Equal up to the order of roundings. Where a scaled code and an offset cancel, what is left is as exact as the
/// larger of them, so the error is measured by the largest value of the row.
fn check(kind: WeightType, bytes: &[u8], want: &[f32]) {
    let mut got = vec![f32::NAN; want.len()];
    dequantize_row(kind, bytes, &mut got);
    let largest = want.iter().fold(0f32, |a, b| a.max(b.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= largest * 1e-6, "{kind} element {i}: {got} for {want}");
    }
}

fn bytes_of_hex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

#[test]
fn stored_blocks_dequantize_as_in_gguf_py() {
    let fixture: Vec<&str> = include_str!("../fixtures/blocks.txt").lines().collect();
    let mut seen = vec![WeightType::F32];
    for entry in fixture.chunks_exact(3) {
        let kind = WeightType::ALL.into_iter().find(|kind| kind.name() == entry[0]).unwrap();
        let want: Vec<f32> = entry[2].split(' ').map(|value| value.parse().unwrap()).collect();
        check(kind, &bytes_of_hex(entry[1]), &want);
        seen.push(kind);
    }
    seen.sort_unstable();
    assert_eq!(seen, WeightType::ALL, "every type is covered");
}

#[test]
fn f32_is_taken_as_it_is() {
    let values = [1.5f32, -0.0, 1e-42, f32::MAX, f32::INFINITY];
    let mut got = [0f32; 5];
    dequantize_row(WeightType::F32, &values.map(f32::to_le_bytes).concat(), &mut got);
    assert_eq!(got.map(f32::to_bits), values.map(f32::to_bits));
}

#[test]
#[should_panic(expected = "row length of Q4_K")]
fn a_row_of_another_length_is_refused() {
    dequantize_row(WeightType::Q4K, &[0; 144], &mut [0.0; 255]);
}

#[test]
fn rows_of_tiles_have_the_bits_of_what_was_packed() {
    let mut random = Random(16);
    for kind in WeightType::ALL {
        let (rows, cols) = (37, 512);
        let bytes = random.weights(kind, rows, cols);
        let packed = linear(kind, rows, cols, &bytes);
        for (row, raw) in bytes.chunks_exact(bytes.len() / rows).enumerate() {
            let (mut want, mut got) = (vec![0.0; cols], vec![f32::NAN; cols]);
            dequantize_row(kind, raw, &mut want);
            packed.row(row, &mut got);
            let bits = |floats: &[f32]| floats.iter().map(|float| float.to_bits()).collect::<Vec<u32>>();
            assert_eq!(bits(&got), bits(&want), "{kind} row {row}");
        }
    }
}
