//! Matmul of every weight type on every kernel set, against f64 sums of the dequantized weights.

mod support;

use ruvllm_kernels::ops::{Activations, Linear, Matrix, Output, matmul, quantize, rms_norm};
use ruvllm_kernels::{PackError, PackedMatrix, Pool, WeightType, dequantize_row};
use support::{Random, matrix, pools};

/// A batch times one matrix, through the same calls as a forward pass.
fn product(pool: &mut Pool, kind: WeightType, rows: usize, x: &[Vec<f32>], bytes: &[u8]) -> Vec<Vec<f32>> {
    let cols = x[0].len();
    let weights = Linear::new(vec![PackedMatrix::pack(kind, rows, cols, bytes).unwrap()], None).unwrap();
    let input = matrix(pool, x);
    let activations = Activations::new(pool, x.len(), cols);
    let mut out = Matrix::new(pool, x.len(), rows);
    let all: Vec<usize> = (0..x.len()).collect();
    let ones = vec![1.0; cols];
    pool.run(|worker| {
        rms_norm(worker, &input, &all, &ones, 1e-6, &activations);
        worker.barrier();
        matmul(worker, &weights, &activations, x.len(), &out, Output::Store);
        worker.barrier();
        matmul(worker, &weights, &activations, x.len(), &out, Output::Add);
    });
    (0..x.len()).map(|t| out.row_mut(t).iter().map(|v| v / 2.0).collect()).collect()
}

fn normalized(row: &[f32]) -> Vec<f64> {
    let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / row.len() as f64;
    row.iter().map(|v| f64::from(*v) / (mean + 1e-6).sqrt()).collect()
}

/// Half a rounding step of the activation codes of each group of 32.
fn rounding(x: &[f64]) -> Vec<f64> {
    x.chunks(32)
        .flat_map(|group| {
            let largest = group.iter().fold(0f64, |a, b| a.max(b.abs()));
            vec![largest / 127.0 / 2.0; group.len()]
        })
        .collect()
}

#[test]
fn every_type_on_every_kernel_set_equals_the_f64_product_within_the_rounding_of_activations() {
    let mut random = Random(1);
    for kind in WeightType::ALL {
        for (set, mut pool) in pools() {
            let block = kind.block_len();
            let cols =
                block.max(if block == 1 { 1 } else { 32 }) * (1 + random.below(3)) + if block == 1 { 37 } else { 0 };
            let (rows, tokens) = (1 + random.below(50), 1 + random.below(19));
            let bytes = random.weights(kind, rows, cols);
            let x: Vec<Vec<f32>> = (0..tokens).map(|_| random.floats(cols)).collect();
            let got = product(&mut pool, kind, rows, &x, &bytes);
            let mut weights = vec![0f32; cols];
            for (r, raw) in bytes.chunks_exact(kind.row_bytes(cols).unwrap()).enumerate() {
                dequantize_row(kind, raw, &mut weights);
                for (t, row) in x.iter().enumerate() {
                    let x = normalized(row);
                    let step = if block == 1 { vec![0.0; cols] } else { rounding(&x) };
                    let want: f64 = x.iter().zip(&weights).map(|(x, w)| x * f64::from(*w)).sum();
                    let size: f64 = x.iter().zip(&weights).map(|(x, w)| (x * f64::from(*w)).abs()).sum();
                    let bound: f64 = step.iter().zip(&weights).map(|(s, w)| s * f64::from(w.abs())).sum();
                    let error = (f64::from(got[t][r]) - want).abs();
                    assert!(
                        error <= bound * 1.001 + size * 2e-5 + 1e-6,
                        "{kind} on {}: row {r} of {rows}, token {t} of {tokens}, {cols} columns: {} for {want}, bound {bound}",
                        set.name(),
                        got[t][r]
                    );
                }
            }
        }
    }
}

