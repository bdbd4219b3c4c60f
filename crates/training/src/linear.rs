//! A matrix of the model with the factors of a LoRA beside it: products forward, and the gradients of inputs and factors.
//!
//! `y = W x + B (s A x)` for rows that the adapter applies to, `W x` for the others. Tensors of a site stand below each other in
//! `W`; their `A`s do so too, and their `B`s stand on the diagonal of one matrix. So a site is one product of each kind.

use ruvllm_kernels::ops::{Bf16Matrix, Factor, Matrix, round_to_bf16};
use ruvllm_kernels::{Pool, dequantize_row};
use ruvllm_model::formats::gguf::Tensor;

use crate::TrainError;
use crate::base::{Base, Site};
use crate::compute::Compute;
use crate::lora::{LoraModule, LoraWeights};

/// Rows of a matrix that a thread dequantizes at a time.
const ROWS_EACH: usize = 32;

/// One site of the layer that is computed.
#[derive(Debug)]
pub(crate) struct Linear {
    /// `[rows, cols]`
    weights: Bf16Matrix,
    lora: Option<LoraBuffers>,
}

/// What the factors of a site need.
#[derive(Debug)]
struct LoraBuffers {
    scale: f32,
    /// `[ranks, cols]`
    a: Bf16Matrix,
    /// `[rows, ranks]`
    b: Bf16Matrix,
    /// Products with the first or the second factor. `[tokens, ranks]`
    products: Matrix,
    /// `s A x`, zero where the adapter does not apply. `[tokens, ranks]`
    projected: Bf16Matrix,
    /// `s Bᵀ dy`, likewise. `[tokens, ranks]`
    of_projected: Bf16Matrix,
    /// Gradients. `[ranks, cols]`, `[rows, ranks]`
    of_a: Matrix,
    of_b: Matrix,
}

impl Linear {
    /// Makes room for a site with so many rows and columns, and ranks of all its factors.
    pub fn new(pool: &Pool, (rows, cols): (usize, usize), ranks: usize, scale: f32, tokens: usize) -> Self {
        let lora = (ranks > 0).then(|| LoraBuffers {
            scale,
            a: Bf16Matrix::new(pool, ranks, cols),
            b: Bf16Matrix::new(pool, rows, ranks),
            products: Matrix::new(pool, tokens, ranks),
            projected: Bf16Matrix::new(pool, tokens, ranks),
            of_projected: Bf16Matrix::new(pool, tokens, ranks),
            of_a: Matrix::new(pool, ranks, cols),
            of_b: Matrix::new(pool, rows, ranks),
        });
        Self { weights: Bf16Matrix::new(pool, rows, cols), lora }
    }

    /// Lets steps have so many tokens.
    pub fn set_tokens(&mut self, tokens: usize) {
        if let Some(lora) = &mut self.lora {
            lora.projected.set_rows(tokens);
            lora.of_projected.set_rows(tokens);
        }
    }

    /// Takes the weights of a layer, and its factors.
    pub fn load(
        &mut self,
        compute: &mut Compute,
        base: &Base,
        site: &Site,
        modules: &[&LoraModule],
        weights: &LoraWeights,
    ) -> Result<(), TrainError> {
        let parts: Vec<Tensor<'_>> = site.parts.iter().map(|part| base.tensor(&part.name())).collect();
        dequantize(compute, &parts, &mut self.weights)?;
        let Some(lora) = &mut self.lora else { return Ok(()) };
        let (ranks, rank) = (lora.a.rows(), weights.rank);
        let (a, b) = (lora.a.as_mut_slice(), lora.b.as_mut_slice());
        b.fill(0);
        for module in modules {
            let len = rank * module.cols;
            round_to_bf16(&weights.numbers[module.a.clone()], &mut a[module.first_rank * module.cols..][..len]);
            let rows = weights.numbers[module.b.clone()].chunks_exact(rank);
            for (row, numbers) in rows.enumerate() {
                round_to_bf16(numbers, &mut b[(module.first_row + row) * ranks + module.first_rank..][..rank]);
            }
        }
        Ok(())
    }

    /// Multiplies rows; the adapter applies to the `active` ones, and to none without them.
    pub fn forward(
        &mut self,
        compute: &mut Compute,
        x: &Bf16Matrix,
        active: Option<&[bool]>,
        out: &Matrix,
    ) -> Result<(), TrainError> {
        use Factor::{AsIs, Transposed};
        compute.multiply(AsIs(x), Transposed(&self.weights), out, false)?;
        self.project(compute, x, active)?;
        match &self.lora {
            Some(lora) if active.is_some() => compute.multiply(AsIs(&lora.projected), Transposed(&lora.b), out, true),
            _ => Ok(()),
        }
    }

