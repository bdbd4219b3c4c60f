//! Every weight format that candle has, against candle: random blocks, and blocks that our quantizer made.

#[path = "../../crates/kernels/tests/it/support/mod.rs"]
#[allow(dead_code)]
mod kernels;

use std::borrow::Cow;

use candle_core::Device;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use kernels::Random;
use ruvllm_kernels::{WeightType, dequantize_row, quantize_row};

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
            check_against_candle(kind, dtype, &bytes, cols);
        }
    }
}

#[test]
fn what_we_quantize_is_what_candle_dequantizes() {
    let mut random = Random(21);
    for kind in WeightType::ALL {
        let Some(dtype) = candle_type(kind) else { continue };
        for _ in 0..20 {
            let row = random.floats(1024);
            let mut bytes = Vec::new();
            quantize_row(kind, &row, &mut bytes).unwrap();
            let candles = check_against_candle(kind, dtype, &bytes, row.len());
            // Steps of 2 bits between -1 and 1 are the widest.
            let worst = row.iter().zip(&candles).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
            assert!(worst < 0.7, "{kind} is off by {worst}");
        }
    }
}

/// Candle's floats, which must be ours.
fn check_against_candle(kind: WeightType, dtype: GgmlDType, bytes: &[u8], cols: usize) -> Vec<f32> {
    let storage = QStorage::from_data(Cow::Borrowed(bytes), &Device::Cpu, dtype).unwrap();
    let tensor = QTensor::new(storage, cols).unwrap().dequantize(&Device::Cpu).unwrap();
    let want = tensor.to_vec1::<f32>().unwrap();
    let mut got = vec![f32::NAN; cols];
    dequantize_row(kind, bytes, &mut got);
    // Where a scaled code and an offset cancel, what is left is as exact as the larger of them.
    let largest = want.iter().fold(0f32, |a, b| a.max(b.abs()));
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        assert!((got - want).abs() <= largest * 1e-6, "{kind} element {i}: {got} for {want}");
    }
    want
}
