//! From the residual stream behind all layers to losses, and back.
//!
//! The output matrix is dequantized a part at a time, for as many targets as fit beside each other: logits of a large vocabulary
//! take more memory than everything else.

use ruvllm_kernels::Pool;
use ruvllm_kernels::ops::{Bf16Matrix, Factor, Matrix, round_to_bf16};

use crate::TrainError;
use crate::base::{Base, Shape};
use crate::batch::Target;
use crate::compute::Compute;
use crate::linear::dequantize_rows;
use crate::norm::{inverse_rms, normalize, normalize_gradient};

/// Bytes of the logits that are kept at a time.
const LOGIT_BYTES_MAX: usize = 64 << 20;
/// Rows of the output matrix in a part, about.
const PART_ROWS: usize = 4096;
/// Targets that are taken at a time at least.
const TARGETS_MIN: usize = 16;

#[derive(Debug)]
pub(crate) struct Head {
    sizes: HeadSizes,
    hidden: usize,
    /// Normalized rows of targets. `[targets, hidden]`
    normed: Bf16Matrix,
    /// A part of the output matrix. `[part, hidden]`
    weights: Bf16Matrix,
    /// Of all parts, `[targets, part]` each.
    logits: Vec<Matrix>,
    /// `[targets, part]`
    of_logits: Bf16Matrix,
    /// `[targets, hidden]`
    of_normed: Matrix,
}

/// How the work is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadSizes {
    /// Targets that are taken at a time.
    pub targets: usize,
    pub parts: usize,
    /// Rows of the output matrix in a part; the last one may have fewer.
    pub part: usize,
}

impl HeadSizes {
    pub fn new(shape: &Shape, rows: usize) -> Self {
        let fit = LOGIT_BYTES_MAX / (shape.vocabulary * size_of::<f32>()).max(1);
        let parts = shape.vocabulary.div_ceil(PART_ROWS);
        Self { targets: fit.max(TARGETS_MIN).min(rows), parts, part: shape.vocabulary.div_ceil(parts) }
    }
}

/// The targets of a pass, and how much each counts; nothing is taken back without that.
#[derive(Clone, Copy)]
pub(crate) struct Counted<'a> {
    pub targets: &'a [Target],
    pub weights: Option<&'a [f32]>,
}

impl Head {
    pub fn new(pool: &Pool, shape: &Shape, rows: usize) -> Self {
        let sizes = HeadSizes::new(shape, rows);
        let HeadSizes { targets, parts, part } = sizes;
        Self {
            sizes,
            hidden: shape.hidden,
            normed: Bf16Matrix::new(pool, targets, shape.hidden),
            weights: Bf16Matrix::new(pool, part, shape.hidden),
            logits: (0..parts).map(|_| Matrix::new(pool, targets, part)).collect(),
            of_logits: Bf16Matrix::new(pool, targets, part),
            of_normed: Matrix::new(pool, targets, shape.hidden),
        }
    }

    /// Returns the loss of each target, and adds the gradient of their weighted sum to `of_x`.
    pub fn run(
        &mut self,
        compute: &mut Compute,
        base: &Base,
        x: &[f32],
        counted: Counted<'_>,
        of_x: &mut [f32],
    ) -> Result<Vec<f32>, TrainError> {
        let mut losses = Vec::with_capacity(counted.targets.len());
        for (number, targets) in counted.targets.chunks(self.sizes.targets).enumerate() {
            let first = number * self.sizes.targets;
            let weights = counted.weights.map(|weights| &weights[first..][..targets.len()]);
            self.logits(compute, base, x, targets)?;
            losses.extend(self.losses(compute, base, targets, weights)?);
            if weights.is_some() {
                self.gradient(compute, base, x, targets, of_x)?;
            }
        }
        Ok(losses)
    }

    fn logits(&mut self, compute: &mut Compute, base: &Base, x: &[f32], targets: &[Target]) -> Result<(), TrainError> {
        let (hidden, epsilon) = (self.hidden, base.config().norm_epsilon);
        self.normed.set_rows(targets.len());
        compute.rows(self.normed.as_mut_slice(), hidden, |index, out| {
            let (x, mut floats) = (&x[targets[index].row * hidden..][..hidden], vec![0.0; hidden]);
            normalize(x, &base.output_norm, inverse_rms(x, epsilon), &mut floats);
            round_to_bf16(&floats, out);
        })?;
        for part in 0..self.sizes.parts {
            self.load(compute, base, part)?;
            let (left, right) = (Factor::AsIs(&self.normed), Factor::Transposed(&self.weights));
            compute.multiply(left, right, &self.logits[part], false)?;
        }
        Ok(())
    }

