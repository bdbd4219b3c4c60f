//! The norm before the first layer, and before the logits of selected rows. Between layers it is part of the matmul that
//! comes before it.

use super::matrix::Part;
use super::{Activations, Matrix, own_rows};
use crate::Worker;
use crate::threads::Access;

/// `out[i]` = the norm of `x[rows[i]]` with weights `weight`.
pub fn normalize(worker: &Worker<'_>, x: &Matrix, rows: &[usize], weight: &[f32], out: &Activations) {
    assert!(out.cols() == x.cols && rows.len() <= out.rows());
    let mut scratch = worker.scratch();
    scratch.sums.resize(x.cols);
    for i in own_rows(worker, rows.len()) {
        let from = x.read_row(worker, rows[i]);
        let part = Part { access: Access::WriteRows, row: i, cols: 0..x.cols };
        // SAFETY: `i` is one of this worker's rows.
        unsafe { out.put_normalized(worker, &part, from, weight, &mut scratch.sums) };
    }
}