#[test]
fn kernel_sets_agree_with_each_other() {
    // Integer sums are exact on every set. What differs is the order of float additions, and where the norm's last bit
    // differs, an activation may be rounded to the next code: a step of 1/127 in one of 512 columns.
    let mut random = Random(2);
    for kind in WeightType::ALL {
        let (rows, cols, tokens) = (33, 512, 9);
        let bytes = random.weights(kind, rows, cols);
        let x: Vec<Vec<f32>> = (0..tokens).map(|_| random.floats(cols)).collect();
        let results: Vec<_> =
            pools().map(|(set, mut pool)| (set, product(&mut pool, kind, rows, &x, &bytes))).collect();
        let (_, reference) = &results[0];
        let largest = reference.iter().flatten().fold(0f32, |a, b| a.max(b.abs()));
        for (set, result) in &results {
            for (got, want) in result.iter().flatten().zip(reference.iter().flatten()) {
                assert!((got - want).abs() <= largest * 2e-3, "{kind} on {}: {got} for {want}", set.name());
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_company() {
    let mut random = Random(3);
    for kind in WeightType::ALL {
        for (set, mut pool) in pools() {
            let (rows, cols) = (40, 256);
            let bytes = random.weights(kind, rows, cols);
            let x: Vec<Vec<f32>> = (0..11).map(|_| random.floats(cols)).collect();
            let together = product(&mut pool, kind, rows, &x, &bytes);
            for (t, row) in x.iter().enumerate() {
                let alone = product(&mut pool, kind, rows, std::slice::from_ref(row), &bytes);
                assert_eq!(alone[0], together[t], "{kind} on {}, token {t}", set.name());
            }
        }
    }
}

#[test]
fn stacked_matrices_of_different_types_and_a_bias_fill_their_columns() {
    let mut random = Random(4);
    let cols = 256;
    for (set, mut pool) in pools() {
        let parts = [(WeightType::Q4K, 20), (WeightType::Q6K, 7), (WeightType::F16, 3)];
        let bytes: Vec<Vec<u8>> = parts.iter().map(|(kind, rows)| random.weights(*kind, *rows, cols)).collect();
        let pack = |i: usize| PackedMatrix::pack(parts[i].0, parts[i].1, cols, &bytes[i]).unwrap();
        let bias: Vec<f32> = (0..30).map(|i| i as f32).collect();
        let stacked = Linear::new(vec![pack(0), pack(1), pack(2)], Some(bias.clone())).unwrap();
        let x = vec![random.floats(cols), random.floats(cols), random.floats(cols)];
        let single: Vec<Vec<Vec<f32>>> =
            (0..3).map(|i| product(&mut pool, parts[i].0, parts[i].1, &x, &bytes[i])).collect();
        let input = matrix(&pool, &x);
        let activations = Activations::new(&pool, 3, cols);
        let mut out = Matrix::new(&pool, 3, 30);
        pool.run(|worker| {
            rms_norm(worker, &input, &[0, 1, 2], &vec![1.0; cols], 1e-6, &activations);
            worker.barrier();
            quantize(worker, 3, &activations);
            worker.barrier();
            matmul(worker, &stacked, &activations, 3, &out, Output::Store);
        });
        for t in 0..3 {
            let want: Vec<f32> =
                single.iter().flat_map(|part| part[t].clone()).zip(&bias).map(|(v, b)| v + b).collect();
            assert_eq!(out.row_mut(t), want, "{}", set.name());
        }
    }
}

#[test]
fn packing_refuses_wrong_sizes_and_scales_that_are_not_finite() {
    let bytes = vec![0u8; 18];
    assert!(matches!(PackedMatrix::pack(WeightType::Q4_0, 2, 32, &bytes), Err(PackError::Size { .. })));
    assert!(matches!(PackedMatrix::pack(WeightType::Q4_0, 1, 31, &bytes), Err(PackError::Size { .. })));
    assert!(matches!(PackedMatrix::pack(WeightType::Q4_0, usize::MAX, 32, &bytes), Err(PackError::Size { .. })));
    let mut rows = vec![0u8; 18 * 40];
    rows[18 * 33..][..2].copy_from_slice(&half::f16::NAN.to_le_bytes());
    assert_eq!(PackedMatrix::pack(WeightType::Q4_0, 40, 32, &rows).unwrap_err(), PackError::ScaleNotFinite { row: 33 });
}
