//! Matmul of every weight type on every kernel set, against f64 sums of the dequantized weights.

use crate::support::{Random, linear, matrix, pools};
use ruvllm_kernels::ops::{Activations, BatchRows, Linear, Matrix, matmul, normalize, normalize_rows};
use ruvllm_kernels::{Arena, KernelSet, PackError, PackedMatrix, Pool, WeightType, dequantize_row};

/// A normalized batch times one matrix, through the same calls as a forward pass.
fn product(pool: &mut Pool, kind: WeightType, rows: usize, x: &[Vec<f32>], bytes: &[u8]) -> Vec<Vec<f32>> {
    multiply(pool, &linear(kind, rows, x[0].len(), bytes), x)
}

fn multiply(pool: &mut Pool, weights: &Linear, x: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let input = matrix(pool, x);
    let activations = Activations::new(pool, x.len(), [weights]).normalized(pool, 1e-6);
    let mut out = Matrix::new(pool, x.len(), weights.rows());
    let all: Vec<usize> = (0..x.len()).collect();
    let ones = vec![1.0; weights.cols()];
    pool.run(|worker| {
        normalize_rows(worker, &input, &all, &ones, &activations);
        worker.barrier();
        matmul(worker, weights, &activations, x.len(), &out);
    });
    (0..x.len()).map(|t| out.row_mut(t).to_vec()).collect()
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
            let (rows, tokens) = (1 + random.below(50), 1 + random.below(40));
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
        let (rows, cols, tokens) = (33, 512, 21);
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
            // 1,280 columns are more than one turn of the tile unit; 38 tokens leave a rest for every kernel.
            let (rows, cols) = (40, 1280);
            let bytes = random.weights(kind, rows, cols);
            let x: Vec<Vec<f32>> = (0..38).map(|_| random.floats(cols)).collect();
            let together = product(&mut pool, kind, rows, &x, &bytes);
            for (t, row) in x.iter().enumerate().step_by(5) {
                let alone = product(&mut pool, kind, rows, std::slice::from_ref(row), &bytes);
                assert_eq!(alone[0], together[t], "{kind} on {}, token {t}", set.name());
            }
            for few in [2, 7, 8, 9, 23, 24, 25] {
                assert_eq!(product(&mut pool, kind, rows, &x[..few], &bytes), together[..few], "{kind}, {few} tokens");
            }
        }
    }
}

#[test]
fn the_tile_unit_gives_the_bits_of_avx512() {
    if !KernelSet::Amx.is_available() {
        return println!("not checked: this processor has no tile unit");
    }
    let mut random = Random(9);
    let (mut amx, mut avx512) = (Pool::new(2, KernelSet::Amx), Pool::new(2, KernelSet::Avx512));
    for kind in WeightType::ALL {
        for cols in [256, 768, 2048] {
            let bytes = random.weights(kind, 50, cols);
            let x: Vec<Vec<f32>> = (0..33).map(|_| random.floats(cols)).collect();
            let got = product(&mut amx, kind, 50, &x, &bytes);
            assert_eq!(got, product(&mut avx512, kind, 50, &x, &bytes), "{kind}, {cols} columns");
        }
    }
}

#[test]
fn stacked_matrices_of_different_types_and_a_bias_fill_their_columns() {
    let mut random = Random(4);
    let cols = 256;
    for (set, mut pool) in pools() {
        for tokens in [3, 20] {
            let parts = [(WeightType::Q4K, 40), (WeightType::Q6K, 7), (WeightType::F16, 3)];
            let bytes: Vec<Vec<u8>> = parts.iter().map(|(kind, rows)| random.weights(*kind, *rows, cols)).collect();
            let mut arena = Arena::new();
            let mut pack = |i: usize| PackedMatrix::pack(parts[i].0, parts[i].1, cols, &bytes[i], &mut arena).unwrap();
            let bias: Vec<f32> = (0..50).map(|i| i as f32).collect();
            let stacked = Linear::new(vec![pack(0), pack(1), pack(2)], Some(bias.clone())).unwrap();
            let x: Vec<Vec<f32>> = (0..tokens).map(|_| random.floats(cols)).collect();
            let single: Vec<Vec<Vec<f32>>> =
                (0..3).map(|i| product(&mut pool, parts[i].0, parts[i].1, &x, &bytes[i])).collect();
            for (t, got) in multiply(&mut pool, &stacked, &x).iter().enumerate() {
                let want: Vec<f32> =
                    single.iter().flat_map(|part| part[t].clone()).zip(&bias).map(|(v, b)| v + b).collect();
                assert_eq!(got, &want, "{}", set.name());
            }
        }
    }
}