    /// Dequantizes a part of the output matrix; what is beyond the last token is zero.
    fn load(&mut self, compute: &mut Compute, base: &Base, part: usize) -> Result<(), TrainError> {
        let first = part * self.sizes.part;
        let rows = self.sizes.part.min(base.shape.vocabulary - first);
        let (there, beyond) = self.weights.as_mut_slice().split_at_mut(rows * self.hidden);
        beyond.fill(0);
        dequantize_rows(compute, &base.output(), first, there)
    }

    /// Computes the loss of each target. Logits become their gradients where losses are weighted.
    fn losses(
        &mut self,
        compute: &mut Compute,
        base: &Base,
        targets: &[Target],
        weights: Option<&[f32]>,
    ) -> Result<Vec<f32>, TrainError> {
        let mut rows: Vec<Vec<&mut [f32]>> = targets.iter().map(|_| Vec::with_capacity(self.sizes.parts)).collect();
        let (part, mut left) = (self.sizes.part, base.shape.vocabulary);
        for logits in &mut self.logits {
            let count = part.min(left);
            left -= count;
            for (row, logits) in rows.iter_mut().zip(logits.as_mut_slice().chunks_exact_mut(part)) {
                let (there, beyond) = logits.split_at_mut(count);
                beyond.fill(0.0);
                row.push(there);
            }
        }
        let mut losses = vec![0.0; targets.len()];
        let cap = base.config().logit_softcap;
        let units = rows.into_iter().zip(&mut losses).enumerate();
        compute.each(units, |(index, (mut row, loss))| {
            let token = targets[index].token as usize;
            *loss = cross_entropy(&mut row, (token / part, token % part), cap, weights.map(|weights| weights[index]));
        })?;
        Ok(losses)
    }

    fn gradient(
        &mut self,
        compute: &mut Compute,
        base: &Base,
        x: &[f32],
        targets: &[Target],
        of_x: &mut [f32],
    ) -> Result<(), TrainError> {
        let (part_rows, hidden) = (self.sizes.part, self.hidden);
        self.of_logits.set_rows(targets.len());
        for part in 0..self.sizes.parts {
            self.load(compute, base, part)?;
            let logits = &*self.logits[part].as_mut_slice();
            compute.rows(self.of_logits.as_mut_slice(), part_rows, |row, out| {
                round_to_bf16(&logits[row * part_rows..][..part_rows], out);
            })?;
            let (left, right) = (Factor::AsIs(&self.of_logits), Factor::AsIs(&self.weights));
            compute.multiply(left, right, &self.of_normed, part > 0)?;
        }
        let epsilon = base.config().norm_epsilon;
        let of_normed = self.of_normed.as_mut_slice().chunks_exact_mut(hidden);
        for (target, of_normed) in targets.iter().zip(of_normed) {
            let row = target.row * hidden..(target.row + 1) * hidden;
            let x = &x[row.clone()];
            normalize_gradient(x, &base.output_norm, inverse_rms(x, epsilon), of_normed);
            of_x[row].iter_mut().zip(of_normed).for_each(|(of_x, more)| *of_x += *more);
        }
        Ok(())
    }
}

/// Returns the negative log probability of a token, whose logit is at `place`. With a weight, logits become their gradients.
fn cross_entropy(logits: &mut [&mut [f32]], place: (usize, usize), cap: Option<f32>, weight: Option<f32>) -> f32 {
    if let Some(cap) = cap {
        logits.iter_mut().flat_map(|part| part.iter_mut()).for_each(|logit| *logit = cap * (*logit / cap).tanh());
    }
    let largest = logits.iter().flat_map(|part| part.iter()).copied().fold(f32::NEG_INFINITY, f32::max);
    let of_token = logits[place.0][place.1];
    let mut total = 0f64;
    for part in &*logits {
        // One sum for each part: short enough for floats, whose additions are half the work.
        total += f64::from(part.iter().map(|logit| (logit - largest).exp()).sum::<f32>());
    }
    let log_total = total.ln() as f32 + largest;
    if let Some(weight) = weight {
        for (number, part) in logits.iter_mut().enumerate() {
            for (index, logit) in part.iter_mut().enumerate() {
                let capped = *logit;
                let is_token = f32::from(u8::from((number, index) == place));
                let slope = cap.map_or(1.0, |cap| 1.0 - (capped / cap) * (capped / cap));
                *logit = ((capped - log_total).exp() - is_token) * slope * weight;
            }
        }
    }
    log_total - of_token
}
