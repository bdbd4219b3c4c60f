//! A decoder-only model: embedding, layers of blocks, norm, output matrix.

use std::sync::Arc;

use ruvllm_kernels::ops::{
    Activations, HostPages, Linear, Matrix, RopeTable, SplitResults, matmul, matmul_rows, normalize,
};
use ruvllm_kernels::{PackedMatrix, Pool, Worker};
use ruvllm_runner::{CheckedBatch, TokenId};

use crate::architectures::read_config;
use crate::blocks::{AttentionBlock, FeedForwardBlock, linear};
use crate::config::{Config, RopeConfig};
use crate::error::LoadError;
use crate::formats::gguf::Gguf;
use crate::load::Tensors;
use crate::run_state::RunState;

/// Immutable weights of a model, ready to run.
#[derive(Debug)]
pub struct Model {
    config: Config,
    /// Maximum tokens of a sequence.
    context: usize,
    embedding: Embedding,
    layers: Vec<Layer>,
    output_norm: Vec<f32>,
    /// `[vocabulary, hidden]`
    output: Linear,
}

#[derive(Debug)]
struct Layer {
    attention: AttentionBlock,
    feed_forward: FeedForwardBlock,
}

/// Where the vectors of tokens come from. They are in memory: a file that somebody changes or cuts short while it is served
/// must not reach the model, and a mapped one that is cut short ends the process.
#[derive(Debug)]
enum Embedding {
    /// The rows of the output matrix.
    Tied,
    /// `[vocabulary, hidden]`
    Own(PackedMatrix),
}

impl Model {
    /// Repacks the weights of a file, for sequences of up to `context` tokens. Takes about as much memory as the file.
    /// `progress` is told how many bytes of weights are loaded.
    pub fn load(gguf: &Gguf, context: usize, progress: &mut dyn FnMut(u64)) -> Result<Self, LoadError> {
        let config = read_config(gguf)?;
        if context > config.context {
            return Err(LoadError::Context { asked: context, model: config.context });
        }
        let mut tensors = Tensors::new(gguf, progress);
        let layers = load_layers(&mut tensors, &config, context)?;
        let output_norm = tensors.floats("output_norm.weight", config.hidden)?;
        // Without an output matrix of its own, a model uses its embedding.
        let mut embedding = Embedding::Tied;
        let mut output = tensors.matrix("token_embd.weight", config.vocabulary, config.hidden)?;
        if tensors.has("output.weight") {
            let own = tensors.matrix("output.weight", config.vocabulary, config.hidden)?;
            embedding = Embedding::Own(std::mem::replace(&mut output, own));
        }
        let output = linear(config.layers.len(), vec![output], None)?;
        tensors.finish()?;
        Ok(Self { config, context, embedding, layers, output_norm, output })
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the maximum tokens of a sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Returns the memory held by the repacked weights.
    pub fn weight_bytes(&self) -> usize {
        let layers = self.layers.iter().flat_map(Layer::weights);
        let embedding = match &self.embedding {
            Embedding::Tied => 0,
            Embedding::Own(rows) => rows.bytes(),
        };
        layers.chain([&self.output]).map(Linear::bytes).sum::<usize>() + embedding
    }

    /// Writes the vector of a token to `out`.
    fn embed(&self, token: TokenId, out: &mut [f32]) {
        match &self.embedding {
            Embedding::Tied => self.output.row(token as usize, out),
            Embedding::Own(rows) => rows.row(token as usize, out),
        }
    }

    /// Runs the rows of `batch`, appends their keys and values to `pages`, and leaves the logits of its logit rows in
    /// `state`. Panics if the batch is larger than `state`, or a token or position is out of range.
    pub fn forward(&self, pool: &mut Pool, state: &mut RunState, pages: &HostPages, batch: CheckedBatch<'_>) {
        let rows = batch.rows();
        assert!(rows <= state.rows_max() && batch.logit_rows().len() <= state.logit_rows_max);
        for (row, token) in batch.tokens().iter().enumerate() {
            self.embed(*token, state.x.row_mut(row));
        }
        let state = &*state;
        pool.run(|worker| {
            normalize(worker, &state.x, &state.all_rows[..rows], &self.layers[0].attention.norm, &state.normed);
            worker.barrier();
            for (i, layer) in self.layers.iter().enumerate() {
                // A layer leaves its output normalized for the next.
                let next_norm = self.layers.get(i + 1).map_or(&self.output_norm, |next| &next.attention.norm);
                layer.attention.run(worker, state, pages, batch, i, &layer.feed_forward.norm);
                layer.feed_forward.run(worker, state, rows, next_norm);
            }
            self.logits(worker, state, &batch);
        });
    }

    fn logits(&self, worker: &mut Worker<'_>, state: &RunState, batch: &CheckedBatch<'_>) {
        let (rows, logit_rows) = (batch.rows(), batch.logit_rows());
        if logit_rows == &state.all_rows[..rows] {
            matmul(worker, &self.output, &state.normed, rows, &state.logits);
        } else if !logit_rows.is_empty() {
            matmul_rows(worker, &self.output, &state.normed, logit_rows, &state.gathered, &state.logits);
        }
    }

    /// Writes the state of a row behind all layers in the last forward pass, normalized as the output matrix is given it.
    pub fn hidden_state(&self, state: &mut RunState, row: usize, out: &mut [f32]) {
        let x = &*state.x.row_mut(row);
        let scale = 1.0 / (mean_square(x) + self.config.norm_epsilon).sqrt();
        for ((out, x), norm) in out.iter_mut().zip(x).zip(&self.output_norm) {
            *out = x * scale * norm;
        }
    }

    /// Allocates the buffers of forward passes of up to `rows` rows, of which `logit_rows` give logits.
    pub fn run_state(&self, pool: &Pool, rows: usize, logit_rows: usize) -> RunState {
        let Config { hidden, vocabulary, norm_epsilon: epsilon, .. } = self.config;
        let (attention, kv_shape) = (self.config.attention(0), self.config.kv_shape());
        let inputs = |of: fn(&Layer) -> &Linear| Activations::new(pool, rows, self.layers.iter().map(of));
        let normed = self.layers.iter().flat_map(Layer::takes_normed).chain([&self.output]);
        let has_post_norms = self.config.layers.iter().any(|layer| layer.has_post_norm());
        RunState {
            logit_rows_max: logit_rows,
            all_rows: (0..rows).collect(),
            x: Matrix::new(pool, rows, hidden),
            normed: Activations::new(pool, rows, normed).normalized(pool, epsilon),
            qkv: Matrix::new(pool, rows, (attention.heads + 2 * attention.kv_heads) * attention.head_dim),
            split_results: SplitResults::new(pool, kv_shape, self.layers[0].attention.shape(), self.context),
            attended: inputs(|layer| layer.attention.weights()[1]),
            gated: inputs(|layer| layer.feed_forward.weights()[1]),
            projected: Matrix::new(pool, if has_post_norms { rows } else { 0 }, hidden),
            gathered: Activations::new(pool, logit_rows, [&self.output]).normalized(pool, epsilon),
            logits: Matrix::new(pool, logit_rows, vocabulary),
        }
    }
}

impl Layer {
    /// Returns the weights whose input is the normalized residual stream.
    fn takes_normed(&self) -> [&Linear; 2] {
        [self.attention.weights()[0], self.feed_forward.weights()[0]]
    }

