//! The kernels of several packs, of which one was chosen for each operation.

use std::sync::Arc;

use ruvllm_kernels::ops::{Activation, RopeStyle, RowKernels, RowOperation};

use crate::manifest::Category;
use crate::row_kernels::{CATEGORIES, KernelStatus, PackKernels, slot_of};

/// Packs at work, and which of them computes what.
#[derive(Clone, Debug)]
pub struct ChosenKernels {
    packs: Vec<Arc<PackKernels>>,
    /// Index of the pack of each category; `None` is the native kernel.
    pack_of: [Option<usize>; CATEGORIES.len()],
}

impl ChosenKernels {
    /// `choose` returns the index of the pack that a category is taken from.
    pub fn new(packs: Vec<Arc<PackKernels>>, choose: impl Fn(Category) -> Option<usize>) -> Self {
        Self { pack_of: CATEGORIES.map(choose), packs }
    }

    pub fn packs(&self) -> &[Arc<PackKernels>] {
        &self.packs
    }

    /// Whether everything is left to the native kernels.
    pub fn is_empty(&self) -> bool {
        self.pack_of.iter().all(Option::is_none)
    }

    /// Returns the packs that something is taken from.
    pub fn packs_in_use(&self) -> impl Iterator<Item = &Arc<PackKernels>> {
        let in_use = |(index, pack)| self.pack_of.contains(&Some(index)).then_some(pack);
        self.packs.iter().enumerate().filter_map(in_use)
    }

    /// Returns the state of each kernel that was chosen.
    pub fn status(&self) -> Vec<KernelStatus> {
        let chosen = CATEGORIES.iter().zip(self.pack_of).filter_map(|(category, pack)| {
            self.packs.get(pack?)?.status().into_iter().find(|status| status.category == *category)
        });
        chosen.collect()
    }

    fn pack_for(&self, operation: RowOperation) -> Option<&PackKernels> {
        self.packs.get(self.pack_of[slot_of(operation)?]?).map(|pack| &**pack)
    }
}

impl RowKernels for ChosenKernels {
    fn has(&self, operation: RowOperation) -> bool {
        self.pack_for(operation).is_some_and(|pack| pack.has(operation))
    }

    fn rms_norm(&self, worker: usize, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) -> bool {
        let pack = self.pack_for(RowOperation::RmsNorm);
        pack.is_some_and(|pack| pack.rms_norm(worker, x, weight, epsilon, out))
    }

    fn rotate(
        &self,
        worker: usize,
        heads: &mut [f32],
        head_dim: usize,
        rotations: &[[f32; 2]],
        style: RopeStyle,
    ) -> bool {
        let pack = self.pack_for(RowOperation::Rope);
        pack.is_some_and(|pack| pack.rotate(worker, heads, head_dim, rotations, style))
    }

    fn gated(&self, worker: usize, activation: Activation, up: &[f32], gate: &mut [f32]) -> bool {
        let pack = self.pack_for(RowOperation::Gated(activation));
        pack.is_some_and(|pack| pack.gated(worker, activation, up, gate))
    }
}
