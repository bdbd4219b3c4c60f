//! The product of an adapter's two matrices for one module, kept as the two.

use crate::adapters::AdapterError;
use crate::adapters::file::Pair;
use crate::formats::gguf::shortened;

/// `b a`; scales are in `b`.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::adapters) struct Product {
    pub rows: usize,
    pub cols: usize,
    pub rank: usize,
    /// `[rank, cols]`
    pub a: Vec<f32>,
    /// `[rows, rank]`
    pub b: Vec<f32>,
}

impl Product {
    pub fn read(pair: &Pair) -> Result<Self, AdapterError> {
        let mut product = Self::read_unscaled(pair)?;
        product.b.iter_mut().for_each(|number| *number *= pair.scale);
        if product.b.iter().any(|number| !number.is_finite()) {
            let problem = format!("is too large to be multiplied by {}", pair.scale);
            return Err(AdapterError::Tensor { name: shortened(&pair.b.name), problem });
        }
        Ok(product)
    }

    /// Reads the matrices as they are, for those who scale otherwise.
    pub fn read_unscaled(pair: &Pair) -> Result<Self, AdapterError> {
        let (a, b) = (pair.a.floats()?, pair.b.floats()?);
        Ok(Self { rows: pair.b.rows, cols: pair.a.cols, rank: pair.rank(), a, b })
    }

    /// Returns the sum of products of one shape, each multiplied by its weight. Panics without any.
    pub fn stack(parts: &[(&Self, f32)]) -> Self {
        let (rows, cols) = (parts[0].0.rows, parts[0].0.cols);
        let rank = parts.iter().map(|(part, _)| part.rank).sum();
        let a = parts.iter().flat_map(|(part, _)| part.a.iter().copied()).collect();
        let mut b = Vec::with_capacity(rows * rank);
        for row in 0..rows {
            for (part, weight) in parts {
                b.extend(part.b[row * part.rank..][..part.rank].iter().map(|number| number * weight));
            }
        }
        Self { rows, cols, rank, a, b }
    }

    /// Writes a row of the product to `out`.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        out.fill(0.0);
        for (factor, a) in self.b[row * self.rank..][..self.rank].iter().zip(self.a.chunks_exact(self.cols)) {
            out.iter_mut().zip(a).for_each(|(out, a)| *out += factor * a);
        }
    }

    /// Returns the sum of the products of all numbers at the same places: that of `(bᵀ b') ∘ (a a'ᵀ)`, which is small.
    pub fn inner(&self, other: &Self) -> f64 {
        let mut sum = 0.0;
        for (i, a) in self.a.chunks_exact(self.cols).enumerate() {
            for (j, other_a) in other.a.chunks_exact(other.cols).enumerate() {
                let of_a: f64 = a.iter().zip(other_a).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
                let columns = self.b.iter().skip(i).step_by(self.rank).zip(other.b.iter().skip(j).step_by(other.rank));
                sum += of_a * columns.map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
            }
        }
        sum
    }
}

/// Returns the weights of two products on the arc between them, each of them multiplied by its own weight.
pub(super) fn slerp_weights(products: &[Option<Product>], weights: &[f32], t: f32) -> Vec<f32> {
    let straight = [(1.0 - t) * weights[0], t * weights[1]];
    let [Some(from), Some(to)] = products else { return straight.to_vec() };
    let norms = [from.inner(from).sqrt(), to.inner(to).sqrt()];
    if norms[0] * norms[1] == 0.0 {
        return straight.to_vec();
    }
    let cosine = (from.inner(to) / (norms[0] * norms[1])).clamp(-1.0, 1.0);
    let (angle, t) = (cosine.acos(), f64::from(t));
    // Products that point the same way, or opposite ways, have no arc between them.
    if angle.sin() < 1e-4 {
        return straight.to_vec();
    }
    let on_arc = [((1.0 - t) * angle).sin() / angle.sin(), (t * angle).sin() / angle.sin()];
    on_arc.iter().zip(weights).map(|(arc, weight)| *arc as f32 * weight).collect()
}
