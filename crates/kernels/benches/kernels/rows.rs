//! What is done row by row: norm, gated activation, rounding to 8 bits.

use ruvllm_kernels::ops::{Activations, Matrix, quantize, rms_norm, swiglu};

use crate::Shape;
use crate::measure::{Bench, Limit};
use crate::support::Random;

const ROWS: [usize; 2] = [1, 512];

pub fn run(bench: &mut Bench<'_>, shape: Shape) {
    let mut random = Random(3);
    for rows in ROWS {
        let mut x = Matrix::new(&bench.pool, rows, shape.hidden);
        let mut gate_up = Matrix::new(&bench.pool, rows, 2 * shape.feed_forward);
        for row in 0..rows {
            x.row_mut(row).copy_from_slice(&random.floats(shape.hidden));
            gate_up.row_mut(row).copy_from_slice(&random.floats(2 * shape.feed_forward));
        }
        let weight = random.floats(shape.hidden);
        let all: Vec<usize> = (0..rows).collect();
        let (normed, gated) = (
            Activations::new(&bench.pool, rows, shape.hidden),
            Activations::new(&bench.pool, rows, shape.feed_forward),
        );
        let float = size_of::<f32>();
        let name = |kernel: &str| format!("{kernel} {} x{rows}", shape.name);
        // Norm and activation also round what they write: a byte for each number, scales left aside.
        let bytes = rows * shape.hidden * (2 * float + 1);
        bench.time(name("rms_norm"), Limit::Memory { bytes }, |worker, _| {
            rms_norm(worker, &x, &all, &weight, 1e-5, &normed);
            worker.barrier();
        });
        let bytes = rows * shape.hidden * (float + 1);
        bench.time(name("quantize"), Limit::Memory { bytes }, |worker, _| {
            quantize(worker, rows, &normed);
            worker.barrier();
        });
        let bytes = rows * shape.feed_forward * (3 * float + 1);
        bench.time(name("swiglu"), Limit::Memory { bytes }, |worker, _| {
            swiglu(worker, &gate_up, rows, &gated);
            worker.barrier();
        });
    }
}
