//! The matmuls of a layer with adapters of rank 8 beside the same without: one for all rows, and one for each.

use std::sync::Arc;

use ruvllm_kernels::ops::{
    Activations, Adapted, Adapter, AdapterRows, BatchRows, Linear, LowRank, LowRankPiece, Matrix, matmul,
};
use ruvllm_kernels::{Arena, PackedMatrix, WeightType};

use crate::Shape;
use crate::measure::{Bench, Limit};
use crate::support::Random;

const RANK: usize = 8;
/// Rows, and how many adapters they have among them.
const BATCHES: [(usize, usize); 7] = [(1, 0), (1, 1), (8, 0), (8, 1), (8, 8), (512, 0), (512, 1)];

/// A matrix, or several that share an input, and buffers for them.
struct Site {
    weights: Linear,
    adapters: Vec<Arc<Adapter>>,
}

pub fn run(bench: &mut Bench<'_>, shape: Shape) {
    let name = |rows: usize, adapters: usize| format!("low_rank {} layer x{rows}, {adapters} adapters", shape.name);
    if !BATCHES.iter().any(|(rows, adapters)| bench.wants(&name(*rows, *adapters))) {
        return;
    }
    let mut random = Random(5);
    let Shape { hidden, feed_forward, heads, kv_heads, head_dim, layers, .. } = shape;
    let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
    let sites = [
        (hidden, vec![queries, keys, keys]),
        (queries, vec![hidden]),
        (hidden, vec![feed_forward; 2]),
        (feed_forward, vec![hidden]),
    ];
    // As many layers as the model has, so that weights come from where they come from there.
    let all: Vec<Vec<Site>> =
        (0..layers).map(|_| sites.iter().map(|(cols, parts)| site(&mut random, *cols, parts)).collect()).collect();
    for (rows, adapters) in BATCHES {
        let inputs = sites.each_ref().map(|(cols, _)| {
            let of_site = all[0].iter().map(|site| &site.weights).find(|weights| weights.cols() == *cols);
            let mut input = Activations::new(&bench.pool, rows, of_site);
            input.reserve_floats(&bench.pool);
            input
        });
        let outs = sites.each_ref().map(|(_, parts)| Matrix::new(&bench.pool, rows, parts.iter().sum()));
        let groups: Vec<Vec<[AdapterRows; 1]>> = all
            .iter()
            .map(|layer| layer.iter().map(|site| [adapter_rows(bench, site, rows, adapters)]).collect())
            .collect();
        let batch = BatchRows::from(rows).with_adapters();
        let bytes = all[0].iter().map(|site| site.weights.bytes()).sum();
        bench.time(name(rows, adapters), Limit::Memory { bytes }, |worker, round| {
            let layer = round % layers;
            for ((site, [rows]), (input, out)) in all[layer].iter().zip(&groups[layer]).zip(inputs.iter().zip(&outs)) {
                matmul(worker, Adapted::new(&site.weights, Some(rows), 0), input, batch, out);
                worker.barrier();
            }
        });
    }
}

fn adapter_rows(bench: &Bench<'_>, site: &Site, rows: usize, adapters: usize) -> AdapterRows {
    let mut all = AdapterRows::new(&bench.pool);
    let group = |number: usize| (Arc::clone(&site.adapters[number]), (number..rows).step_by(adapters).collect());
    all.set(&bench.pool, rows, (0..adapters).map(group));
    all
}

fn site(random: &mut Random, cols: usize, parts: &[usize]) -> Site {
    let kind = WeightType::Q4_1;
    let mut pack = |rows: &usize| {
        let bytes = random.weights(kind, *rows, cols);
        PackedMatrix::pack(kind, *rows, cols, &bytes, &mut Arena::new()).expect("whole blocks")
    };
    let weights = Linear::new(parts.iter().map(&mut pack).collect(), None).expect("one input");
    let adapter = |random: &mut Random| {
        let piece = |(part, rows): (usize, &usize), random: &mut Random| LowRankPiece {
            a: random.floats(RANK * cols),
            rank: RANK,
            scale: 1.0,
            outputs: vec![(part, random.floats(rows * RANK))],
        };
        let pieces: Vec<LowRankPiece> = parts.iter().enumerate().map(|part| piece(part, random)).collect();
        Arc::new(Adapter::new(vec![Some(LowRank::new(cols, parts, &pieces))]))
    };
    Site { weights, adapters: (0..8).map(|_| adapter(random)).collect() }
}
