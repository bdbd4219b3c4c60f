//! A decoder in f64, as plainly as it can be written: one token after the other, every operation on a tape.

use ruvllm_kernels::dequantize_row;
use ruvllm_kernels::ops::Activation;
use ruvllm_model::formats::gguf::Gguf;
use ruvllm_model::{AttentionConfig, Config, FeedForward, FeedForwardConfig, Mixer, read_config};
use ruvllm_training::{Item, LoraWeights, TrainOptions};

use crate::tape::{Tape, Var};

pub struct Reference<'a> {
    gguf: &'a Gguf,
    config: Config,
    weights: &'a LoraWeights,
    /// Positions that rotations are known for.
    positions: usize,
}

/// The factors of a LoRA on a tape.
struct Factors<'a> {
    weights: &'a LoraWeights,
    vars: Vec<Var>,
}

impl<'a> Reference<'a> {
    pub fn new(gguf: &'a Gguf, weights: &'a LoraWeights, positions: usize) -> Self {
        Self { gguf, config: read_config(gguf).expect("a known architecture"), weights, positions }
    }

    /// Returns the weighted sum of the losses of items, and its gradient by the factors. Each target counts `each`.
    pub fn loss(&self, items: &[Item], each: f64) -> (f64, Vec<f64>) {
        self.differentiated(|tape, factors| {
            let mut losses = Vec::new();
            items.iter().for_each(|item| losses.extend(self.losses(tape, factors, item, item.active_from)));
            let total = tape.sum(&losses);
            tape.scale(total, each)
        })
    }

    /// Returns what a step minimizes, and its gradient by the factors: the mean loss of what is to be predicted, and the
    /// weighted mean over all items of the losses of preferences.
    pub fn objective(&self, items: &[Item], options: &TrainOptions) -> (f64, Vec<f64>) {
        self.differentiated(|tape, factors| {
            let (mut learned, mut preferences) = (Vec::new(), Vec::new());
            for item in items {
                let chosen = self.losses(tape, factors, item, item.active_from);
                if let Some(rejected) = &item.rejected {
                    let of_rejected = self.losses(tape, factors, rejected, rejected.active_from);
                    let lead = difference(tape, &of_rejected, &chosen);
                    let [chosen, of_rejected] =
                        [item, rejected].map(|item| self.losses(tape, factors, item, usize::MAX));
                    let reference = difference(tape, &of_rejected, &chosen);
                    let (reference, beta) = (tape.value(reference), f64::from(options.beta));
                    let grown = |lead: f64| (-beta * (lead - reference)).exp();
                    let slope = |lead: f64| -beta * grown(lead) / (1.0 + grown(lead));
                    preferences.push(tape.apply(lead, |lead| grown(lead).ln_1p(), slope));
                }
                learned.extend(chosen);
            }
            let (count, each) = (learned.len() as f64, f64::from(options.preference_weight) / items.len() as f64);
            let (learned, preferences) = (tape.sum(&learned), tape.sum(&preferences));
            let (learned, preferences) = (tape.scale(learned, 1.0 / count), tape.scale(preferences, each));
            tape.add(learned, preferences)
        })
    }