    /// Multiplies rows with the first factor only.
    pub fn project(
        &mut self,
        compute: &mut Compute,
        x: &Bf16Matrix,
        active: Option<&[bool]>,
    ) -> Result<(), TrainError> {
        let (Some(lora), Some(active)) = (&mut self.lora, active) else { return Ok(()) };
        compute.multiply(Factor::AsIs(x), Factor::Transposed(&lora.a), &lora.products, false)?;
        scale_active(&mut lora.products, active, lora.scale, &mut lora.projected);
        Ok(())
    }

    /// Takes the gradient of the result to that of the rows `x`, which went forward last, and adds those of the factors to
    /// `gradient`.
    #[allow(clippy::too_many_arguments)]
    pub fn backward(
        &mut self,
        compute: &mut Compute,
        of_out: &Bf16Matrix,
        x: &Bf16Matrix,
        active: &[bool],
        of_x: &Matrix,
        modules: &[&LoraModule],
        gradient: &mut [f32],
    ) -> Result<(), TrainError> {
        use Factor::{AsIs, Transposed};
        compute.multiply(AsIs(of_out), AsIs(&self.weights), of_x, false)?;
        let Some(lora) = &mut self.lora else { return Ok(()) };
        compute.multiply(AsIs(of_out), AsIs(&lora.b), &lora.products, false)?;
        scale_active(&mut lora.products, active, lora.scale, &mut lora.of_projected);
        compute.multiply(AsIs(&lora.of_projected), AsIs(&lora.a), of_x, true)?;
        compute.multiply(Transposed(&lora.of_projected), AsIs(x), &lora.of_a, false)?;
        compute.multiply(Transposed(of_out), AsIs(&lora.projected), &lora.of_b, false)?;
        lora.add_gradients(modules, gradient);
        Ok(())
    }
}

impl LoraBuffers {
    fn add_gradients(&mut self, modules: &[&LoraModule], gradient: &mut [f32]) {
        let ranks = self.of_b.cols();
        let (of_a, of_b) = (&*self.of_a.as_mut_slice(), &*self.of_b.as_mut_slice());
        let add = |to: &mut [f32], from: &[f32]| to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        for module in modules {
            add(&mut gradient[module.a.clone()], &of_a[module.first_rank * module.cols..][..module.a.len()]);
            let rank = module.b.len() / module.rows;
            for (row, to) in gradient[module.b.clone()].chunks_exact_mut(rank).enumerate() {
                add(to, &of_b[(module.first_row + row) * ranks + module.first_rank..][..rank]);
            }
        }
    }
}

/// Rounds products, scaled where the adapter applies and zero elsewhere.
fn scale_active(products: &mut Matrix, active: &[bool], scale: f32, out: &mut Bf16Matrix) {
    let ranks = products.cols();
    let rows = products.as_mut_slice().chunks_exact_mut(ranks).zip(out.as_mut_slice().chunks_exact_mut(ranks));
    for ((products, out), is_active) in rows.zip(active) {
        let factor = if *is_active { scale } else { 0.0 };
        products.iter_mut().for_each(|product| *product *= factor);
        round_to_bf16(products, out);
    }
}

/// Dequantizes tensors that stand below each other.
fn dequantize(compute: &mut Compute, parts: &[Tensor<'_>], out: &mut Bf16Matrix) -> Result<(), TrainError> {
    let cols = out.cols();
    let mut rest = out.as_mut_slice();
    for tensor in parts {
        let (rows, after) = rest.split_at_mut(tensor.dims[1] * cols);
        rest = after;
        dequantize_rows(compute, tensor, 0, rows)?;
    }
    Ok(())
}

/// Dequantizes rows of a tensor from `first` on, as many as fit.
pub(crate) fn dequantize_rows(
    compute: &mut Compute,
    tensor: &Tensor<'_>,
    first: usize,
    out: &mut [u16],
) -> Result<(), TrainError> {
    let (bytes, cols) = (tensor.bytes(), tensor.dims[0]);
    let row_bytes = bytes.len() / tensor.dims[1];
    compute.each(out.chunks_mut(ROWS_EACH * cols).enumerate(), |(chunk, rows)| {
        let mut floats = vec![0.0; cols];
        for (row, out) in rows.chunks_exact_mut(cols).enumerate() {
            let number = first + chunk * ROWS_EACH + row;
            dequantize_row(tensor.kind, &bytes[number * row_bytes..][..row_bytes], &mut floats);
            round_to_bf16(&floats, out);
        }
    })
}
