//! A mixture of experts: each row goes through a few of many feed-forward blocks, chosen by a router.
//!
//! Rows are copied to one place per choice, ordered by expert, so that each expert's weights meet all of its rows at once;
//! the units of all experts are one queue of work. A row's result does not depend on which other rows chose its experts.

use super::matmul::{Group, gated_groups, matmul_groups};
use super::matrix::Span;
use super::{Activation, Activations, BatchRows, Linear, Matrix, matmul, own_rows};
use crate::threads::{Access, Pool, Shared, Worker};

/// How rows choose experts.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// Experts of a row.
    pub active: usize,
    pub scoring: Scoring,
    /// Whether the weights of a row's experts are divided by their sum.
    pub renormalize: bool,
    /// What weights are multiplied by in the end.
    pub scale: f32,
    /// Added to the scores of experts for the choice, but not to their weights.
    pub choice_bias: Option<Vec<f32>>,
    /// What the weight of each expert is multiplied by.
    pub expert_scales: Option<Vec<f32>>,
}

/// What the router's results become before the highest are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    Softmax,
    Sigmoid,
}

/// The weights of a block of experts.
#[derive(Debug)]
pub struct Experts {
    /// `[experts, hidden]`
    pub router: Linear,
    /// Of each expert, `[2 width, hidden]`.
    pub gate_up: Vec<Linear>,
    /// Of each expert, `[hidden, width]`.
    pub down: Vec<Linear>,
    pub activation: Activation,
    pub routing: Routing,
}

/// What a block of experts computes on the way.
#[derive(Debug)]
pub struct ExpertBuffers {
    /// `[rows, experts]`
    scores: Matrix,
    /// `[rows, active]`
    chosen: Shared<i32>,
    weights: Shared<f32>,
    /// A row for each choice. `[places, hidden]`
    gathered: Activations,
    /// `[places, width]`
    gated: Activations,
    /// `[places, hidden]`
    results: Matrix,
}

impl ExpertBuffers {
    /// For `rows` rows, normalized with `epsilon`, through any of `blocks`, which have one shape.
    pub fn new<'a>(pool: &Pool, rows: usize, epsilon: f32, blocks: impl Iterator<Item = &'a Experts> + Clone) -> Self {
        let first = blocks.clone().next().expect("a block of experts");
        let (experts, active) = (first.router.rows(), first.routing.active);
        let (aligned, _) = alignment(pool.kernels().wide);
        let places = rows * active + experts.min(rows * active) * (aligned - 1);
        let gate_up = blocks.clone().flat_map(|block| &block.gate_up);
        Self {
            scores: Matrix::new(pool, rows, experts),
            chosen: Shared::zeroed(pool, rows * active),
            weights: Shared::zeroed(pool, rows * active),
            gathered: Activations::new(pool, places, gate_up).normalized(pool, epsilon),
            gated: Activations::new(pool, places, blocks.flat_map(|block| &block.down)),
            results: Matrix::new(pool, places, first.down[0].rows()),
        }
    }
}

impl Experts {
    /// `x[t] +=` the weighted results of the experts of `normed[t]`, and `x` as the input of a layer with norm weights
    /// `next_norm`, for the first `rows` rows `t`.
    #[allow(clippy::too_many_arguments)]
    pub fn run(
        &self,
        worker: &mut Worker<'_>,
        normed: &Activations,
        rows: impl Into<BatchRows>,
        buffers: &ExpertBuffers,
        x: &Matrix,
        next_norm: &[f32],
        out: &Activations,
    ) {
        let rows = rows.into();
        let places = self.compute(worker, normed, normed, rows.count(), buffers);
        worker.barrier();
        self.combine(worker, rows, &places, buffers, x, next_norm, out);
    }

    /// `out[t]` = the weighted results of the experts of `normed[t]`, which `routed[t]` chooses, for the first `rows` rows `t`.
    pub fn run_apart(
        &self,
        worker: &mut Worker<'_>,
        routed: &Activations,
        normed: &Activations,
        rows: usize,
        buffers: &ExpertBuffers,
        out: &Matrix,
    ) {
        let places = self.compute(worker, routed, normed, rows, buffers);
        worker.barrier();
        for row in own_rows(worker, rows) {
            let part = Span { access: Access::WriteRows, row, cols: 0..out.cols };
            // SAFETY: the row is this worker's.
            let out = unsafe { out.own_span(worker, &part) };
            out.fill(0.0);
            self.add_results(worker, row, &places, buffers, out);
        }
    }

    /// Computes the results of all choices, which are complete after the next barrier. Returns where they are.
    fn compute(
        &self,
        worker: &mut Worker<'_>,
        routed: &Activations,
        normed: &Activations,
        rows: usize,
        buffers: &ExpertBuffers,
    ) -> Places {
        matmul(worker, &self.router, routed, rows, &buffers.scores);
        worker.barrier();
        self.choose(worker, rows, buffers);
        worker.barrier();
        let places = Places::new(worker, &self.routing, self.gate_up.len(), rows, buffers);
        buffers.gathered.gather(worker, normed, &places.sources);
        worker.barrier();
        let rows = places.sources.len().into();
        gated_groups(worker, &places.groups(&self.gate_up), rows, self.activation, &buffers.gathered, &buffers.gated);
        worker.barrier();
        matmul_groups(worker, &places.groups(&self.down), &buffers.gated, &buffers.results);
        places
    }