    fn weights(&self) -> [&Linear; 4] {
        let [qkv, output] = self.attention.weights();
        let [gate_up, down] = self.feed_forward.weights();
        [qkv, output, gate_up, down]
    }
}

fn mean_square(x: &[f32]) -> f32 {
    // Several sums at a time, which the compiler may not make of one.
    let mut sums = [0f32; 16];
    for part in x.chunks(sums.len()) {
        sums.iter_mut().zip(part).for_each(|(sum, x)| *sum += x * x);
    }
    sums.iter().sum::<f32>() / x.len() as f32
}

fn load_layers(tensors: &mut Tensors<'_>, config: &Config, context: usize) -> Result<Vec<Layer>, LoadError> {
    let mut ropes: Vec<(RopeConfig, Arc<RopeTable>)> = Vec::new();
    let common = (config.hidden, config.norm_epsilon);
    let mut layers = Vec::with_capacity(config.layers.len());
    for (index, layer) in config.layers.iter().enumerate() {
        let attention = config.attention(index);
        // Layers that rotate alike share a table.
        let rope = match ropes.iter().find(|(config, _)| *config == attention.rope) {
            Some((_, table)) => Arc::clone(table),
            None => {
                let table = Arc::new(rope_table(tensors, &attention.rope, context)?);
                ropes.push((attention.rope.clone(), Arc::clone(&table)));
                table
            }
        };
        layers.push(Layer {
            attention: AttentionBlock::load(tensors, attention, common, index, rope)?,
            feed_forward: FeedForwardBlock::load(tensors, &layer.feed_forward, common, index)?,
        });
    }
    Ok(layers)
}

/// Computes the rotation of every position. Llama 3 files carry a factor for each frequency in `rope_freqs.weight`.
fn rope_table(tensors: &mut Tensors<'_>, rope: &RopeConfig, context: usize) -> Result<RopeTable, LoadError> {
    let pairs = rope.dims / 2;
    let name = "rope_freqs.weight";
    let factors = if tensors.has(name) { tensors.floats(name, pairs)? } else { vec![1.0; pairs] };
    let frequency = |(i, factor): (usize, &f32)| {
        rope.base.powf(-2.0 * i as f64 / rope.dims as f64) / f64::from(*factor) / rope.divisor
    };
    let frequencies: Vec<f64> = factors.iter().enumerate().map(frequency).collect();
    Ok(RopeTable::new(context, &frequencies, rope.style))
}

#[cfg(test)]
mod tests;
