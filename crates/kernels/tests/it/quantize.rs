//! Quantizing: what is lost stays within the step of each format, whatever the weights are like.

use ruvllm_kernels::{QuantizeError, WeightType, dequantize_row, quantize_row};

use crate::support::Random;

/// All formats that are written as blocks of integers: levels, and whether the values lie on both sides of zero alike.
const INTEGERS: [(WeightType, usize, bool); 10] = [
    (WeightType::Q4_0, 16, true),
    (WeightType::Q4_1, 16, false),
    (WeightType::Q5_0, 32, true),
    (WeightType::Q5_1, 32, false),
    (WeightType::Q8_0, 256, true),
    (WeightType::Q2K, 4, false),
    (WeightType::Q3K, 8, true),
    (WeightType::Q4K, 16, false),
    (WeightType::Q5K, 32, false),
    (WeightType::Q6K, 64, true),
];

fn quantized(kind: WeightType, row: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    quantize_row(kind, row, &mut bytes).unwrap();
    assert_eq!(Some(bytes.len()), kind.row_bytes(row.len()));
    bytes
}

/// There and back.
fn through(kind: WeightType, row: &[f32]) -> Vec<f32> {
    let mut back = vec![f32::NAN; row.len()];
    dequantize_row(kind, &quantized(kind, row), &mut back);
    back
}

fn rms(values: impl ExactSizeIterator<Item = f32>) -> f64 {
    let len = values.len() as f64;
    (values.map(|value| f64::from(value).powi(2)).sum::<f64>() / len).sqrt()
}

fn rms_error(row: &[f32], back: &[f32]) -> f64 {
    rms(row.iter().zip(back).map(|(a, b)| a - b))
}

fn relative_error(kind: WeightType, row: &[f32]) -> f64 {
    rms_error(row, &through(kind, row)) / rms(row.iter().copied())
}

/// Near enough to a normal distribution.
fn gaussian(random: &mut Random) -> f32 {
    (0..12).map(|_| random.float()).sum::<f32>() * 0.5
}

fn gaussians(random: &mut Random, len: usize) -> Vec<f32> {
    (0..len).map(|_| gaussian(random)).collect()
}

/// 256 weights of many kinds.
fn some_block(random: &mut Random) -> Vec<f32> {
    let size = 10f32.powi(random.below(7) as i32 - 4);
    let weights: Vec<f32> = match random.below(7) {
        0 => gaussians(random, 256),
        1 => random.floats(256),
        2 => (0..256).map(|_| gaussian(random).powi(3)).collect(),
        3 => (0..256).map(|_| if random.below(20) == 0 { random.float() } else { 0.0 }).collect(),
        4 => (0..256).map(|_| if random.below(2) == 0 { 1.0 } else { -1.0 }).collect(),
        5 => (0..256).map(|_| -0.5 + random.float() * 0.1).collect(),
        _ => (0..256).map(|i| gaussian(random) * if i == 77 { 50.0 } else { 1.0 }).collect(),
    };
    weights.into_iter().map(|weight| weight * size).collect()
}

#[test]
fn errors_stay_within_the_step() {
    let mut random = Random(1);
    for round in 0..2000 {
        let row = some_block(&mut random);
        for (kind, levels, symmetric) in INTEGERS {
            let back = through(kind, &row);
            for (row, back) in row.chunks(kind.block_len()).zip(back.chunks(kind.block_len())) {
                let (least, most) = row.iter().fold((0f32, 0f32), |(least, most), w| (least.min(*w), most.max(*w)));
                let range = if symmetric { 2.0 * most.max(-least) } else { most - least };
                // Halves that are not normal have steps of their own.
                let step = f64::from((range / (levels - 1) as f32).max(1e-7));
                let rms = rms_error(row, back);
                assert!(rms <= step * 0.5, "{kind}, round {round}: rms error {rms} with steps of {step}");
                let worst = row.iter().zip(back).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
                // The least squares may give the one weight at the end away for all others.
                assert!(worst <= step * 1.25, "{kind}, round {round}: error {worst} with steps of {step}");
            }
        }
    }
}

/// What ggml's own quantizer leaves of a normal distribution (libggml-base 0.25.3, `ggml_quantize_chunk` without an
/// importance matrix, a million weights).
#[test]
fn no_more_is_lost_than_with_ggml() {
    let row = gaussians(&mut Random(2), 1 << 18);
    for (kind, ggml) in [
        (WeightType::Q4_0, 0.0860),
        (WeightType::Q4_1, 0.0783),
        (WeightType::Q5_0, 0.0427),
        (WeightType::Q5_1, 0.0379),
        (WeightType::Q8_0, 0.0054),
        (WeightType::Q2K, 0.2967),
        (WeightType::Q3K, 0.1510),
        (WeightType::Q4K, 0.0714),
        (WeightType::Q5K, 0.0361),
        (WeightType::Q6K, 0.0178),
    ] {
        let ours = relative_error(kind, &row);
        assert!(ours < ggml, "{kind}: {ours}, ggml {ggml}");
        assert!(ours > ggml * 0.8, "{kind}: {ours} is too good to be true");
    }
}

#[test]
fn more_bits_lose_less() {
    let row = gaussians(&mut Random(3), 1 << 16);
    let errors = [
        WeightType::Q2K,
        WeightType::Q3K,
        WeightType::Q4_0,
        WeightType::Q4K,
        WeightType::Q5_0,
        WeightType::Q5K,
        WeightType::Q6K,
        WeightType::Q8_0,
        WeightType::Bf16,
        WeightType::F16,
        WeightType::F32,
    ]
    .map(|kind| (kind, relative_error(kind, &row)));
    for pair in errors.windows(2) {
        assert!(pair[1].1 < pair[0].1, "{pair:?}");
    }
    assert_eq!(errors[10].1, 0.0);
}