    /// Returns a value that is computed from the factors, and its gradient by them.
    fn differentiated(&self, total: impl FnOnce(&mut Tape, &Factors<'_>) -> Var) -> (f64, Vec<f64>) {
        let mut tape = Tape::default();
        let numbers: Vec<f64> = self.weights.numbers.iter().copied().map(f64::from).collect();
        let factors = Factors { weights: self.weights, vars: tape.constants(&numbers) };
        let total = total(&mut tape, &factors);
        let gradient = tape.gradient(total);
        (tape.value(total), factors.vars.iter().map(|var| gradient[*var]).collect())
    }

    /// Returns the loss of each target of an item.
    fn losses(&self, tape: &mut Tape, factors: &Factors<'_>, item: &Item, active_from: usize) -> Vec<Var> {
        let rows = item.tokens.len() - 1;
        let logits = self.logits(tape, factors, &item.tokens[..rows], active_from);
        let targets = (0..rows).filter(|row| item.targets[row + 1]);
        targets.map(|row| cross_entropy(tape, &logits[row], item.tokens[row + 1] as usize)).collect()
    }

    /// Returns the logits after each token, without the adapter.
    pub fn plain_logits(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
        let mut tape = Tape::default();
        let factors = Factors { weights: self.weights, vars: Vec::new() };
        let rows = self.logits(&mut tape, &factors, tokens, usize::MAX);
        rows.iter().map(|row| row.iter().map(|logit| tape.value(*logit)).collect()).collect()
    }

    fn floats(&self, name: &str) -> Option<Vec<f64>> {
        let tensor = self.gguf.tensor(name)?;
        let mut floats = vec![0.0; tensor.element_count()];
        dequantize_row(tensor.kind, &tensor.bytes(), &mut floats);
        Some(floats.into_iter().map(f64::from).collect())
    }

    fn of_layer(&self, layer: usize, part: &str) -> Option<Vec<f64>> {
        self.floats(&format!("blk.{layer}.{part}"))
    }

    fn logits(&self, tape: &mut Tape, factors: &Factors<'_>, tokens: &[u32], active_from: usize) -> Vec<Vec<Var>> {
        let hidden = self.config.hidden;
        let embedding = self.floats("token_embd.weight").expect("an embedding");
        let scale = f64::from(self.config.embedding_scale);
        let vector = |token: &u32| -> Vec<f64> {
            embedding[*token as usize * hidden..][..hidden].iter().map(|x| x * scale).collect()
        };
        let mut stream: Vec<Vec<Var>> = tokens.iter().map(|token| tape.constants(&vector(token))).collect();
        for layer in 0..self.config.layers.len() {
            stream = self.layer(tape, factors, layer, stream, active_from);
        }
        let norm = self.floats("output_norm.weight").expect("a norm");
        let output = self.floats("output.weight").unwrap_or(embedding);
        let epsilon = f64::from(self.config.norm_epsilon);
        let mut rows = Vec::new();
        for x in stream {
            let x = rms_norm(tape, &x, &norm, epsilon);
            let mut logits: Vec<Var> = output.chunks_exact(hidden).map(|row| tape.weigh(row, &x)).collect();
            for logit in &mut logits {
                *logit = tape.scale(*logit, f64::from(self.config.logit_scale));
                *logit = capped(tape, *logit, self.config.logit_softcap);
            }
            rows.push(logits);
        }
        rows
    }

    fn layer(
        &self,
        tape: &mut Tape,
        factors: &Factors<'_>,
        layer: usize,
        stream: Vec<Vec<Var>>,
        active_from: usize,
    ) -> Vec<Vec<Var>> {
        let (Mixer::Attention(attention), FeedForward::Dense(dense)) =
            (&self.config.layers[layer].mixer, &self.config.layers[layer].feed_forward)
        else {
            panic!("no such layer is trained")
        };
        let epsilon = f64::from(self.config.norm_epsilon);
        let norm = self.of_layer(layer, "attn_norm.weight").expect("a norm");
        let normed: Vec<Vec<Var>> = stream.iter().map(|x| rms_norm(tape, x, &norm, epsilon)).collect();
        let found = self.attention(tape, factors, layer, attention, &normed, active_from);
        let post = attention.post_norm.then(|| self.of_layer(layer, "post_attention_norm.weight").expect("a norm"));
        let stream = self.added(tape, stream, found, post.as_deref());
        let norm = self.of_layer(layer, "ffn_norm.weight");
        let norm = norm.or_else(|| self.of_layer(layer, "post_attention_norm.weight")).expect("a norm");
        let results: Vec<Vec<Var>> = stream
            .iter()
            .enumerate()
            .map(|(row, x)| {
                let x = rms_norm(tape, x, &norm, epsilon);
                self.feed_forward(tape, factors, layer, dense, &x, row >= active_from)
            })
            .collect();
        let post = dense.post_norm.then(|| self.of_layer(layer, "post_ffw_norm.weight").expect("a norm"));
        self.added(tape, stream, results, post.as_deref())
    }

    /// Adds the results of a block to the stream.
    fn added(
        &self,
        tape: &mut Tape,
        stream: Vec<Vec<Var>>,
        results: Vec<Vec<Var>>,
        post_norm: Option<&[f64]>,
    ) -> Vec<Vec<Var>> {
        let (epsilon, scale) = (f64::from(self.config.norm_epsilon), f64::from(self.config.residual_scale));
        let mut rows = Vec::new();
        for (x, result) in stream.into_iter().zip(results) {
            let result = post_norm.map_or_else(|| result.clone(), |norm| rms_norm(tape, &result, norm, epsilon));
            let scaled: Vec<Var> = result.iter().map(|y| tape.scale(*y, scale)).collect();
            rows.push(x.iter().zip(scaled).map(|(x, y)| tape.add(*x, y)).collect());
        }
        rows
    }

    fn attention(
        &self,
        tape: &mut Tape,
        factors: &Factors<'_>,
        layer: usize,
        of: &AttentionConfig,
        rows: &[Vec<Var>],
        active_from: usize,
    ) -> Vec<Vec<Var>> {
        let (dim, group) = (of.head_dim, of.heads / of.kv_heads);
        let projected: Vec<[Vec<Var>; 3]> = rows
            .iter()
            .enumerate()
            .map(|(position, x)| self.heads(tape, factors, layer, of, x, position, position >= active_from))
            .collect();
        let mut results = Vec::new();
        for (row, [queries, ..]) in projected.iter().enumerate() {
            let first = of.window.map_or(0, |window| (row + 1).saturating_sub(window));
            let mut found = Vec::new();
            for head in 0..of.heads {
                let part = head / group * dim..(head / group + 1) * dim;
                let query = &queries[head * dim..][..dim];
                let mut scores = Vec::new();
                for [_, keys, _] in &projected[first..=row] {
                    let score = tape.dot(query, &keys[part.clone()]);
                    let score = tape.scale(score, f64::from(of.scale));
                    scores.push(capped(tape, score, of.softcap));
                }
                let shares = softmax(tape, &scores);
                for at in part {
                    let values: Vec<Var> = projected[first..=row].iter().map(|[.., values]| values[at]).collect();
                    found.push(tape.dot(&shares, &values));
                }
            }
            let bias = self.of_layer(layer, "attn_output.bias");
            results.push(self.linear(tape, factors, layer, "attn_output", bias, &found, row >= active_from));
        }
        results
    }

    /// Returns the queries, keys and values of a row, ready to meet.
    #[allow(clippy::too_many_arguments)]
    fn heads(
        &self,
        tape: &mut Tape,
        factors: &Factors<'_>,
        layer: usize,
        of: &AttentionConfig,
        x: &[Var],
        position: usize,
        is_active: bool,
    ) -> [Vec<Var>; 3] {
        let (queries, keys) = (of.heads * of.head_dim, of.kv_heads * of.head_dim);
        let [mut q, mut k, v] = if self.of_layer(layer, "attn_qkv.weight").is_some() {
            let all = self.linear(tape, factors, layer, "attn_qkv", None, x, is_active);
            [all[..queries].to_vec(), all[queries..queries + keys].to_vec(), all[queries + keys..].to_vec()]
        } else {
            ["attn_q", "attn_k", "attn_v"].map(|name| {
                let bias = self.of_layer(layer, &format!("{name}.bias"));
                self.linear(tape, factors, layer, name, bias, x, is_active)
            })
        };
        for (rows, norm) in [(&mut q, "attn_q_norm.weight"), (&mut k, "attn_k_norm.weight")] {
            let mut turned = Vec::new();
            for head in rows.chunks_exact(of.head_dim) {
                let mut head = head.to_vec();
                if of.qk_norm {
                    let norm = self.of_layer(layer, norm).expect("a norm");
                    head = rms_norm(tape, &head, &norm, f64::from(self.config.norm_epsilon));
                }
                turned.extend(self.rotated(tape, of, &head, position));
            }
            *rows = turned;
        }
        if let Some(temperature) = of.temperature {
            let by = 1.0 + f64::from(temperature.scale) * ((1 + position / temperature.length) as f64).ln();
            q = q.iter().map(|x| tape.scale(*x, by)).collect();
        }
        [q, k, v]
    }

    /// Rotates a head. What the rotation of a position does to each element, the table of the model says.
    fn rotated(&self, tape: &mut Tape, of: &AttentionConfig, head: &[Var], position: usize) -> Vec<Var> {
        let Some(rope) = &of.rope else { return head.to_vec() };
        let table = rope.table_of(self.gguf, self.config.context, self.positions).expect("rotations");
        let columns: Vec<Vec<f32>> = (0..head.len())
            .map(|index| {
                let mut unit = vec![0f32; head.len()];
                unit[index] = 1.0;
                table.rotate(&mut unit, position);
                unit
            })
            .collect();
        (0..head.len())
            .map(|row| {
                let weights: Vec<f64> = columns.iter().map(|column| f64::from(column[row])).collect();
                tape.weigh(&weights, head)
            })
            .collect()
    }

    fn feed_forward(
        &self,
        tape: &mut Tape,
        factors: &Factors<'_>,
        layer: usize,
        of: &FeedForwardConfig,
        x: &[Var],
        is_active: bool,
    ) -> Vec<Var> {
        let project = |tape: &mut Tape, name| self.linear(tape, factors, layer, name, None, x, is_active);
        let (gate, up) = if self.of_layer(layer, "ffn_gate.weight").is_some() {
            (project(tape, "ffn_gate"), project(tape, "ffn_up"))
        } else {
            let both = project(tape, "ffn_up");
            (both[..of.width].to_vec(), both[of.width..].to_vec())
        };
        let gated: Vec<Var> = gate
            .into_iter()
            .zip(up)
            .map(|(gate, up)| {
                let gate = activated(tape, gate, of.activation);
                tape.mul(gate, up)
            })
            .collect();
        self.linear(tape, factors, layer, "ffn_down", None, &gated, is_active)
    }

    #[allow(clippy::too_many_arguments)]
    fn linear(
        &self,
        tape: &mut Tape,
        factors: &Factors<'_>,
        layer: usize,
        name: &str,
        bias: Option<Vec<f64>>,
        x: &[Var],
        is_active: bool,
    ) -> Vec<Var> {
        let matrix = self.of_layer(layer, &format!("{name}.weight")).expect("a matrix");
        let mut out: Vec<Var> = matrix.chunks_exact(x.len()).map(|row| tape.weigh(row, x)).collect();
        if let Some(bias) = bias {
            out = out.iter().zip(bias).map(|(y, bias)| tape.node(tape.value(*y) + bias, [(*y, 1.0)])).collect();
        }
        let module = factors.weights.modules.iter().find(|module| module.layer == layer && module.tensor == name);
        let Some(module) = module.filter(|_| is_active) else { return out };
        let (rank, scale) = (factors.weights.rank, f64::from(factors.weights.scale));
        let (a, b) = (&factors.vars[module.a.clone()], &factors.vars[module.b.clone()]);
        let low: Vec<Var> = a.chunks_exact(x.len()).map(|row| tape.dot(row, x)).collect();
        out.iter()
            .zip(b.chunks_exact(rank))
            .map(|(y, row)| {
                let more = tape.dot(row, &low);
                let more = tape.scale(more, scale);
                tape.add(*y, more)
            })
            .collect()
    }
}

/// Returns by how much the mean of some values is larger than that of others.
fn difference(tape: &mut Tape, some: &[Var], others: &[Var]) -> Var {
    let [(some, count), (others, other_count)] = [some, others].map(|vars| (tape.sum(vars), vars.len() as f64));
    let (some, others) = (tape.scale(some, 1.0 / count), tape.scale(others, -1.0 / other_count));
    tape.add(some, others)
}

fn rms_norm(tape: &mut Tape, x: &[Var], weight: &[f64], epsilon: f64) -> Vec<Var> {
    let squares = tape.dot(x, x);
    let count = x.len() as f64;
    let inverse = tape.apply(
        squares,
        |sum| (sum / count + epsilon).powf(-0.5),
        |sum| -0.5 / count * (sum / count + epsilon).powf(-1.5),
    );
    let scaled: Vec<Var> = x.iter().map(|x| tape.mul(*x, inverse)).collect();
    scaled.into_iter().zip(weight).map(|(x, weight)| tape.scale(x, *weight)).collect()
}

fn softmax(tape: &mut Tape, scores: &[Var]) -> Vec<Var> {
    let largest = scores.iter().map(|score| tape.value(*score)).fold(f64::NEG_INFINITY, f64::max);
    let grown: Vec<Var> =
        scores.iter().map(|score| tape.apply(*score, |x| (x - largest).exp(), |x| (x - largest).exp())).collect();
    let total = tape.sum(&grown);
    let inverse = tape.apply(total, |x| 1.0 / x, |x| -1.0 / (x * x));
    grown.into_iter().map(|x| tape.mul(x, inverse)).collect()
}

fn cross_entropy(tape: &mut Tape, logits: &[Var], token: usize) -> Var {
    let shares = softmax(tape, logits);
    tape.apply(shares[token], |x| -x.ln(), |x| -1.0 / x)
}

fn capped(tape: &mut Tape, x: Var, cap: Option<f32>) -> Var {
    let Some(cap) = cap.map(f64::from) else { return x };
    tape.apply(x, |x| cap * (x / cap).tanh(), |x| 1.0 - (x / cap).tanh().powi(2))
}

fn activated(tape: &mut Tape, x: Var, activation: Activation) -> Var {
    match activation {
        Activation::Silu => {
            let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
            tape.apply(x, |x| x * sigmoid(x), |x| sigmoid(x) + x * sigmoid(x) * (1.0 - sigmoid(x)))
        }
        Activation::GeluTanh => {
            let inner = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            let slope = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (1.0 + 3.0 * 0.044_715 * x * x);
            tape.apply(
                x,
                |x| 0.5 * x * (1.0 + inner(x).tanh()),
                |x| 0.5 * (1.0 + inner(x).tanh()) + 0.5 * x * (1.0 - inner(x).tanh().powi(2)) * slope(x),
            )
        }
        Activation::SwigluOai => panic!("no such model is trained"),
    }
}
