//! Dequantizing every weight format, against two implementations that are not ours: gguf-py, by stored blocks, and
//! candle, by random ones.

mod support;

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
    let fixture: Vec<&str> = include_str!("fixtures/blocks.txt").lines().collect();
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

/// Only here: building candle for every processor that we emulate would take longer than all other tests.
#[cfg(target_arch = "x86_64")]
mod against_candle {
    use std::borrow::Cow;

    use candle_core::Device;
    use candle_core::quantized::{GgmlDType, QStorage, QTensor};

    use super::support::Random;
    use super::*;

    /// Candle's name of a format that it has.
    fn candle_type(kind: WeightType) -> Option<GgmlDType> {
        Some(match kind {
            WeightType::F32 => GgmlDType::F32,
            WeightType::F16 => GgmlDType::F16,
            WeightType::Bf16 => GgmlDType::BF16,
            WeightType::Q4_0 => GgmlDType::Q4_0,
            WeightType::Q4_1 => GgmlDType::Q4_1,
            WeightType::Q5_0 => GgmlDType::Q5_0,
            WeightType::Q5_1 => GgmlDType::Q5_1,
            WeightType::Q8_0 => GgmlDType::Q8_0,
            WeightType::Q2K => GgmlDType::Q2K,
            WeightType::Q3K => GgmlDType::Q3K,
            WeightType::Q4K => GgmlDType::Q4K,
            WeightType::Q5K => GgmlDType::Q5K,
            WeightType::Q6K => GgmlDType::Q6K,
            WeightType::Iq4Nl | WeightType::Iq4Xs | WeightType::Mxfp4 => return None,
        })
    }

    #[test]
    fn random_blocks_dequantize_as_in_candle() {
        let mut random = Random(20);
        for kind in WeightType::ALL {
            let Some(dtype) = candle_type(kind) else { continue };
            assert_eq!(dtype.block_size(), kind.block_len());
            assert_eq!(dtype.type_size(), kind.block_bytes());
            for _ in 0..20 {
                let cols = kind.block_len() * (1 + random.below(4));
                let bytes = random.weights(kind, 1, cols);
                let storage = QStorage::from_data(Cow::Borrowed(&bytes), &Device::Cpu, dtype).unwrap();
                let tensor = QTensor::new(storage, cols).unwrap().dequantize(&Device::Cpu).unwrap();
                check(kind, &bytes, &tensor.to_vec1::<f32>().unwrap());
            }
        }
    }
}
