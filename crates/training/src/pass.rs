//! A forward and a backward pass over a batch. Inputs of layers are kept, all else is computed again on the way back.

use std::fmt;

use crate::base::Base;
use crate::batch::Batch;
use crate::compute::Compute;
use crate::head::{Counted, Head};
use crate::layer::{Extent, LayerBuffers, Setting};
use crate::lora::LoraWeights;
use crate::memory::left_numbers;
use crate::{Machine, TrainError};

/// The buffers of passes, and the threads that compute them.
pub struct Pass {
    compute: Compute,
    layer: LayerBuffers,
    head: Head,
    /// The residual stream before each layer. `[rows, hidden]`
    inputs: Vec<Vec<f32>>,
    /// That of the layer at hand, and its gradient.
    x: Vec<f32>,
    of_x: Vec<f32>,
    rows_max: usize,
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pass({} rows on {} threads)", self.rows_max, self.compute.pool.threads())
    }
}

impl Pass {
    /// Makes room for batches of up to `rows_max` rows.
    pub fn new(base: &Base, weights: &LoraWeights, machine: &Machine, rows_max: usize) -> Self {
        let ranks = weights.site_ranks();
        let compute = Compute::new(machine, left_numbers(&base.shape, ranks, rows_max));
        let numbers = rows_max * base.shape.hidden;
        Self {
            layer: LayerBuffers::new(&compute.pool, &base.shape, ranks, weights.scale, rows_max),
            head: Head::new(&compute.pool, &base.shape, rows_max),
            inputs: base.layers.iter().map(|_| vec![0.0; numbers]).collect(),
            x: vec![0.0; numbers],
            of_x: vec![0.0; numbers],
            compute,
            rows_max,
        }
    }

    /// Returns the loss of each target of a batch: the negative log probability of its token, in nats. Without the adapter where
    /// `is_adapted` is false.
    pub fn losses(
        &mut self,
        base: &Base,
        weights: &LoraWeights,
        batch: &Batch,
        is_adapted: bool,
    ) -> Result<Vec<f32>, TrainError> {
        let setting = Setting { base, weights, batch, is_adapted };
        self.forward(setting)?;
        self.head_losses(setting)
    }

    /// Adds the gradient of the weighted sum of losses to `gradient`; there is a weight for each target. Returns the losses.
    pub fn gradient(
        &mut self,
        base: &Base,
        weights: &LoraWeights,
        batch: &Batch,
        target_weights: &[f32],
        gradient: &mut [f32],
    ) -> Result<Vec<f32>, TrainError> {
        let setting = Setting { base, weights, batch, is_adapted: true };
        self.forward(setting)?;
        self.backward(setting, target_weights, gradient)
    }

    /// The same with weights that follow from the losses.
    pub fn gradient_by(
        &mut self,
        base: &Base,
        weights: &LoraWeights,
        batch: &Batch,
        weigh: impl FnOnce(&[f32]) -> Vec<f32>,
        gradient: &mut [f32],
    ) -> Result<Vec<f32>, TrainError> {
        let setting = Setting { base, weights, batch, is_adapted: true };
        self.forward(setting)?;
        let target_weights = weigh(&self.head_losses(setting)?);
        self.backward(setting, &target_weights, gradient)
    }

    /// Computes losses from what the forward pass has left.
    fn head_losses(&mut self, setting: Setting<'_>) -> Result<Vec<f32>, TrainError> {
        let counted = Counted { targets: &setting.batch.targets, weights: None };
        let x = &self.x[..setting.batch.rows() * setting.base.shape.hidden];
        self.head.run(&mut self.compute, setting.base, x, counted, &mut [])
    }

    /// Goes back to the factors from what the forward pass has left.
    fn backward(
        &mut self,
        setting: Setting<'_>,
        target_weights: &[f32],
        gradient: &mut [f32],
    ) -> Result<Vec<f32>, TrainError> {
        let Setting { base, batch, .. } = setting;
        let len = batch.rows() * base.shape.hidden;
        let (x, of_x) = (&mut self.x[..len], &mut self.of_x[..len]);
        of_x.fill(0.0);
        let counted = Counted { targets: &batch.targets, weights: Some(target_weights) };
        let losses = self.head.run(&mut self.compute, base, x, counted, of_x)?;
        for (index, input) in self.inputs.iter().enumerate().rev() {
            let input = &input[..len];
            x.copy_from_slice(input);
            self.layer.forward(&mut self.compute, setting, index, x, Extent::ForGradient)?;
            self.layer.backward(&mut self.compute, setting, index, input, of_x, gradient)?;
        }
        Ok(losses)
    }

    fn forward(&mut self, setting: Setting<'_>) -> Result<(), TrainError> {
        let rows = setting.batch.rows();
        assert!(rows <= self.rows_max, "more rows than there is room for");
        let len = rows * setting.base.shape.hidden;
        self.layer.set_rows(rows);
        let x = &mut self.x[..len];
        setting.base.embed(&setting.batch.tokens, x);
        for (index, input) in self.inputs.iter_mut().enumerate() {
            input[..len].copy_from_slice(x);
            self.layer.forward(&mut self.compute, setting, index, x, Extent::Whole)?;
        }
        Ok(())
    }
}