    /// Chooses the experts of this worker's rows, the best first.
    fn choose(&self, worker: &Worker<'_>, rows: usize, buffers: &ExpertBuffers) {
        let Routing { active, scoring, renormalize, scale, .. } = self.routing;
        let mut scores = vec![0.0; self.router.rows()];
        let mut order: Vec<usize> = Vec::with_capacity(scores.len());
        for row in own_rows(worker, rows) {
            scores.copy_from_slice(buffers.scores.read_row(worker, row));
            score(scoring, &mut scores);
            let preference =
                |expert: usize| scores[expert] + self.routing.choice_bias.as_ref().map_or(0.0, |bias| bias[expert]);
            order.clear();
            order.extend(0..scores.len());
            let by_preference = |a: &usize, b: &usize| preference(*b).total_cmp(&preference(*a)).then(a.cmp(b));
            order.select_nth_unstable_by(active - 1, by_preference);
            order[..active].sort_unstable_by(by_preference);
            let total: f32 = order[..active].iter().map(|expert| scores[*expert]).sum();
            let factor = if renormalize { scale / total } else { scale };
            let chosen = buffers.chosen.write(worker, Access::WriteRows);
            let weights = buffers.weights.write(worker, Access::WriteRows);
            for (i, expert) in order[..active].iter().enumerate() {
                // SAFETY: there is room for `active` choices of every row, and the row is this worker's.
                unsafe {
                    chosen.add(row * active + i).write(*expert as i32);
                    let scale = self.routing.expert_scales.as_ref().map_or(1.0, |scales| scales[*expert]);
                    weights.add(row * active + i).write(scores[*expert] * factor * scale);
                }
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn combine(
        &self,
        worker: &Worker<'_>,
        rows: BatchRows,
        places: &Places,
        buffers: &ExpertBuffers,
        x: &Matrix,
        next_norm: &[f32],
        out: &Activations,
    ) {
        let mut scratch = worker.scratch();
        scratch.sums.resize(x.cols);
        for row in own_rows(worker, rows.count()) {
            let part = Span { access: Access::WriteRows, row, cols: 0..x.cols };
            // SAFETY: the row is this worker's.
            let x = unsafe { x.own_span(worker, &part) };
            self.add_results(worker, row, places, buffers, x);
            // SAFETY: as above.
            unsafe { out.put_normalized(worker, rows, &part, x, next_norm, &mut scratch.sums) };
        }
    }

    /// `x +=` the weighted results of a row's experts.
    fn add_results(&self, worker: &Worker<'_>, row: usize, places: &Places, buffers: &ExpertBuffers, x: &mut [f32]) {
        let choices = row * self.routing.active..(row + 1) * self.routing.active;
        let weights = &buffers.weights.read(worker)[choices.clone()];
        for (place, weight) in places.of_choices[choices].iter().zip(weights) {
            let result = buffers.results.read_row(worker, *place);
            x.iter_mut().zip(result).for_each(|(x, result)| *x += weight * result);
        }
    }
}

fn score(scoring: Scoring, scores: &mut [f32]) {
    match scoring {
        Scoring::Softmax => {
            let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
            let total: f32 = scores.iter().sum();
            scores.iter_mut().for_each(|score| *score /= total);
        }
        Scoring::Sigmoid => scores.iter_mut().for_each(|score| *score = 1.0 / (1.0 + (-*score).exp())),
    }
}

/// At a multiple of which place the rows of an expert begin if they are many, and how many that are: the kernels for many
/// tokens take whole blocks.
fn alignment(wide: Option<crate::kernels::Wide>) -> (usize, usize) {
    wide.map_or((1, usize::MAX), |wide| (wide.tokens, wide.rows_min))
}

/// Where the copies of rows stand: those of an expert beside each other, experts in their order. Every worker finds the same.
struct Places {
    /// First and last place of each expert.
    of_experts: Vec<(usize, usize)>,
    /// The place of each choice. `[rows, active]`
    of_choices: Vec<usize>,
    /// Which row is copied to each place; any to those that are left free.
    sources: Vec<usize>,
}

impl Places {
    fn new(worker: &Worker<'_>, routing: &Routing, experts: usize, rows: usize, buffers: &ExpertBuffers) -> Self {
        let chosen = &buffers.chosen.read(worker)[..rows * routing.active];
        let (aligned, many) = alignment(worker.kernels().wide);
        let mut counts = vec![0; experts];
        chosen.iter().for_each(|expert| counts[*expert as usize] += 1);
        let mut end = 0usize;
        let mut of_experts: Vec<(usize, usize)> = Vec::with_capacity(experts);
        for count in counts {
            let start = if count >= many { end.next_multiple_of(aligned) } else { end };
            of_experts.push((start, start));
            end = start + count;
        }
        let mut sources = vec![0; end];
        let mut of_choices = Vec::with_capacity(chosen.len());
        for (choice, expert) in chosen.iter().enumerate() {
            let (_, place) = &mut of_experts[*expert as usize];
            sources[*place] = choice / routing.active;
            of_choices.push(*place);
            *place += 1;
        }
        Self { of_experts, of_choices, sources }
    }

    /// The rows of each expert that was chosen, with its weights.
    fn groups<'a>(&self, weights: &'a [Linear]) -> Vec<Group<'a>> {
        let of_expert = |(weights, (start, end)): (&'a Linear, &(usize, usize))| Group::exact(weights, *start..*end);
        weights.iter().zip(&self.of_experts).map(of_expert).filter(|group| !group.is_empty()).collect()
    }
}
