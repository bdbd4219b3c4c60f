//! A decoder-only model: embedding, layers of blocks, norm, output matrix.

use std::fs::File;
use std::sync::Arc;

use ruvllm_kernels::ops::{
    Activations, BatchRows, ExpertBuffers, HostPages, HostStates, Linear, Matrix, RopeTable, RowOperation,
    SplitResults, embed_rows, matmul, normalize, normalize_by, normalize_rows, normalize_rows_by, softcap,
};
use ruvllm_kernels::{PackedMatrix, Pool, Worker};
use ruvllm_runner::{CheckedBatch, TokenId};

use crate::adapters::AdapterTargets;
use crate::architectures::read_config;
use crate::blocks::{FeedForwardBlock, LayerInputBlock, LayerInputs, MixerBlock, linear};
use crate::config::{AttentionConfig, Config, KvSource, LayerConfig, Mixer};
use crate::error::LoadError;
use crate::formats::gguf::Gguf;
use crate::hugging_face::is_interleaved;
use crate::load::Tensors;
use crate::rope::RopeConfig;
use crate::run_state::{RecurrentBuffers, RowLimits, RunState, Widths, inputs_of};

/// Immutable weights of a model, ready to run.
#[derive(Debug)]
pub struct Model {
    config: Config,
    /// Maximum tokens of a sequence.
    context: usize,
    embedding: Embedding,
    layer_inputs: Option<LayerInputs>,
    layers: Vec<Layer>,
    /// Multiplied by the scale of logits.
    output_norm: Vec<f32>,
    /// `[vocabulary, hidden]`
    output: Linear,
}