#[test]
fn zeros_stay_zeros() {
    for (kind, ..) in INTEGERS {
        assert_eq!(through(kind, &[0.0; 256]), [0.0; 256], "{kind}");
        assert_eq!(through(kind, &[-0.0; 256]), [0.0; 256], "{kind}");
    }
}

#[test]
fn constants_are_kept_to_the_precision_of_halves() {
    for (kind, ..) in INTEGERS {
        for constant in [1.0, -1.0, 0.337, -0.337, 12.345, -1e-3, 3e4, -3e4] {
            let row = [constant; 256];
            let error = rms_error(&row, &through(kind, &row)) / f64::from(constant.abs());
            assert!(error < 2e-3, "{kind}: {constant} is off by {error}");
        }
    }
}

#[test]
fn a_row_of_the_formats_own_values_is_found_again() {
    let mut random = Random(4);
    for (kind, ..) in INTEGERS {
        let mut own = vec![0.0; 4096];
        dequantize_row(kind, &random.weights(kind, 1, own.len()), &mut own);
        let error = relative_error(kind, &own);
        let allowed = if kind == WeightType::Q2K { 0.1 } else { 0.02 };
        assert!(error < allowed, "{kind}: {error}");
    }
}

#[test]
fn the_smallest_and_the_largest_weights_survive() {
    let mut random = Random(5);
    let shape = gaussians(&mut random, 256);
    for (kind, levels, _) in INTEGERS {
        for size in [1e-6f32, 1e-5, 1e4] {
            let row: Vec<f32> = shape.iter().map(|weight| weight * size).collect();
            let error = rms_error(&row, &through(kind, &row));
            // Where halves run out, their own smallest step is the limit.
            let allowed = f64::from(size) * 3.0 / levels as f64 + 1.2e-7;
            assert!(error < allowed, "{kind} at {size:e}: {error:e} of {allowed:e}");
        }
        assert_eq!(through(kind, &[1e-9; 256]), [0.0; 256], "{kind}: less than halves can say");
        assert_eq!(through(kind, &[f32::from_bits(1); 256]), [0.0; 256], "{kind}");
    }
}

#[test]
fn what_is_too_large_is_refused_and_the_limit_is_not() {
    for kind in WeightType::ALL {
        let mut row = [0.5f32; 256];
        row[9] = f32::MAX;
        let mut bytes = vec![1, 2, 3];
        match quantize_row(kind, &row, &mut bytes) {
            Ok(()) => assert_eq!(kind, WeightType::F32),
            Err(QuantizeError::Unsupported { .. }) => {}
            Err(QuantizeError::TooLarge { kind: named, index, value, max }) => {
                assert_eq!((named, index, value), (kind, 9, f32::MAX));
                assert_eq!(bytes, [1, 2, 3]);
                for limit in [max, -max] {
                    row[9] = limit;
                    row[10] = -limit;
                    let back = through(kind, &row);
                    assert!(back.iter().all(|value| value.is_finite()), "{kind}: {back:?}");
                    assert!((back[9] / limit - 1.0).abs() < 0.5, "{kind}: {} for {limit}", back[9]);
                }
            }
            Err(other) => panic!("{kind}: {other}"),
        }
    }
}

#[test]
fn what_is_not_finite_is_refused_by_its_place() {
    for kind in WeightType::ALL {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut row = [1.0f32; 256];
            (row[200], row[201]) = (bad, f32::NAN);
            match quantize_row(kind, &row, &mut Vec::new()).unwrap_err() {
                QuantizeError::Unsupported { .. } => {}
                QuantizeError::NotFinite { index, value } => {
                    assert_eq!((index, value.to_bits()), (200, bad.to_bits()), "{kind}");
                }
                other => panic!("{kind}: {other}"),
            }
        }
    }
}

#[test]
fn parts_of_blocks_are_refused() {
    for (kind, ..) in INTEGERS {
        let len = kind.block_len() + 1;
        let error = quantize_row(kind, &vec![0.0; len], &mut Vec::new()).unwrap_err();
        assert_eq!(error, QuantizeError::PartialBlock { kind, len, block_len: kind.block_len() });
    }
    let error = quantize_row(WeightType::Q4K, &[0.0; 255], &mut Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "a row of 255 elements is not a whole number of Q4_K blocks, which hold 256");
}

#[test]
fn formats_that_are_only_read_say_so() {
    for kind in [WeightType::Iq4Nl, WeightType::Iq4Xs, WeightType::Mxfp4] {
        let error = quantize_row(kind, &[0.0; 256], &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), format!("{kind} can be read but not written"));
    }
}

#[test]
fn floats_are_rounded_to_the_nearest() {
    let row = [1.0f32, -2.5, 1.0 + 1.0 / 4096.0, 1e-7, 65504.0];
    let halves = row.map(|value| half::f16::from_f32(value).to_f32());
    assert_eq!(through(WeightType::F16, &row), halves);
    let brains = row.map(|value| half::bf16::from_f32(value).to_f32());
    assert_eq!(through(WeightType::Bf16, &row), brains);
    assert_eq!(through(WeightType::F32, &row), row);
}

#[test]
fn an_empty_row_has_no_bytes() {
    for (kind, ..) in INTEGERS {
        assert!(quantized(kind, &[]).is_empty());
    }
}
