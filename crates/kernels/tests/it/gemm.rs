//! Products of bf16 matrices on every kernel set, against f64.

use half::bf16;
use ruvllm_kernels::Pool;
use ruvllm_kernels::ops::{Bf16Matrix, Factor, Gemm, Matrix, Product};

use crate::support::{Random, matrix, pools};

/// Rows of the result, inner columns, columns of the result.
const SHAPES: [[usize; 3]; 6] = [[1, 1, 1], [17, 33, 5], [64, 96, 48], [3, 100, 70], [70, 31, 129], [130, 40, 16]];

/// Which factors stand transposed in memory.
const WAYS: [[bool; 2]; 4] = [[false, false], [false, true], [true, false], [true, true]];

/// Numbers that bf16 holds exactly. `[rows, cols]`
fn numbers(random: &mut Random, rows: usize, cols: usize) -> Vec<Vec<f32>> {
    let row = |random: &mut Random| random.floats(cols).into_iter().map(|x| bf16::from_f32(x).to_f32()).collect();
    (0..rows).map(|_| row(random)).collect()
}

/// `rows`, or its columns as rows, in memory.
fn stored(pool: &Pool, rows: &[Vec<f32>], transposed: bool) -> Bf16Matrix {
    let turned: Vec<Vec<f32>> = (0..rows[0].len()).map(|col| rows.iter().map(|row| row[col]).collect()).collect();
    let rows = if transposed { &turned } else { rows };
    let mut stored = Bf16Matrix::new(pool, rows.len(), rows[0].len());
    rows.iter().enumerate().for_each(|(i, row)| stored.set_row(i, row));
    stored
}

fn product(
    pool: &mut Pool,
    left: &[Vec<f32>],
    right: &[Vec<f32>],
    [left_turned, right_turned]: [bool; 2],
    before: Option<&[Vec<f32>]>,
) -> Vec<Vec<f32>> {
    let (rows, inner, cols) = (left.len(), right.len(), right[0].len());
    let (left, right) = (stored(pool, left, left_turned), stored(pool, right, right_turned));
    let mut out = before.map_or_else(|| Matrix::new(pool, rows, cols), |before| matrix(pool, before));
    let gemm = Gemm::new(pool, rows, inner);
    let factor = |matrix, turned| if turned { Factor::Transposed(matrix) } else { Factor::AsIs(matrix) };
    let product = Product {
        left: factor(&left, left_turned),
        right: factor(&right, right_turned),
        out: &out,
        adds: before.is_some(),
        stop: None,
    };
    pool.run(|worker| gemm.run(worker, &product));
    (0..rows).map(|row| out.row_mut(row).to_vec()).collect()
}

#[test]
fn products_are_those_of_f64_whichever_factor_is_transposed() {
    let mut random = Random(21);
    for (set, mut pool) in pools() {
        for [rows, inner, cols] in SHAPES {
            let (left, right) = (numbers(&mut random, rows, inner), numbers(&mut random, inner, cols));
            let before: Vec<Vec<f32>> = (0..rows).map(|_| random.floats(cols)).collect();
            for way in WAYS {
                for before in [None, Some(&before[..])] {
                    let got = product(&mut pool, &left, &right, way, before);
                    for (r, row) in got.iter().enumerate() {
                        for (c, got) in row.iter().enumerate() {
                            let terms = (0..inner).map(|k| f64::from(left[r][k]) * f64::from(right[k][c]));
                            let start = before.map_or(0.0, |before| f64::from(before[r][c]));
                            let (want, size) =
                                terms.fold((start, start.abs()), |(sum, size), term| (sum + term, size + term.abs()));
                            assert!(
                                (f64::from(*got) - want).abs() <= size * 1e-5,
                                "{} {way:?} {rows}x{inner}x{cols} at {r}, {c}: {got} is not {want}",
                                set.name()
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_product_has_the_same_bits_on_any_number_of_threads() {
    let mut random = Random(22);
    for set in ruvllm_kernels::KernelSet::available() {
        for [rows, inner, cols] in [[70, 45, 150], [150, 64, 20]] {
            let (left, right) = (numbers(&mut random, rows, inner), numbers(&mut random, inner, cols));
            let on = |threads| product(&mut Pool::new(threads, set), &left, &right, [false, true], None);
            let one = on(1);
            for threads in [2, 3] {
                assert_eq!(on(threads), one, "{} on {threads} threads", set.name());
            }
        }
    }
}

#[test]
fn floats_are_rounded_to_the_nearest_bf16() {
    let mut random = Random(23);
    let mut pool = Pool::new(2, ruvllm_kernels::KernelSet::best());
    let (rows, cols) = (5, 40);
    let floats: Vec<Vec<f32>> = (0..rows).map(|_| random.floats(cols)).collect();
    let (from, rounded) = (matrix(&pool, &floats), Bf16Matrix::new(&pool, rows, cols));
    let identity: Vec<Vec<f32>> = (0..cols).map(|i| (0..cols).map(|j| f32::from(u8::from(i == j))).collect()).collect();
    let identity = stored(&pool, &identity, false);
    let (gemm, mut out) = (Gemm::new(&pool, rows, cols), Matrix::new(&pool, rows, cols));
    pool.run(|worker| {
        rounded.round(worker, &from);
        worker.barrier();
        let (left, right) = (Factor::AsIs(&rounded), Factor::AsIs(&identity));
        let product = Product { left, right, out: &out, adds: false, stop: None };
        gemm.run(worker, &product);
    });
    for (row, floats) in floats.iter().enumerate() {
        let want: Vec<f32> = floats.iter().map(|x| bf16::from_f32(*x).to_f32()).collect();
        assert_eq!(out.row_mut(row), want);
    }
}