#[derive(Debug)]
struct Layer {
    mixer: MixerBlock,
    feed_forward: FeedForwardBlock,
    input: Option<LayerInputBlock>,
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
        Self::load_with_experts_in(None, gguf, context, progress)
    }

    /// The same with the weights of experts in a file, of which the system keeps in memory what is used. Nobody else may have
    /// the file open.
    pub fn load_with_experts_in(
        expert_file: Option<File>,
        gguf: &Gguf,
        context: usize,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, LoadError> {
        let config = read_config(gguf)?;
        if context > config.context {
            return Err(LoadError::Context { asked: context, model: config.context });
        }
        let drafting = config.layers.len()..config.layers.len() + config.drafting_layers;
        let mut tensors = Tensors::new(gguf, drafting, expert_file, progress);
        let layers = load_layers(&mut tensors, &config, context)?;
        let layer_inputs = config.layer_input_width.map(|width| LayerInputs::load(&mut tensors, &config, width));
        let layer_inputs = layer_inputs.transpose()?;
        // Some files call the norm behind all layers by the embedding, whose matrix is that of the output.
        let norms = ["output_norm.weight", "token_embd_norm.weight"];
        let norm = norms.into_iter().find(|name| tensors.has(name));
        let norm = norm.ok_or_else(|| LoadError::MissingTensor(norms.join("' or '")))?;
        let mut output_norm = tensors.floats(norm, config.hidden)?;
        output_norm.iter_mut().for_each(|weight| *weight *= config.logit_scale);
        // Without an output matrix of its own, a model uses its embedding.
        let mut embedding = Embedding::Tied;
        let mut output = tensors.matrix("token_embd.weight", config.vocabulary, config.hidden)?;
        if tensors.has("output.weight") {
            let own = tensors.matrix("output.weight", config.vocabulary, config.hidden)?;
            embedding = Embedding::Own(std::mem::replace(&mut output, own));
        }
        let output = linear(config.layers.len(), vec![output], None)?;
        tensors.finish()?;
        Ok(Self { config, context, embedding, layer_inputs, layers, output_norm, output })
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the matrices that adapters may change.
    pub fn adapter_targets(&self) -> AdapterTargets {
        let Config { architecture, layers, .. } = &self.config;
        let is_interleaved = is_interleaved(architecture);
        let targets = self
            .layers
            .iter()
            .flat_map(|layer| layer.mixer.targets(is_interleaved).into_iter().chain(layer.feed_forward.targets()));
        let linears = self.layers.iter().flat_map(|layer| {
            let [input, output] = layer.mixer.weights().map(Some);
            let dense = layer.feed_forward.dense_weights();
            [input, output, dense.map(|dense| dense[0]), dense.map(|dense| dense[1])]
        });
        let linears = linears.map(|linear| linear.map(|linear| (linear.cols(), linear.part_rows()))).collect();
        let is_kept = |layer: &LayerConfig| {
            !matches!(&layer.mixer, Mixer::Attention(AttentionConfig { kv_source: KvSource::Layer(_), .. }))
        };
        let last_kept = layers.iter().rposition(is_kept).unwrap_or(0);
        AdapterTargets::new(architecture, layers.len(), last_kept, targets.collect(), linears)
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
        let inputs = self.layer_inputs.as_ref().map_or(0, LayerInputs::bytes);
        layers.chain([&self.output]).map(Linear::bytes).sum::<usize>() + embedding + inputs
    }

    /// Returns the bytes of the weights of experts among them.
    pub fn expert_bytes(&self) -> usize {
        let experts = self.layers.iter().filter_map(|layer| layer.feed_forward.experts());
        experts.flat_map(|experts| experts.gate_up.iter().chain(&experts.down)).map(Linear::bytes).sum()
    }

    /// Whether rows can be multiplied in bf16 by the kernels of `pool`.
    pub fn has_fast_rows(&self, pool: &Pool) -> bool {
        let inputs = self.layer_inputs.iter().map(LayerInputs::projection);
        pool.has_bf16() && self.layers.iter().flat_map(Layer::weights).chain(inputs).all(Linear::can_take_bf16)
    }

    /// Returns how many gates of a row a worker activates at once, if any layer has gates that kernels from outside can do.
    pub fn gated_cols(&self, workers: usize) -> Option<usize> {
        self.layers.iter().find_map(|layer| layer.feed_forward.gated_cols(workers))
    }

    /// Writes the vector of a token to `out`.
    fn embed(&self, token: TokenId, out: &mut [f32]) {
        match &self.embedding {
            Embedding::Tied => self.output.row(token as usize, out),
            Embedding::Own(rows) => rows.row(token as usize, out),
        }
        // The residual stream is kept divided by the scale of what is added to it, which then need not be scaled.
        let scale = self.config.embedding_scale / self.config.residual_scale;
        if scale != 1.0 {
            out.iter_mut().for_each(|x| *x *= scale);
        }
    }

    /// Returns the epsilon of norms of the residual stream as it is kept.
    fn stream_epsilon(&self) -> f32 {
        self.config.norm_epsilon / self.config.residual_scale.powi(2)
    }

    /// Runs the rows of `batch`, appends their keys and values to `pages`, and leaves the logits of its logit rows in
    /// `state`. Panics if the batch is larger than `state`, or a token or position is out of range.
    pub fn forward(&self, pool: &mut Pool, state: &mut RunState, pages: &HostPages, batch: CheckedBatch<'_>) {
        let rows = BatchRows::of(&batch);
        assert!(rows.count() <= state.rows_max() && batch.logit_rows().len() <= state.logit_rows_max);
        let (tokens, shared) = (batch.tokens(), &*state);
        pool.run(|worker| {
            let state = shared;
            embed_rows(worker, rows.count(), &state.x, |row, out| self.embed(tokens[row], out));
            worker.barrier();
            if let Some(inputs) = &self.layer_inputs {
                inputs.embed(worker, state, tokens);
                inputs.run(worker, state, rows);
            }
            let first_norm = self.layers[0].mixer.norm();
            match state.row_kernels_for(RowOperation::RmsNorm) {
                None => normalize(worker, &state.x, rows, first_norm, &state.normed),
                Some(kernels) => normalize_by(worker, kernels, &state.x, rows, first_norm, &state.normed),
            }
            worker.barrier();
            for (i, layer) in self.layers.iter().enumerate() {
                // A layer leaves its output normalized for the next.
                let next_norm = self.layers.get(i + 1).map_or(&self.output_norm[..], |next| next.mixer.norm());
                layer.mixer.run(worker, state, pages, batch, &layer.feed_forward.norm);
                layer.feed_forward.run(worker, state, rows, next_norm);
                if let Some(input) = &layer.input {
                    input.run(worker, state, rows, next_norm);
                }
            }
            self.logits(worker, state, &batch);
        });
        if let Some(recurrent) = &mut state.recurrent {
            recurrent.states.advance(&batch);
        }
    }

    fn logits(&self, worker: &mut Worker<'_>, state: &RunState, batch: &CheckedBatch<'_>) {
        let logit_rows = batch.logit_rows();
        if !logit_rows.is_empty() {
            // Always exact, so from the stream itself.
            let (norm, gathered) = (&self.output_norm, &state.gathered);
            match state.row_kernels_for(RowOperation::RmsNorm) {
                None => normalize_rows(worker, &state.x, logit_rows, norm, gathered),
                Some(kernels) => normalize_rows_by(worker, kernels, &state.x, logit_rows, norm, gathered),
            }
            worker.barrier();
            matmul(worker, &self.output, &state.gathered, logit_rows.len(), &state.logits);
        }
        if let Some(cap) = self.config.logit_softcap {
            worker.barrier();
            softcap(worker, cap, logit_rows.len(), &state.logits);
        }
    }

    /// Writes the state of a row behind all layers in the last forward pass, normalized as the output matrix is given it.
    pub fn hidden_state(&self, state: &mut RunState, row: usize, out: &mut [f32]) {
        let x = &*state.x.row_mut(row);
        let scale = 1.0 / (mean_square(x) + self.stream_epsilon()).sqrt();
        for ((out, x), norm) in out.iter_mut().zip(x).zip(&self.output_norm) {
            *out = x * scale * norm;
        }
    }

    /// Allocates the buffers of forward passes of such rows.
    pub fn run_state(&self, pool: &Pool, rows: RowLimits) -> RunState {
        let RowLimits { all: rows, logits: logit_rows, has_fast: has_fast_rows } = rows;
        let (hidden, vocabulary, epsilon) = (self.config.hidden, self.config.vocabulary, self.stream_epsilon());
        let kv_shape = self.config.kv_shape();
        let attentions = || self.layers.iter().filter_map(|layer| layer.mixer.attention());
        let recurrent = || self.layers.iter().filter(|layer| layer.mixer.attention().is_none());
        let recurrent = recurrent().next().is_some().then(|| RecurrentBuffers {
            input: Matrix::new(pool, rows, self.config.recurrent_cols().0),
            output: inputs_of(pool, rows, has_fast_rows, recurrent().map(|layer| layer.mixer.weights()[1])),
            states: HostStates::new(pool, self.config.state_shape(), 0),
        });
        let normed = self.layers.iter().flat_map(Layer::takes_normed);
        let gated = self.layers.iter().filter_map(|layer| layer.feed_forward.takes_gated());
        let inputs: Vec<&LayerInputBlock> = self.layers.iter().filter_map(|layer| layer.input.as_ref()).collect();
        let experts = self.layers.iter().filter_map(|layer| layer.feed_forward.experts());
        let routers: Vec<&Linear> = self.layers.iter().filter_map(|layer| layer.feed_forward.router_apart()).collect();
        let has_routers = !routers.is_empty();
        let has_experts = experts.clone().next().is_some();
        let keeps_results = self.config.layers.iter().any(|layer| layer.keeps_result());
        let has_shared = self.layers.iter().any(|layer| layer.feed_forward.has_shared_expert());
        let normed = Activations::new(pool, rows, normed).normalized(pool, epsilon);
        RunState {
            logit_rows_max: logit_rows,
            rows_max: rows,
            x: Matrix::new(pool, rows, hidden),
            normed: if has_fast_rows { normed.in_bf16(pool, has_experts) } else { normed },
            qkv: Widths::<Matrix>::new(pool, rows, attentions().map(|attention| attention.weights()[0].rows())),
            split_results: SplitResults::new(pool, attentions().map(|one| one.kinds(kv_shape)), self.context),
            attended: Widths::<Activations>::new(
                pool,
                rows,
                has_fast_rows,
                attentions().map(|attention| attention.weights()[1]),
            ),
            recurrent,
            gated: Widths::<Activations>::new(pool, rows, has_fast_rows, gated),
            experts: has_experts.then(|| ExpertBuffers::new(pool, rows, epsilon, experts)),
            routed: (!routers.is_empty()).then(|| Activations::new(pool, rows, routers).normalized(pool, epsilon)),
            expert_results: Matrix::new(pool, if has_routers { rows } else { 0 }, hidden),
            layer_inputs: self.layer_inputs.as_ref().map(|all| all.buffers(pool, rows, has_fast_rows, &inputs)),
            projected: Matrix::new(pool, if keeps_results { rows } else { 0 }, hidden),
            shared_gate: Matrix::new(pool, if has_shared { rows } else { 0 }, 1),
            gathered: Activations::new(pool, logit_rows, [&self.output]).normalized(pool, epsilon),
            logits: Matrix::new(pool, logit_rows, vocabulary),
            adapters: None,
            uses_adapters: false,
            row_kernels: None,
        }
    }
}

impl Layer {
    /// Returns the weights whose input is the normalized residual stream.
    fn takes_normed(&self) -> impl Iterator<Item = &Linear> {
        [self.mixer.weights()[0]].into_iter().chain(self.feed_forward.takes_normed())
    }

    fn weights(&self) -> impl Iterator<Item = &Linear> {
        let input = self.input.iter().flat_map(|input| input.weights());
        self.mixer.weights().into_iter().chain(self.feed_forward.weights()).chain(input)
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
    // In pages, layers with a window come behind the others.
    let shape = config.kv_shape();
    let (mut global, mut windowed, mut recurrent) = (0, shape.layers - shape.windowed_layers, 0);
    let mut numbers = Vec::with_capacity(config.layers.len());
    for (index, layer) in config.layers.iter().enumerate() {
        let (rope, count) = match &layer.mixer {
            Mixer::Attention(attention) if attention.window.is_some() && shape.windowed_layers > 0 => {
                (attention.rope.as_ref(), &mut windowed)
            }
            Mixer::Attention(attention) => (attention.rope.as_ref(), &mut global),
            Mixer::ShortConv(_) | Mixer::DeltaNet(_) => (None, &mut recurrent),
        };
        let number = match &layer.mixer {
            Mixer::Attention(AttentionConfig { kv_source: KvSource::Layer(source), .. }) => numbers[*source],
            _ => {
                *count += 1;
                *count - 1
            }
        };
        numbers.push(number);
        // Layers that rotate alike share a table.
        let rope = match rope {
            None => None,
            Some(rope) => Some(match ropes.iter().find(|(config, _)| config == rope) {
                Some((_, table)) => Arc::clone(table),
                None => {
                    let table = Arc::new(rope.table(tensors, context)?);
                    ropes.push((rope.clone(), Arc::clone(&table)));
                    table
                }
            }),
        };
        let scale = if config.has_output_scales { output_scale(tensors, index)? } else { 1.0 };
        // The last block of a layer does it.
        let (scale, input) = match config.layer_input_width {
            Some(width) => (1.0, Some(LayerInputBlock::load(tensors, width, common, index, scale)?)),
            None => (scale, None),
        };
        layers.push(Layer {
            mixer: MixerBlock::load(tensors, &layer.mixer, common, (index, number), rope)?,
            feed_forward: FeedForwardBlock::load(tensors, &layer.feed_forward, common, index, scale)?,
            input,
        });
    }
    Ok(layers)
}

/// What a layer multiplies the residual stream by; 1 where a file does not say it.
fn output_scale(tensors: &mut Tensors<'_>, layer: usize) -> Result<f32, LoadError> {
    let scale = tensors.optional_floats(&format!("blk.{layer}.layer_output_scale.weight"), 1)?;
    Ok(scale.map_or(1.0, |scale| scale[0]))
}

#[cfg(test)]
mod tests;
