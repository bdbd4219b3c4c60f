//! Merges that look at single numbers of products, so that a module's product is made whole, one module at a time.

use super::product::Product;
use super::{Reduced, svd};
use crate::adapters::AdapterError;

/// Numbers of a module's product at most: 1 GiB.
const NUMBERS_MAX: usize = 1 << 28;
/// Directions beyond the rank that are followed, and how often: then the largest are found to many digits.
const SPARE: usize = 8;
const ROUNDS: usize = 4;

/// The products of one module that are merged.
pub(super) struct DenseMerge<'a> {
    products: Vec<(usize, &'a Product, f32)>,
    rows: usize,
    cols: usize,
}

/// A merged product. `[rows, cols]`
pub(super) struct Dense {
    numbers: Vec<f32>,
    rows: usize,
    cols: usize,
}

impl<'a> DenseMerge<'a> {
    pub fn new(products: &'a [Option<Product>], weights: &[f32]) -> Result<Self, AdapterError> {
        let there = products.iter().zip(weights).enumerate();
        let products: Vec<_> =
            there.filter_map(|(i, (product, weight))| Some((i, product.as_ref()?, *weight))).collect();
        let (rows, cols) = (products[0].1.rows, products[0].1.cols);
        if rows.checked_mul(cols).is_none_or(|numbers| numbers > NUMBERS_MAX) {
            let problem =
                format!("a module has {rows} times {cols} weights, which are too many for this method: use linear");
            return Err(AdapterError::Merge(problem));
        }
        Ok(Self { products, rows, cols })
    }

    /// Keeps the largest `density` of each product, and of these what agrees with the sign that most weight is behind.
    pub fn ties(&self, density: f32) -> Dense {
        let thresholds: Vec<f32> =
            self.products.iter().map(|(_, product, _)| self.threshold(product, density)).collect();
        let mut rows = vec![vec![0.0; self.cols]; self.products.len()];
        self.each_row(|row, out| {
            for (((_, product, weight), values), threshold) in self.products.iter().zip(&mut rows).zip(&thresholds) {
                product.row(row, values);
                values
                    .iter_mut()
                    .for_each(|value| *value = if value.abs() < *threshold { 0.0 } else { *value * weight });
            }
            for (col, out) in out.iter_mut().enumerate() {
                let elected: f32 = rows.iter().map(|values| values[col]).sum();
                let agree = rows.iter().zip(&self.products).filter(|(values, _)| values[col] * elected > 0.0);
                let (sum, weight) = agree.fold((0.0, 0.0), |(sum, total), (values, (_, _, weight))| {
                    (sum + values[col], total + weight.abs())
                });
                *out = if weight > 0.0 { sum / weight } else { 0.0 };
            }
        })
    }

    /// Keeps a random `density` of each product, scaled up by its inverse, and sums that.
    pub fn dare(&self, density: f32, seed: u64, module: usize) -> Dense {
        let mut values = vec![0.0; self.cols];
        self.each_row(|row, out| {
            out.fill(0.0);
            for (number, product, weight) in &self.products {
                product.row(row, &mut values);
                for (col, (out, value)) in out.iter_mut().zip(&values).enumerate() {
                    let place = (row * self.cols + col) as u64;
                    if unit([seed, module as u64, *number as u64, place]) < density {
                        *out += weight * value / density;
                    }
                }
            }
        })
    }

    fn each_row(&self, mut fill: impl FnMut(usize, &mut [f32])) -> Dense {
        let mut numbers = vec![0.0; self.rows * self.cols];
        numbers.chunks_exact_mut(self.cols).enumerate().for_each(|(row, out)| fill(row, out));
        Dense { numbers, rows: self.rows, cols: self.cols }
    }

    /// Returns the least magnitude that the largest `density` of a product have.
    fn threshold(&self, product: &Product, density: f32) -> f32 {
        let Dense { mut numbers, .. } = self.each_row(|row, out| product.row(row, out));
        let kept = ((numbers.len() as f64 * f64::from(density)).ceil() as usize).clamp(1, numbers.len());
        let at = numbers.len() - kept;
        let (_, least, _) = numbers.select_nth_unstable_by(at, |a, b| a.abs().total_cmp(&b.abs()));
        least.abs()
    }
}

impl Dense {
    /// Finds the best product of a rank (subspace iteration), and what it loses.
    pub fn reduce(&self, rank: usize) -> Result<Reduced, AdapterError> {
        let rank = rank.min(self.rows).min(self.cols);
        let count = (rank + SPARE).min(self.rows).min(self.cols);
        let random = |j: usize, i: usize| f64::from(unit([0x5eed, j as u64, i as u64, 0])) - 0.5;
        let mut right: Vec<Vec<f64>> = (0..count).map(|j| (0..self.cols).map(|i| random(j, i)).collect()).collect();
        for _ in 0..ROUNDS {
            let left = svd::qr(right.iter().map(|x| self.times(x)).collect()).0;
            right = svd::qr(left.iter().map(|y| self.transposed_times(y)).collect()).0;
        }
        let left = svd::qr(right.iter().map(|x| self.times(x)).collect()).0;
        let a: Vec<f32> = left.iter().flat_map(|y| self.transposed_times(y)).map(|x| x as f32).collect();
        let mut b = vec![0.0; self.rows * count];
        for (j, column) in left.iter().enumerate() {
            column.iter().enumerate().for_each(|(row, x)| b[row * count + j] = *x as f32);
        }
        let within = Product { rows: self.rows, cols: self.cols, rank: count, a, b };
        let (product, kept) = svd::truncate(&within, rank);
        let squares = self.numbers.iter().map(|number| f64::from(*number).powi(2)).sum();
        Ok(Reduced { product, squares, lost_squares: (squares - kept).max(0.0) })
    }

    fn times(&self, x: &[f64]) -> Vec<f64> {
        let row = |row: &[f32]| row.iter().zip(x).map(|(a, x)| f64::from(*a) * x).sum();
        self.numbers.chunks_exact(self.cols).map(row).collect()
    }

    fn transposed_times(&self, y: &[f64]) -> Vec<f64> {
        let mut sum = vec![0.0; self.cols];
        for (row, y) in self.numbers.chunks_exact(self.cols).zip(y) {
            sum.iter_mut().zip(row).for_each(|(sum, a)| *sum += f64::from(*a) * y);
        }
        sum
    }
}

/// A number from 0 to 1 that some others decide.
fn unit(seeds: [u64; 4]) -> f32 {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    for seed in seeds {
        x = (x ^ seed).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^= x >> 29;
        x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 32;
    }
    (x >> 40) as f32 / (1u64 << 24) as f32
}
