//! Row kernels on every kernel set, against plain f64 formulas.

use crate::support::{Random, floats, linear, matrix, pools, readable, rounded};
use ruvllm_kernels::ops::{
    Activation, Activations, Linear, Matrix, matmul, matmul_gated, matmul_residual, normalize_rows,
};
use ruvllm_kernels::{Arena, PackedMatrix, Pool, WeightType};

const EPSILON: f32 = 1e-5;
/// Below, at and above whole vectors, and the rows of a small model.
const LENGTHS: [usize; 12] = [1, 2, 15, 16, 17, 31, 32, 33, 47, 64, 97, 576];

fn normed(pool: &mut Pool, x: &[Vec<f32>], weight: &[f32]) -> Activations {
    let input = matrix(pool, x);
    let out = readable(pool, x.len(), weight.len()).normalized(pool, EPSILON);
    let rows: Vec<usize> = (0..x.len()).collect();
    pool.run(|worker| normalize_rows(worker, &input, &rows, weight, &out));
    out
}

/// Four rows hold gate and up, one after the other: they are made weights, for inputs of which each takes one of them.
fn gated(pool: &mut Pool, rows: &[Vec<f32>]) -> Activations {
    assert_eq!(rows.len(), 4);
    let len = rows[0].len() / 2;
    let part = |first: usize| -> Vec<u8> {
        // An input of one 1 and three 0 is normalized to a 2.
        (first..first + len).flat_map(|i| rows.iter().flat_map(move |row| (row[i] / 2.0).to_le_bytes())).collect()
    };
    let mut arena = Arena::new();
    let mut pack = |bytes: &[u8]| PackedMatrix::pack(WeightType::F32, len, 4, bytes, &mut arena).unwrap();
    let gate_up = Linear::new(vec![pack(&part(0)), pack(&part(len))], None).unwrap();
    let x: Vec<Vec<f32>> = (0..4).map(|t| (0..4).map(|i| f32::from(i == t)).collect()).collect();
    through_swiglu(pool, &x, &gate_up, 0.0)
}

fn through_swiglu(pool: &mut Pool, x: &[Vec<f32>], gate_up: &Linear, epsilon: f32) -> Activations {
    let input = matrix(pool, x);
    let normed = Activations::new(pool, x.len(), [gate_up]).normalized(pool, epsilon);
    let out = readable(pool, x.len(), gate_up.rows() / 2);
    let (all, ones): (Vec<usize>, _) = ((0..x.len()).collect(), vec![1.0; gate_up.cols()]);
    pool.run(|worker| {
        normalize_rows(worker, &input, &all, &ones, &normed);
        worker.barrier();
        matmul_gated(worker, gate_up, Activation::Silu, &normed, x.len(), &out);
    });
    out
}

fn silu(v: f32) -> f64 {
    f64::from(v) / (1.0 + (-f64::from(v)).exp())
}

#[test]
fn norm_of_any_length_equals_the_f64_formula() {
    let mut random = Random(10);
    for (set, mut pool) in pools() {
        for len in LENGTHS {
            let mut x: Vec<Vec<f32>> = (0..5).map(|_| random.floats(len)).collect();
            x[1].iter_mut().for_each(|v| *v *= 1e4);
            x[2].iter_mut().for_each(|v| *v *= 1e-4);
            x[3].fill(0.0);
            let weight = random.floats(len);
            let out = normed(&mut pool, &x, &weight);
            let got = floats(&mut pool, &out, x.len());
            for (t, row) in x.iter().enumerate() {
                let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / len as f64;
                for (i, got) in got[t].iter().enumerate() {
                    let want = f64::from(row[i]) / (mean + f64::from(EPSILON)).sqrt() * f64::from(weight[i]);
                    let error = (f64::from(*got) - want).abs();
                    assert!(error <= want.abs() * 2e-6, "{} {len} row {t} element {i}: {got} for {want}", set.name());
                }
            }
        }
    }
}

