//! The operations of a model that kernels may compute, in its sizes.

use ruvllm_kernels::ops::{Activation, RopeStyle, RowOperation};

use crate::manifest::Category;

/// The sizes of a model that kernels see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelShapes {
    pub hidden: usize,
    /// Heads that are rotated together: those of queries and keys.
    pub heads: usize,
    pub head_dim: usize,
    /// Pairs of a head that are rotated; 0 in a model without positions.
    pub pairs: usize,
    pub rope_style: RopeStyle,
    pub feed_forward: usize,
    pub activation: Activation,
    /// Gates of a row that are activated at once; 0 in a model whose gates are native only.
    pub gated: usize,
}

impl Default for ModelShapes {
    /// Those of a small model.
    fn default() -> Self {
        Self {
            hidden: 576,
            heads: 12,
            head_dim: 64,
            pairs: 32,
            rope_style: RopeStyle::Interleaved,
            feed_forward: 1536,
            activation: Activation::Silu,
            gated: 1536,
        }
    }
}

/// An operation on so many numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    RmsNorm { len: usize },
    Rope { heads: usize, head_dim: usize, pairs: usize, style: RopeStyle },
    Gated { activation: Activation, len: usize },
}

impl ModelShapes {
    /// Returns the operations of its forward pass that packs may have kernels for.
    pub fn operations(&self) -> Vec<Operation> {
        let &Self { hidden, heads, head_dim, pairs, rope_style: style, activation, gated, .. } = self;
        let operations = [
            Operation::RmsNorm { len: hidden },
            Operation::Rope { heads, head_dim, pairs, style },
            Operation::Gated { activation, len: gated },
        ];
        let is_there = |operation: &Operation| match operation {
            Operation::RmsNorm { .. } => true,
            Operation::Rope { pairs, .. } => *pairs > 0,
            Operation::Gated { len, .. } => *len > 0 && Category::of(operation.row_operation()).is_some(),
        };
        operations.into_iter().filter(is_there).collect()
    }
}

impl Operation {
    pub fn row_operation(&self) -> RowOperation {
        match self {
            Self::RmsNorm { .. } => RowOperation::RmsNorm,
            Self::Rope { .. } => RowOperation::Rope,
            Self::Gated { activation, .. } => RowOperation::Gated(*activation),
        }
    }

    /// Returns the category of kernels that compute it; `None` if no category does.
    pub fn category(&self) -> Option<Category> {
        Category::of(self.row_operation())
    }

    /// Returns how many numbers one call gets.
    pub fn numbers(&self) -> usize {
        match self {
            Self::RmsNorm { len } | Self::Gated { len, .. } => *len,
            Self::Rope { heads, head_dim, .. } => heads * head_dim,
        }
    }

    /// Whether a kernel from outside has it taken out of the phase that natively does it on the way, with a wait of all threads
    /// behind it. Gates are handed to kernels where they are.
    pub fn takes_a_phase(&self) -> bool {
        !matches!(self, Self::Gated { .. })
    }
}

impl Category {
    /// Returns the category of an operation of a forward pass.
    pub(crate) fn of(operation: RowOperation) -> Option<Self> {
        match operation {
            RowOperation::RmsNorm => Some(Self::RmsNorm),
            RowOperation::Rope => Some(Self::Rope),
            RowOperation::Gated(Activation::Silu) => Some(Self::Swiglu),
            RowOperation::Gated(Activation::GeluTanh) => Some(Self::Geglu),
            RowOperation::Gated(Activation::SwigluOai) => None,
        }
    }
}