#[test]
fn packing_refuses_wrong_sizes_and_scales_that_are_not_finite() {
    let pack = |rows, cols, bytes: &[u8]| PackedMatrix::pack(WeightType::Q4_0, rows, cols, bytes, &mut Arena::new());
    let bytes = vec![0u8; 18];
    assert!(matches!(pack(2, 32, &bytes), Err(PackError::Size { .. })));
    assert!(matches!(pack(1, 31, &bytes), Err(PackError::Size { .. })));
    assert!(matches!(pack(usize::MAX, 32, &bytes), Err(PackError::Size { .. })));
    let mut rows = vec![0u8; 18 * 40];
    rows[18 * 33..][..2].copy_from_slice(&half::f16::NAN.to_le_bytes());
    assert_eq!(pack(40, 32, &rows).unwrap_err(), PackError::NotFinite { row: 33 });
}

/// The same with all rows but the first `exact` as those of prompts.
fn multiply_in_bf16(pool: &mut Pool, weights: &Linear, x: &[Vec<f32>], exact: usize) -> Vec<Vec<f32>> {
    let (input, rows) = (matrix(pool, x), BatchRows::new(exact, x.len()));
    let activations = Activations::new(pool, x.len(), [weights]).normalized(pool, 1e-6).in_bf16(pool, false);
    let mut out = Matrix::new(pool, x.len(), weights.rows());
    let ones = vec![1.0; weights.cols()];
    pool.run(|worker| {
        normalize(worker, &input, rows, &ones, &activations);
        worker.barrier();
        matmul(worker, weights, &activations, rows, &out);
    });
    (0..x.len()).map(|t| out.row_mut(t).to_vec()).collect()
}

#[test]
fn rows_of_prompts_are_the_f64_product_within_the_rounding_of_bf16_whatever_runs_beside_them() {
    let mut random = Random(11);
    for (set, mut pool) in pools().filter(|(_, pool)| pool.has_bf16()) {
        for kind in WeightType::ALL {
            let cols = kind.block_len().max(32) * [1, 3, 17][random.below(3)];
            let (rows, exact, count) = (1 + random.below(100), random.below(20), 1 + random.below(70));
            let bytes = random.weights(kind, rows, cols);
            let weights = linear(kind, rows, cols, &bytes);
            let x: Vec<Vec<f32>> = (0..exact + count).map(|_| random.floats(cols)).collect();
            let got = multiply_in_bf16(&mut pool, &weights, &x, exact);
            let what = format!("{kind} on {}: {rows} x {cols}, {exact} + {count}", set.name());
            let alone = multiply_in_bf16(&mut pool, &weights, &x[exact..exact + 1], 0);
            assert_eq!(got[exact], alone[0], "{what}");
            if exact > 0 {
                assert_eq!(got[..exact], multiply(&mut pool, &weights, &x[..exact]), "{what}");
            }
            let mut floats = vec![0f32; cols];
            for (r, raw) in bytes.chunks_exact(kind.row_bytes(cols).unwrap()).enumerate() {
                dequantize_row(kind, raw, &mut floats);
                for (t, row) in x.iter().enumerate().skip(exact) {
                    let products = normalized(row).into_iter().zip(&floats).map(|(x, w)| x * f64::from(*w));
                    let (want, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
                    let error = (f64::from(got[t][r]) - want).abs();
                    assert!(error <= size / 250.0 + 1e-6, "{what}: row {t}, {r}: {} is not {want}", got[t][r]);
                }
            }
        }
    }
}
