//! Singular values of a product of thin matrices, without the product: those of the small matrix between their orthogonal bases.

use super::product::Product;

/// Rounds of rotations at most; a few are enough.
const SWEEPS_MAX: usize = 60;

/// Cuts a product to its `rank` largest singular values. Returns it with the sum of their squares.
pub(super) fn truncate(product: &Product, rank: usize) -> (Product, f64) {
    let Product { rows, cols, rank: full, a, b } = product;
    let columns = |matrix: &[f32], count: usize, at: usize, step: usize, stride: usize| -> Vec<f64> {
        (0..count).map(|i| f64::from(matrix[at * step + i * stride])).collect()
    };
    // Columns of `b` and rows of `a`.
    let left: Vec<Vec<f64>> = (0..*full).map(|j| columns(b, *rows, j, 1, *full)).collect();
    let right: Vec<Vec<f64>> = (0..*full).map(|j| columns(a, *cols, j, *cols, 1)).collect();
    let ((left, left_r), (right, right_r)) = (qr(left), qr(right));
    // Columns of `left_r right_rᵀ`.
    let middle: Vec<Vec<f64>> = (0..*full)
        .map(|j| (0..*full).map(|i| (0..*full).map(|k| left_r[k][i] * right_r[k][j]).sum()).collect())
        .collect();
    let (u, mut values, v) = jacobi(middle);
    let mut order: Vec<usize> = (0..*full).collect();
    order.sort_by(|x, y| values[*y].total_cmp(&values[*x]));
    order.truncate(rank);
    values.iter_mut().for_each(|value| *value = value.max(0.0));
    let kept = order.iter().map(|i| values[*i].powi(2)).sum();
    let mut cut =
        Product { rows: *rows, cols: *cols, rank: order.len(), a: Vec::new(), b: vec![0.0; rows * order.len()] };
    for (to, i) in order.iter().enumerate() {
        let root = values[*i].sqrt();
        let of_left = combined(&left, &u[*i], *rows);
        for (row, number) in of_left.iter().enumerate() {
            cut.b[row * cut.rank + to] = (number * root) as f32;
        }
        cut.a.extend(combined(&right, &v[*i], *cols).iter().map(|number| (number * root) as f32));
    }
    (cut, kept)
}

/// Returns the sum of vectors, each multiplied by its factor.
fn combined(vectors: &[Vec<f64>], factors: &[f64], len: usize) -> Vec<f64> {
    let mut sum = vec![0.0; len];
    for (vector, factor) in vectors.iter().zip(factors) {
        sum.iter_mut().zip(vector).for_each(|(sum, number)| *sum += factor * number);
    }
    sum
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Makes columns orthonormal (Gram-Schmidt, twice, since once loses digits). Returns them, and for each column what it is made of:
/// `r[column][basis]`. A column that depends on those before it becomes zero.
pub(super) fn qr(mut columns: Vec<Vec<f64>>) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
    let count = columns.len();
    let mut r = vec![vec![0.0; count]; count];
    for j in 0..count {
        let before = dot(&columns[j], &columns[j]).sqrt();
        for _ in 0..2 {
            for i in 0..j {
                let (done, rest) = columns.split_at_mut(j);
                let along = dot(&done[i], &rest[0]);
                r[j][i] += along;
                rest[0].iter_mut().zip(&done[i]).for_each(|(x, basis)| *x -= along * basis);
            }
        }
        let norm = dot(&columns[j], &columns[j]).sqrt();
        if norm <= before * 1e-12 {
            columns[j].fill(0.0);
            continue;
        }
        r[j][j] = norm;
        columns[j].iter_mut().for_each(|x| *x /= norm);
    }
    (columns, r)
}

/// Rotates columns until all are orthogonal (one-sided Jacobi). Returns the left vectors, the singular values and the right
/// vectors.
fn jacobi(mut columns: Vec<Vec<f64>>) -> (Vec<Vec<f64>>, Vec<f64>, Vec<Vec<f64>>) {
    let count = columns.len();
    let mut v: Vec<Vec<f64>> = (0..count).map(|j| (0..count).map(|i| f64::from(u8::from(i == j))).collect()).collect();
    for _ in 0..SWEEPS_MAX {
        let mut is_done = true;
        for p in 0..count {
            for q in p + 1..count {
                let (alpha, beta) = (dot(&columns[p], &columns[p]), dot(&columns[q], &columns[q]));
                let gamma = dot(&columns[p], &columns[q]);
                if gamma.abs() <= 1e-14 * (alpha * beta).sqrt() {
                    continue;
                }
                is_done = false;
                let zeta = (beta - alpha) / (2.0 * gamma);
                let tangent = zeta.signum() / (zeta.abs() + (1.0 + zeta * zeta).sqrt());
                let cosine = 1.0 / (1.0 + tangent * tangent).sqrt();
                rotate(&mut columns, p, q, cosine, tangent * cosine);
                rotate(&mut v, p, q, cosine, tangent * cosine);
            }
        }
        if is_done {
            break;
        }
    }
    let values: Vec<f64> = columns.iter().map(|column| dot(column, column).sqrt()).collect();
    for (column, value) in columns.iter_mut().zip(&values) {
        if *value > 0.0 {
            column.iter_mut().for_each(|x| *x /= value);
        }
    }
    (columns, values, v)
}

fn rotate(columns: &mut [Vec<f64>], p: usize, q: usize, cosine: f64, sine: f64) {
    let (first, second) = columns.split_at_mut(q);
    for (x, y) in first[p].iter_mut().zip(&mut second[0]) {
        (*x, *y) = (cosine * *x - sine * *y, sine * *x + cosine * *y);
    }
}
