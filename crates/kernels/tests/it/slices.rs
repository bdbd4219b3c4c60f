//! The operations of a layer one at a time, on every kernel set, against their references and the fused phases.

use crate::support::{Random, linear, matrix, pools};
use ruvllm_kernels::ops::{
    Activation, Activations, Linear, Matrix, matmul, matmul_residual, normalize_rows, residual_norm, slices,
};
use ruvllm_kernels::{Pool, WeightType, reference};

const EPSILON: f32 = 1e-5;
const LENGTHS: [usize; 7] = [1, 16, 33, 64, 97, 576, 2100];

fn assert_close(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= want.abs() * 2e-6 + 1e-6, "{what}, element {i}: {got} for {want}");
    }
}

#[test]
fn slices_equal_their_references() {
    let mut random = Random(31);
    for (set, _) in pools() {
        for len in LENGTHS {
            let (mut x, y, weight) = (random.floats(len), random.floats(len), random.floats(len));
            x.iter_mut().for_each(|x| *x *= 9.0);
            let what = format!("{} {len}", set.name());
            let mut out = vec![0.0; len];
            slices::rms_norm(set, &x, &weight, EPSILON, &mut out);
            assert_close(&out, &reference::rms_norm(&x, &weight, EPSILON), &format!("norm {what}"));
            for activation in [Activation::Silu, Activation::GeluTanh, Activation::SwigluOai] {
                let mut gate = x.clone();
                slices::gated(set, activation, &y, &mut gate);
                assert_close(&gate, &reference::gated(activation, &y, &x), &format!("{activation:?} {what}"));
            }
            let mut capped = x.clone();
            slices::softcap(set, 2.5, &mut capped);
            let want: Vec<f32> = x.iter().map(|x| (2.5 * (f64::from(*x) / 2.5).tanh()) as f32).collect();
            assert_close(&capped, &want, &format!("soft cap {what}"));
            let sum: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
            slices::add(set, &mut x, &y);
            assert_eq!(x, sum, "{what}");
        }
    }
}

/// Rows of a batch, normalized as the input of some weights.
fn input(pool: &mut Pool, rows: &[Vec<f32>], weights: &Linear) -> Activations {
    let (x, all) = (matrix(pool, rows), (0..rows.len()).collect::<Vec<_>>());
    let normed = Activations::new(pool, rows.len(), [weights]).normalized(pool, EPSILON);
    pool.run(|worker| normalize_rows(worker, &x, &all, &vec![1.0; weights.cols()], &normed));
    normed
}

fn rows_of(matrix: &mut Matrix, count: usize) -> Vec<Vec<f32>> {
    (0..count).map(|row| matrix.row_mut(row).to_vec()).collect()
}

#[test]
fn a_residual_taken_step_by_step_has_the_bits_of_the_fused_phase() {
    let mut random = Random(33);
    for (set, mut pool) in pools() {
        let kind = WeightType::Q4_0;
        let weights = linear(kind, 96, 64, &random.weights(kind, 96, 64));
        let reader = linear(kind, 32, 96, &random.weights(kind, 32, 96));
        let (rows, residual): (Vec<_>, Vec<_>) = (0..5).map(|_| (random.floats(64), random.floats(96))).unzip();
        let (norm, post_norm) = (random.floats(96), random.floats(96));
        let input = input(&mut pool, &rows, &weights);
        let mut run = |is_fused: bool, post_norm: Option<(&[f32], f32)>| {
            let mut x = matrix(&pool, &residual);
            let (y, next) =
                (Matrix::new(&pool, 5, 96), Activations::new(&pool, 5, [&reader]).normalized(&pool, EPSILON));
            let mut seen = Matrix::new(&pool, 5, 32);
            pool.run(|worker| {
                if is_fused {
                    matmul_residual(worker, &weights, &input, 5, &x, &norm, &next);
                } else {
                    matmul(worker, &weights, &input, 5, &y);
                    worker.barrier();
                    residual_norm(worker, &y, post_norm, 1.0, 5, &x, &norm, &next);
                }
                worker.barrier();
                matmul(worker, &reader, &next, 5, &seen);
            });
            let mut y = y;
            (rows_of(&mut x, 5), rows_of(&mut seen, 5), rows_of(&mut y, 5))
        };
        let (fused, plain) = (run(true, None), run(false, None));
        assert_eq!((&fused.0, &fused.1), (&plain.0, &plain.1), "{}", set.name());
        let (x, _, y) = run(false, Some((&post_norm, EPSILON)));
        for ((x, y), residual) in x.iter().zip(&y).zip(&residual) {
            let normed = reference::rms_norm(y, &post_norm, EPSILON);
            let want: Vec<f32> = residual.iter().zip(normed).map(|(x, y)| x + y).collect();
            assert_close(x, &want, set.name());
        }
    }
}

#[test]
fn weighted_rows_are_added_up() {
    let mut random = Random(35);
    for (set, _) in pools() {
        for (count, len) in [(0, 16), (1, 16), (5, 48), (70, 64), (33, 208)] {
            let (stride, row_stride) = (3, len + 5);
            let (weights, rows) = (random.floats(count * stride + 1), random.floats(count * row_stride + len));
            let before = random.floats(len);
            let mut out = before.clone();
            let of = slices::Strided { numbers: &weights, stride, count };
            slices::add_weighted_rows(set, of, &rows, row_stride, &mut out);
            for (col, (out, before)) in out.iter().zip(&before).enumerate() {
                let terms =
                    (0..count).map(|row| f64::from(weights[row * stride]) * f64::from(rows[row * row_stride + col]));
                let want = f64::from(*before) + terms.sum::<f64>();
                assert!(
                    (f64::from(*out) - want).abs() < 1e-5,
                    "{} {count}x{len} at {col}: {out} for {want}",
                    set.name()
                );
            }
        }
    }
}
