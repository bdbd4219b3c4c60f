//! Products of bf16 matrices, as training has them: a batch times weights, and the gradients of both.

use ruvllm_kernels::ops::{Bf16Matrix, Factor, Gemm, Matrix, Product};

use crate::Shape;
use crate::measure::{Bench, Limit};
use crate::support::Random;

const TOKENS: [usize; 2] = [128, 512];

pub fn run(bench: &mut Bench<'_>, shape: Shape) {
    let (inner, cols) = (shape.hidden, shape.feed_forward);
    for tokens in TOKENS {
        let name = |way: &str| format!("gemm {} {way} x{tokens}", shape.name);
        let ways = ["A·Bᵀ", "A·B", "Aᵀ·B"].map(name);
        if !ways.iter().any(|name| bench.wants(name)) {
            continue;
        }
        let mut random = Random(5);
        let [inputs, weights, outputs] = [(tokens, inner), (cols, inner), (tokens, cols)].map(|(rows, cols)| {
            let mut matrix = Bf16Matrix::new(&bench.pool, rows, cols);
            (0..rows).for_each(|row| matrix.set_row(row, &random.floats(cols)));
            matrix
        });
        let [forward, of_inputs, of_weights] = ways;
        use Factor::{AsIs, Transposed};
        time(bench, forward, AsIs(&inputs), Transposed(&weights), [tokens, inner, cols]);
        time(bench, of_inputs, AsIs(&outputs), AsIs(&weights), [tokens, cols, inner]);
        time(bench, of_weights, Transposed(&outputs), AsIs(&inputs), [cols, tokens, inner]);
    }
}

fn time(bench: &mut Bench<'_>, name: String, left: Factor<'_>, right: Factor<'_>, [rows, inner, cols]: [usize; 3]) {
    let (gemm, out) = (Gemm::new(&bench.pool, rows, inner), Matrix::new(&bench.pool, rows, cols));
    let limit = Limit::Bf16 { operations: 2 * rows * inner * cols };
    bench.time(name, limit, |worker, _| {
        gemm.run(worker, &Product { left, right, out: &out, adds: false, stop: None });
        worker.barrier();
    });
}