#[test]
fn norm_takes_the_rows_named_in_their_order() {
    let mut random = Random(11);
    for (set, mut pool) in pools() {
        let x: Vec<Vec<f32>> = (0..6).map(|_| random.floats(32)).collect();
        let weight = random.floats(32);
        let all = normed(&mut pool, &x, &weight);
        let all = floats(&mut pool, &all, 6);
        let input = matrix(&pool, &x);
        let some = readable(&pool, 3, 32).normalized(&pool, EPSILON);
        pool.run(|worker| normalize_rows(worker, &input, &[5, 0, 3], &weight, &some));
        let some = floats(&mut pool, &some, 3);
        assert_eq!(some, [all[5].clone(), all[0].clone(), all[3].clone()], "{}", set.name());
    }
}

#[test]
fn swiglu_of_any_length_equals_the_f64_formula_also_far_out() {
    let mut random = Random(12);
    let extremes = [0.0, -0.0, 1e-30, 20.0, -20.0, 79.0, -79.0, 88.0, -88.0, 100.0, -100.0, 1e4, -1e4];
    for (set, mut pool) in pools() {
        for len in LENGTHS {
            let mut rows: Vec<Vec<f32>> = (0..4).map(|_| random.floats(len * 2)).collect();
            rows[1].iter_mut().for_each(|v| *v *= 12.0);
            for (i, gate) in rows[2][..len].iter_mut().enumerate() {
                *gate = extremes[i % extremes.len()];
            }
            for (i, v) in rows[3].iter_mut().enumerate() {
                *v = extremes[(i + 9) % extremes.len()];
            }
            let out = gated(&mut pool, &rows);
            let got = floats(&mut pool, &out, rows.len());
            for (t, row) in rows.iter().enumerate() {
                let (gate, up) = row.split_at(len);
                for (i, got) in got[t].iter().enumerate() {
                    let want = silu(gate[i]) * f64::from(up[i]);
                    let error = (f64::from(*got) - want).abs();
                    // A gate below -80 counts as -80 in the exponent: what should be nothing is then below 1e-30.
                    let bound = want.abs() * 1e-6 + f64::from(up[i].abs()) * 1e-30;
                    assert!(error <= bound, "{} {len} row {t} gate {}: {got} for {want}", set.name(), gate[i]);
                }
            }
        }
    }
}

#[test]
fn rounding_to_8_bits_is_off_by_half_a_step_at_most() {
    let mut random = Random(13);
    for (set, mut pool) in pools() {
        for len in [32, 64, 96, 576] {
            let mut rows: Vec<Vec<f32>> = (0..4).map(|_| random.floats(len * 2)).collect();
            // Groups of very different size; one outlier in each; all of one size.
            rows[1].chunks_mut(32).enumerate().for_each(|(g, group)| {
                group.iter_mut().for_each(|v| *v *= 10f32.powi(g as i32 % 13 - 6));
            });
            rows[2].iter_mut().skip(7).step_by(32).for_each(|v| *v = 1000.0);
            rows[3].fill(-3.0);
            let out = gated(&mut pool, &rows);
            let (exact, coarse) = (floats(&mut pool, &out, 4).concat(), rounded(&mut pool, &out, 4).concat());
            for (exact, coarse) in exact.chunks(32).zip(coarse.chunks(32)) {
                let step = exact.iter().fold(0f32, |a, b| a.max(b.abs())) / 127.0;
                for (x, rounded) in exact.iter().zip(coarse) {
                    assert!(
                        (x - rounded).abs() <= step / 2.0 * (1.0 + 1e-4),
                        "{} {len}: {rounded} for {x}, step {step}",
                        set.name()
                    );
                }
            }
        }
    }
}

#[test]
fn a_group_of_zeros_stays_zero_and_one_of_tiny_values_as_good_as_zero() {
    let mut random = Random(14);
    for (set, mut pool) in pools() {
        let mut row = vec![1.0; 96];
        row.extend([0.0; 32]);
        row.extend((0..32).map(|i| if i % 2 == 0 { 1e-35 } else { -1e-35 }));
        row.extend(random.floats(32));
        let out = gated(&mut pool, &[row, vec![1.0; 192], vec![0.5; 192], vec![0.0; 192]]);
        let coarse = &rounded(&mut pool, &out, 1)[0];
        assert_eq!(coarse[..32], [0.0; 32], "{}", set.name());
        assert!(coarse[32..64].iter().all(|v| v.abs() <= 1e-35), "{}: {:?}", set.name(), &coarse[32..64]);
        assert!(coarse[64..].iter().any(|v| v.abs() > 0.1), "{}", set.name());
    }
}

