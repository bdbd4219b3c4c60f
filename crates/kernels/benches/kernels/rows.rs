//! What is done row by row on its own: the norm (with rounding to 8 bits) before the first layer.

use ruvllm_kernels::WeightType;
use ruvllm_kernels::ops::{Activations, Matrix, normalize_rows};

use crate::Shape;
use crate::measure::{Bench, Limit};
use crate::support::{Random, linear};

const ROWS: [usize; 2] = [1, 512];

pub fn run(bench: &mut Bench<'_>, shape: Shape) {
    let mut random = Random(3);
    let kind = WeightType::Q4_0;
    let consumer = linear(kind, 16, shape.hidden, &random.weights(kind, 16, shape.hidden));
    for rows in ROWS {
        let mut x = Matrix::new(&bench.pool, rows, shape.hidden);
        for row in 0..rows {
            x.row_mut(row).copy_from_slice(&random.floats(shape.hidden));
        }
        let weight = random.floats(shape.hidden);
        let all: Vec<usize> = (0..rows).collect();
        let normed = Activations::new(&bench.pool, rows, [&consumer]).normalized(&bench.pool, 1e-5);
        // Floats in, a byte for each out, scales left aside.
        let bytes = rows * shape.hidden * (size_of::<f32>() + 1);
        bench.time(format!("norm and rounding {} x{rows}", shape.name), Limit::Memory { bytes }, |worker, _| {
            normalize_rows(worker, &x, &all, &weight, &normed);
            worker.barrier();
        });
    }
}
