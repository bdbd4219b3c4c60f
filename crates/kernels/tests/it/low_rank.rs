//! What adapters add to matmuls, on every kernel set, against f64 sums.

use std::sync::Arc;

use crate::support::{Random, linear, matrix, pools};
use ruvllm_kernels::ops::{
    Activations, Adapted, Adapter, AdapterRows, BatchRows, Linear, LowRank, LowRankPiece, Matrix, matmul, put_rows,
};
use ruvllm_kernels::{Arena, PackedMatrix, Pool, WeightType};

/// Two parts of one input, the second of which has no whole tiles.
const PARTS: [usize; 2] = [64, 37];

fn weights(random: &mut Random, cols: usize) -> Linear {
    let mut part = |rows| {
        let bytes = random.weights(WeightType::Q8_0, rows, cols);
        PackedMatrix::pack(WeightType::Q8_0, rows, cols, &bytes, &mut Arena::new()).unwrap()
    };
    Linear::new(PARTS.map(&mut part).into(), None).unwrap()
}

/// One piece for both parts if it is shared, or else one for each.
fn pieces(random: &mut Random, cols: usize, ranks: [usize; 2], is_shared: bool) -> Vec<LowRankPiece> {
    let mut piece = |rank: usize, parts: &[usize]| LowRankPiece {
        a: random.floats(rank * cols),
        rank,
        // Numbers that half floats cannot hold as they are.
        scale: 1e-7,
        outputs: parts
            .iter()
            .map(|part| (*part, random.floats(PARTS[*part] * rank).iter().map(|b| b * 1e6).collect()))
            .collect(),
    };
    if is_shared { vec![piece(ranks[0], &[0, 1])] } else { vec![piece(ranks[0], &[0]), piece(ranks[1], &[1])] }
}

/// The products of some rows: without adapters where there are no groups.
fn products(pool: &mut Pool, weights: &Linear, x: &[Vec<f32>], groups: &[(Arc<Adapter>, Vec<usize>)]) -> Vec<Vec<f32>> {
    let input = matrix(pool, x);
    let mut activations = Activations::new(pool, x.len(), [weights]);
    activations.reserve_floats(pool);
    let mut rows = AdapterRows::new(pool);
    rows.set(pool, x.len(), groups.iter().cloned());
    let mut out = Matrix::new(pool, x.len(), weights.rows());
    let batch = BatchRows::from(x.len());
    let batch = if groups.is_empty() { batch } else { batch.with_adapters() };
    pool.run(|worker| {
        put_rows(worker, &input, batch, &activations);
        worker.barrier();
        matmul(worker, Adapted::new(weights, Some(&rows), 1), &activations, batch, &out);
    });
    (0..x.len()).map(|t| out.row_mut(t).to_vec()).collect()
}

#[test]
fn adapters_add_the_product_of_their_matrices_to_their_rows() {
    let mut random = Random(7);
    for (set, mut pool) in pools() {
        let cols = 32 * (1 + random.below(4));
        let (weights, tokens) = (weights(&mut random, cols), 1 + random.below(40));
        let x: Vec<Vec<f32>> = (0..tokens).map(|_| random.floats(cols)).collect();
        let ranks = [1 + random.below(20), 1 + random.below(9)];
        let all = [false, true].map(|is_shared| pieces(&mut random, cols, ranks, is_shared));
        let groups: Vec<(Arc<Adapter>, Vec<usize>)> = all
            .iter()
            .enumerate()
            .map(|(number, pieces)| {
                let adapter = Adapter::new(vec![None, Some(LowRank::new(cols, &PARTS, pieces))]);
                // The third of three has none.
                (Arc::new(adapter), (0..tokens).filter(|row| row % 3 == number).collect())
            })
            .collect();
        let plain = products(&mut pool, &weights, &x, &[]);
        let got = products(&mut pool, &weights, &x, &groups);
        for (t, x) in x.iter().enumerate() {
            let Some(pieces) = all.get(t % 3) else {
                assert!(got[t] == plain[t], "{}: a row without an adapter changed", set.name());
                continue;
            };
            let mut want: Vec<f64> = plain[t].iter().map(|y| f64::from(*y)).collect();
            for LowRankPiece { a, rank, scale, outputs } in pieces {
                let dot = |a: &[f32]| a.iter().zip(x).map(|(a, x)| f64::from(*a) * f64::from(*x)).sum::<f64>();
                let h: Vec<f64> = a.chunks(cols).map(dot).collect();
                for (part, b) in outputs {
                    let first = PARTS[..*part].iter().sum::<usize>();
                    for (row, b) in b.chunks(*rank).enumerate() {
                        let sum: f64 = b.iter().zip(&h).map(|(b, h)| f64::from(*b) * h).sum();
                        want[first + row] += f64::from(*scale) * sum;
                    }
                }
            }
            for (got, want) in got[t].iter().zip(&want) {
                // Half floats have 11 bits.
                assert!((f64::from(*got) - want).abs() < 2e-3, "{}: {got} for {want}", set.name());
            }
        }
    }
}

#[test]
fn a_row_with_an_adapter_has_the_same_bits_in_any_company() {
    let mut random = Random(8);
    let cols = 96;
    let weights = weights(&mut random, cols);
    let pieces = pieces(&mut random, cols, [8, 3], false);
    let adapter = Arc::new(Adapter::new(vec![None, Some(LowRank::new(cols, &PARTS, &pieces))]));
    let x: Vec<Vec<f32>> = (0..50).map(|_| random.floats(cols)).collect();
    for (set, mut pool) in pools() {
        let together = products(&mut pool, &weights, &x, &[(Arc::clone(&adapter), (0..50).collect())]);
        for (t, x) in x.iter().enumerate().step_by(7) {
            let alone = products(&mut pool, &weights, std::slice::from_ref(x), &[(Arc::clone(&adapter), vec![0])]);
            assert!(alone[0] == together[t], "row {t} on {}", set.name());
        }
    }
}

#[test]
fn bytes_are_known_before_anything_is_packed() {
    let mut random = Random(9);
    for is_shared in [false, true] {
        let pieces = pieces(&mut random, 70, [5, 3], is_shared);
        let (ranks, parts) = if is_shared { (5, [(64, 5), (37, 5)]) } else { (8, [(64, 5), (37, 3)]) };
        assert_eq!(LowRank::new(70, &PARTS, &pieces).bytes(), LowRank::bytes_for(70, ranks, &parts));
    }
    // Weights that nothing was given for stay as they are.
    let weights = linear(WeightType::F32, 16, 32, &random.weights(WeightType::F32, 16, 32));
    let mut pool = Pool::new(1, ruvllm_kernels::KernelSet::best());
    let x = [random.floats(32)];
    let none = Arc::new(Adapter::new(vec![None, None]));
    assert!(products(&mut pool, &weights, &x, &[(none, vec![0])]) == products(&mut pool, &weights, &x, &[]));
}
