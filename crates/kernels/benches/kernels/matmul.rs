//! Matmul for each weight format and several batch sizes.

use ruvllm_kernels::WeightType;
use ruvllm_kernels::ops::{Activations, BatchRows, Linear, Matrix, matmul};

use crate::Shape;
use crate::measure::{Bench, Limit};
use crate::support::{Random, linear};

/// Formats of common files.
const FORMATS: [WeightType; 5] =
    [WeightType::Q4_0, WeightType::Q4_1, WeightType::Q8_0, WeightType::Q4K, WeightType::Q6K];
const TOKENS: [usize; 5] = [1, 8, 64, 128, 512];
/// Small batches go through so many bytes of weights before the first come again: more than a last-level cache holds.
const CYCLE_BYTES: usize = 512 << 20;
/// From here on products take longer than reading, and one matrix will do.
const COMPUTE_TOKENS: usize = 64;

pub fn run(bench: &mut Bench<'_>, shape: Shape) {
    // Up: wide output. Down: long rows.
    for (part, rows, cols) in [("up", shape.feed_forward, shape.hidden), ("down", shape.hidden, shape.feed_forward)] {
        for kind in FORMATS {
            let name = format!("matmul {kind} {} {part} {rows}x{cols}", shape.name);
            // Files with rows that are not whole blocks have other formats there.
            let whole = cols.is_multiple_of(kind.block_len());
            if whole && TOKENS.iter().any(|tokens| bench.wants_any(&format!("{name} x{tokens}"))) {
                one_format(bench, &name, kind, rows, cols);
            }
        }
    }
}

fn one_format(bench: &mut Bench<'_>, name: &str, kind: WeightType, rows: usize, cols: usize) {
    let mut random = Random(1);
    let bytes = random.weights(kind, rows, cols);
    let copies: Vec<Linear> =
        (0..(CYCLE_BYTES / bytes.len()).max(1)).map(|_| linear(kind, rows, cols, &bytes)).collect();
    for tokens in TOKENS {
        let (input, out) =
            (Activations::new(&bench.pool, tokens, &copies[..1]), Matrix::new(&bench.pool, tokens, rows));
        let small = tokens < COMPUTE_TOKENS;
        let limit = if small {
            Limit::Memory { bytes: bytes.len() }
        } else {
            Limit::Bytes { operations: 2 * rows * cols * tokens }
        };
        let count = if small { copies.len() } else { 1 };
        bench.time(format!("{name} x{tokens}"), limit, |worker, round| {
            matmul(worker, &copies[round % count], &input, tokens, &out);
            worker.barrier();
        });
    }
    if !bench.pool.has_bf16() {
        return;
    }
    for tokens in TOKENS.into_iter().filter(|tokens| *tokens >= COMPUTE_TOKENS) {
        let input = Activations::new(&bench.pool, tokens, &copies[..1]).in_bf16(&bench.pool, false);
        let (out, rows_in_bf16) = (Matrix::new(&bench.pool, tokens, rows), BatchRows::new(0, tokens));
        let limit = Limit::Bf16 { operations: 2 * rows * cols * tokens };
        bench.time(format!("{name} x{tokens} bf16"), limit, |worker, _| {
            matmul(worker, &copies[0], &input, rows_in_bf16, &out);
            worker.barrier();
        });
    }
}
