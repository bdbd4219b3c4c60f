//! A mixture of experts on every kernel set: against a plain formula, and the same bits whatever else is in the batch.

use crate::support::{Random, linear, matrix, pools};
use ruvllm_kernels::ops::{Activation, Activations, ExpertBuffers, Experts, Linear, Routing, Scoring, normalize_rows};
use ruvllm_kernels::{Arena, PackedMatrix, Pool, WeightType, dequantize_row, reference};

const HIDDEN: usize = 64;
const WIDTH: usize = 96;
const EXPERTS: usize = 5;
const ACTIVE: usize = 2;
const SCALE: f32 = 1.5;
const EPSILON: f32 = 1e-5;

/// The bytes of some experts' weights.
struct Weights {
    kind: WeightType,
    router: Vec<u8>,
    /// Of each expert: gate, up, down.
    experts: Vec<[Vec<u8>; 3]>,
    /// With it, the router is a sigmoid.
    choice_bias: Option<Vec<f32>>,
}

impl Weights {
    fn new(random: &mut Random, kind: WeightType, choice_bias: Option<Vec<f32>>) -> Self {
        let router = random.weights(WeightType::F32, EXPERTS, HIDDEN);
        let shapes = [(WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN, WIDTH)];
        let experts = (0..EXPERTS).map(|_| shapes.map(|(rows, cols)| random.weights(kind, rows, cols))).collect();
        Self { kind, router, experts, choice_bias }
    }

    fn pack(&self) -> Experts {
        let pack = |rows, cols, bytes: &[u8]| PackedMatrix::pack(self.kind, rows, cols, bytes, &mut Arena::new());
        let both = |[gate, up, _]: &[Vec<u8>; 3]| {
            let parts = [gate, up].map(|bytes| pack(WIDTH, HIDDEN, bytes).unwrap());
            Linear::new(parts.into(), None).unwrap()
        };
        Experts {
            router: linear(WeightType::F32, EXPERTS, HIDDEN, &self.router),
            gate_up: self.experts.iter().map(both).collect(),
            down: self.experts.iter().map(|[_, _, down]| linear(self.kind, HIDDEN, WIDTH, down)).collect(),
            activation: Activation::Silu,
            routing: Routing {
                active: ACTIVE,
                scoring: if self.choice_bias.is_some() { Scoring::Sigmoid } else { Scoring::Softmax },
                renormalize: true,
                scale: SCALE,
                choice_bias: self.choice_bias.clone(),
                expert_scales: None,
            },
        }
    }

    /// What becomes of a row, in plain code.
    fn formula(&self, row: &[f32]) -> Vec<f64> {
        let normed = reference::rms_norm(row, &[1.0; HIDDEN], EPSILON);
        let product = |kind: WeightType, bytes: &[u8], input: &[f32]| -> Vec<f32> {
            let mut weights = vec![0.0; input.len()];
            let rows = bytes.chunks_exact(kind.row_bytes(input.len()).unwrap());
            rows.map(|bytes| {
                dequantize_row(kind, bytes, &mut weights);
                weights.iter().zip(input).map(|(weight, x)| f64::from(*weight) * f64::from(*x)).sum::<f64>() as f32
            })
            .collect()
        };
        let scores = product(WeightType::F32, &self.router, &normed).into_iter().map(f64::from);
        let scores: Vec<f64> = match &self.choice_bias {
            Some(_) => scores.map(|score| 1.0 / (1.0 + (-score).exp())).collect(),
            None => scores.map(f64::exp).collect(),
        };
        let total: f64 = if self.choice_bias.is_some() { 1.0 } else { scores.iter().sum() };
        let preference = |expert: usize| {
            scores[expert] / total + self.choice_bias.as_ref().map_or(0.0, |bias| f64::from(bias[expert]))
        };
        let mut order: Vec<usize> = (0..EXPERTS).collect();
        order.sort_by(|a, b| preference(*b).total_cmp(&preference(*a)));
        let chosen = &order[..ACTIVE];
        let sum: f64 = chosen.iter().map(|expert| scores[*expert]).sum();
        let mut x: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
        for expert in chosen {
            let [gate, up, down] = &self.experts[*expert];
            let (gate, up) = (product(self.kind, gate, &normed), product(self.kind, up, &normed));
            let result = product(self.kind, down, &reference::gated(Activation::Silu, &up, &gate));
            let weight = scores[*expert] / sum * f64::from(SCALE);
            x.iter_mut().zip(result).for_each(|(x, result)| *x += weight * f64::from(result));
        }
        x
    }
}

/// The residual stream after the experts.
fn run(pool: &mut Pool, experts: &Experts, rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let (count, ones) = (rows.len(), vec![1.0; HIDDEN]);
    let mut x = matrix(pool, rows);
    let consumers = [&experts.router].into_iter().chain(&experts.gate_up);
    let normed = Activations::new(pool, count, consumers).normalized(pool, EPSILON);
    let buffers = ExpertBuffers::new(pool, count, EPSILON, [experts].into_iter());
    let all: Vec<usize> = (0..count).collect();
    pool.run(|worker| {
        normalize_rows(worker, &x, &all, &ones, &normed);
        worker.barrier();
        experts.run(worker, &normed, count, &buffers, &x, &ones, &normed);
    });
    (0..count).map(|row| x.row_mut(row).to_vec()).collect()
}

#[test]
fn results_equal_the_formula() {
    let mut random = Random(41);
    for choice_bias in [None, Some(vec![0.3, 0.0, -0.4, 0.1, 0.9])] {
        let weights = Weights::new(&mut random, WeightType::F32, choice_bias);
        let rows: Vec<Vec<f32>> = (0..9).map(|_| random.floats(HIDDEN)).collect();
        for (set, mut pool) in pools() {
            let got = run(&mut pool, &weights.pack(), &rows);
            for (row, (got, input)) in got.iter().zip(&rows).enumerate() {
                for (got, want) in got.iter().zip(weights.formula(input)) {
                    let error = (f64::from(*got) - want).abs();
                    assert!(error < want.abs() * 1e-4 + 1e-2, "{} row {row}: {got} for {want}", set.name());
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_company() {
    let mut random = Random(42);
    for kind in [WeightType::Q4_0, WeightType::Mxfp4, WeightType::F16] {
        let weights = Weights::new(&mut random, kind, None);
        // Enough that some experts have many rows, and take another way through the kernels.
        let rows: Vec<Vec<f32>> = (0..150).map(|_| random.floats(HIDDEN)).collect();
        for (set, mut pool) in pools() {
            let experts = weights.pack();
            let together = run(&mut pool, &experts, &rows);
            for row in [0, 1, 31, 77, 149] {
                let alone = run(&mut pool, &experts, &rows[row..=row]);
                assert_eq!(alone[0], together[row], "{kind} on {}, row {row}", set.name());
            }
            assert_eq!(run(&mut pool, &experts, &rows[40..90]), together[40..90], "{kind} on {}", set.name());
        }
    }
}