#[test]
fn a_residual_is_added_and_normalized_for_the_next_layer() {
    let mut random = Random(15);
    for (set, mut pool) in pools() {
        for (rows, cols, tokens) in [(64, 32, 3), (96, 64, 20), (40, 16, 2), (576, 96, 1)] {
            let kind = if cols == 16 { WeightType::F32 } else { WeightType::Q8_0 };
            let weights = linear(kind, rows, cols, &random.weights(kind, rows, cols));
            let (x, y): (Vec<_>, Vec<_>) = (0..tokens).map(|_| (random.floats(rows), random.floats(cols))).unzip();
            let norm = random.floats(rows);
            let (mut sums, input) = (matrix(&pool, &x), matrix(&pool, &y));
            let normed = Activations::new(&pool, tokens, [&weights]).normalized(&pool, EPSILON);
            let mut product = Matrix::new(&pool, tokens, rows);
            let out = readable(&pool, tokens, rows).normalized(&pool, EPSILON);
            let (all, ones): (Vec<usize>, _) = ((0..tokens).collect(), vec![1.0; cols]);
            pool.run(|worker| {
                normalize_rows(worker, &input, &all, &ones, &normed);
                worker.barrier();
                matmul(worker, &weights, &normed, tokens, &product);
                worker.barrier();
                matmul_residual(worker, &weights, &normed, tokens, &sums, &norm, &out);
            });
            let want: Vec<Vec<f32>> = (0..tokens)
                .map(|t| x[t].iter().zip(product.row_mut(t)).map(|(x, product)| x + *product).collect())
                .collect();
            for (t, want) in want.iter().enumerate() {
                assert_eq!(sums.row_mut(t), want, "{} {rows} x {cols}", set.name());
            }
            let want = normed_floats(&mut pool, &want, &norm);
            assert_eq!(floats(&mut pool, &out, tokens), want, "{} {rows} x {cols}", set.name());
        }
    }
}

fn normed_floats(pool: &mut Pool, x: &[Vec<f32>], weight: &[f32]) -> Vec<Vec<f32>> {
    let out = normed(pool, x, weight);
    floats(pool, &out, x.len())
}

#[test]
fn a_row_with_nan_or_infinity_neither_panics_nor_spoils_other_rows() {
    let mut random = Random(16);
    for (set, mut pool) in pools() {
        for len in [17, 64] {
            let clean: Vec<Vec<f32>> = (0..5).map(|_| random.floats(len * 2)).collect();
            let weight = random.floats(len * 2);
            let mut spoiled = clean.clone();
            for (t, value) in [(0, f32::NAN), (2, f32::INFINITY), (4, f32::NEG_INFINITY)] {
                spoiled[t].iter_mut().step_by(t + 5).for_each(|v| *v = value);
            }
            let mut both = |run: &dyn Fn(&mut Pool, &[Vec<f32>]) -> Activations| {
                for read in [floats, rounded] {
                    // Rows of 17 have no rounded form.
                    let [clean, spoiled] = [&clean, &spoiled].map(|rows| {
                        let out = run(&mut pool, rows);
                        let read = if out.cols().is_multiple_of(32) { read } else { floats };
                        read(&mut pool, &out, 5)
                    });
                    assert_eq!([&clean[1], &clean[3]], [&spoiled[1], &spoiled[3]], "{} {len}", set.name());
                }
            };
            both(&|pool, rows| normed(pool, rows, &weight));
            let parts = [(); 2].map(|()| random.weights(WeightType::F16, len, len * 2));
            let mut arena = Arena::new();
            let parts = parts.map(|part| PackedMatrix::pack(WeightType::F16, len, len * 2, &part, &mut arena).unwrap());
            let gate_up = Linear::new(parts.into(), None).unwrap();
            both(&|pool, rows| through_swiglu(pool, rows, &gate_up, EPSILON));
        }
    }
}
