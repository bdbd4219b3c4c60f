//! Weight matrices that share an input.

use crate::weights::{GROUP, PackedMatrix};

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LinearError {
    #[error("matrices stacked in one layer have {0} and {1} columns")]
    Columns(usize, usize),
    #[error("a layer of {rows} rows has a bias of {bias} numbers")]
    Bias { rows: usize, bias: usize },
}

/// Weight matrices stacked over each other (such as Q, K and V), which may differ in format, and an optional bias.
#[derive(Debug)]
pub struct Linear {
    parts: Vec<PackedMatrix>,
    bias: Option<Vec<f32>>,
}

impl Linear {
    /// Panics without any part.
    pub fn new(parts: Vec<PackedMatrix>, bias: Option<Vec<f32>>) -> Result<Self, LinearError> {
        let cols = parts[0].cols();
        if let Some(other) = parts.iter().find(|part| part.cols() != cols) {
            return Err(LinearError::Columns(cols, other.cols()));
        }
        let rows = parts.iter().map(PackedMatrix::rows).sum();
        match &bias {
            Some(bias) if bias.len() != rows => Err(LinearError::Bias { rows, bias: bias.len() }),
            _ => Ok(Self { parts, bias }),
        }
    }

    pub fn rows(&self) -> usize {
        self.parts.iter().map(PackedMatrix::rows).sum()
    }

    pub fn cols(&self) -> usize {
        self.parts[0].cols()
    }

    /// Returns the rows of each part.
    pub fn part_rows(&self) -> Vec<usize> {
        self.parts.iter().map(PackedMatrix::rows).collect()
    }

    /// Writes the floats of one row of the weights to `out`. Panics if there is no such row.
    pub fn row(&self, mut row: usize, out: &mut [f32]) {
        for part in &self.parts {
            if row < part.rows() {
                return part.row(row, out);
            }
            row -= part.rows();
        }
        panic!("there are {} rows, and row {row} beyond them was asked for", self.rows());
    }

    /// Whether its columns are whole groups of those that kernels take in bf16.
    pub fn can_take_bf16(&self) -> bool {
        self.cols().is_multiple_of(GROUP)
    }

    /// Memory held by the weights.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(PackedMatrix::bytes).sum()
    }

    pub(crate) fn parts(&self) -> &[PackedMatrix] {
        &self.parts
    }

    pub(crate) fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }
}
