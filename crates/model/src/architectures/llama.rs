//! Llama and everything of its shape: norm, attention with rotary positions and grouped heads, norm, gated feed-forward.
//! Qwen2 is the same with biases on Q, K and V and another pairing of rotated elements.

use ruvllm_kernels::ops::{
    AttentionShape, Batch, KvBuffer, Linear, Output, RopeStyle, RopeTable, attention, matmul, quantize, rms_norm,
    rope_and_append, swiglu,
};
use ruvllm_kernels::{PackedMatrix, Pool, WeightType, Worker, dequantize_row};

use crate::error::LoadError;
use crate::formats::gguf::Gguf;
use crate::formats::map::FileSlice;
use crate::load::Tensors;
use crate::{Config, RunState};

/// Immutable weights of a model, ready to run.
#[derive(Debug)]
pub struct Llama {
    config: Config,
    /// Tokens per sequence at most.
    context: usize,
    embedding: Embedding,
    layers: Vec<Layer>,
    output_norm: Vec<f32>,
    /// `[vocabulary, hidden]`
    output: Linear,
    rope: RopeTable,
}

#[derive(Debug)]
struct Layer {
    attention_norm: Vec<f32>,
    /// `[(heads + 2 kv_heads) head_dim, hidden]`
    qkv: Linear,
    /// `[hidden, heads head_dim]`
    attention_output: Linear,
    feed_forward_norm: Vec<f32>,
    /// `[2 feed_forward, hidden]`
    gate_up: Linear,
    /// `[hidden, feed_forward]`
    down: Linear,
}

/// Rows are dequantized straight from the file: a step needs only a few of them.
#[derive(Debug)]
struct Embedding {
    kind: WeightType,
    row_bytes: usize,
    rows: FileSlice,
}

impl Embedding {
    fn row(&self, token: u32, out: &mut [f32]) {
        let bytes = &self.rows[token as usize * self.row_bytes..][..self.row_bytes];
        dequantize_row(self.kind, bytes, out);
    }
}

impl Llama {
    /// Repacks the weights of a file, for sequences of up to `context` tokens. Takes about as much memory as the file.
    /// `progress` is told how many bytes of weights are loaded.
    pub fn load(gguf: &Gguf, context: usize, progress: &mut dyn FnMut(u64)) -> Result<Self, LoadError> {
        let architecture: &str = gguf.metadata().required("general.architecture")?;
        let style = match architecture {
            "llama" => RopeStyle::Neighbours,
            "qwen2" => RopeStyle::Halves,
            other => return Err(LoadError::Architecture(other.to_owned())),
        };
        let config = Config::from_gguf(gguf, style)?;
        if context > config.context {
            return Err(LoadError::Context { asked: context, model: config.context });
        }
        let mut tensors = Tensors::new(gguf, progress);
        let embedding = load_embedding(gguf, &mut tensors, &config)?;
        let layers = (0..config.layers).map(|i| load_layer(&mut tensors, &config, i)).collect::<Result<_, _>>()?;
        let output_norm = tensors.floats("output_norm.weight", config.hidden)?;
        // Without an output matrix of its own, a model uses its embedding.
        let name = if tensors.has("output.weight") { "output.weight" } else { "token_embd.weight" };
        let output = tensors.matrix(name, config.vocabulary, config.hidden)?;
        let output = linear(config.layers, vec![output], None)?;
        let rope = rope_table(&mut tensors, &config, context)?;
        tensors.finish()?;
        Ok(Self { config, context, embedding, layers, output_norm, output, rope })
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Tokens per sequence at most.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Memory held by the repacked weights.
    pub fn weight_bytes(&self) -> usize {
        let layers = self.layers.iter().flat_map(|l| [&l.qkv, &l.attention_output, &l.gate_up, &l.down]);
        layers.chain([&self.output]).map(Linear::bytes).sum()
    }

    /// Runs the rows of `batch`, whose tokens are `tokens`, appends their keys and values to `kv`, and leaves the
    /// logits of `logit_rows` in `state`.
    ///
    /// Panics if the batch is larger than `state`, or a token or position is out of range: the engine checks requests.
    pub fn forward(
        &self,
        pool: &mut Pool,
        state: &mut RunState,
        kv: &KvBuffer,
        batch: &Batch<'_>,
        tokens: &[u32],
        logit_rows: &[usize],
    ) {
        assert!(tokens.len() == batch.rows() && tokens.len() <= state.rows_max);
        assert!(logit_rows.len() <= state.logit_rows_max);
        for (row, token) in tokens.iter().enumerate() {
            self.embedding.row(*token, state.x.row_mut(row));
        }
        let state = &*state;
        pool.run(|worker| {
            for (i, layer) in self.layers.iter().enumerate() {
                self.attend(worker, state, kv, batch, i, layer);
                self.feed_forward(worker, state, batch.rows(), layer);
            }
            if !logit_rows.is_empty() {
                rms_norm(worker, &state.x, logit_rows, &self.output_norm, self.config.norm_epsilon, &state.last);
                worker.barrier();
                matmul(worker, &self.output, &state.last, logit_rows.len(), &state.logits, Output::Store);
            }
        });
    }

    fn attend(
        &self,
        worker: &mut Worker<'_>,
        state: &RunState,
        kv: &KvBuffer,
        batch: &Batch<'_>,
        index: usize,
        layer: &Layer,
    ) {
        let rows = batch.rows();
        let config = &self.config;
        let shape = AttentionShape { heads: config.heads, scale: 1.0 / (config.head_dim as f32).sqrt() };
        rms_norm(worker, &state.x, &state.all_rows[..rows], &layer.attention_norm, config.norm_epsilon, &state.normed);
        worker.barrier();
        matmul(worker, &layer.qkv, &state.normed, rows, &state.qkv, Output::Store);
        worker.barrier();
        rope_and_append(worker, &state.qkv, batch, &self.rope, kv, index);
        worker.barrier();
        attention(worker, &state.qkv, batch, kv, index, shape, &state.attended);
        worker.barrier();
        quantize(worker, rows, &state.attended);
        worker.barrier();
        matmul(worker, &layer.attention_output, &state.attended, rows, &state.x, Output::Add);
        worker.barrier();
    }

    fn feed_forward(&self, worker: &mut Worker<'_>, state: &RunState, rows: usize, layer: &Layer) {
        let epsilon = self.config.norm_epsilon;
        rms_norm(worker, &state.x, &state.all_rows[..rows], &layer.feed_forward_norm, epsilon, &state.normed);
        worker.barrier();
        matmul(worker, &layer.gate_up, &state.normed, rows, &state.gate_up, Output::Store);
        worker.barrier();
        swiglu(worker, &state.gate_up, rows, &state.gated);
        worker.barrier();
        matmul(worker, &layer.down, &state.gated, rows, &state.x, Output::Add);
        worker.barrier();
    }
}

fn load_embedding(gguf: &Gguf, tensors: &mut Tensors<'_>, config: &Config) -> Result<Embedding, LoadError> {
    let name = "token_embd.weight";
    let tensor = tensors.take(name, &[config.hidden, config.vocabulary])?;
    let row_bytes = tensor.bytes.len() / config.vocabulary;
    let rows = gguf.file().slice(tensor.range).expect("the reader checked that tensors are inside the file");
    Ok(Embedding { kind: tensor.kind, row_bytes, rows })
}

fn load_layer(tensors: &mut Tensors<'_>, config: &Config, index: usize) -> Result<Layer, LoadError> {
    let name = |part: &str| format!("blk.{index}.{part}");
    let (hidden, queries) = (config.hidden, config.heads * config.head_dim);
    let keys = config.kv_heads * config.head_dim;
    let attention_norm = tensors.floats(&name("attn_norm.weight"), hidden)?;
    let qkv = vec![
        tensors.matrix(&name("attn_q.weight"), queries, hidden)?,
        tensors.matrix(&name("attn_k.weight"), keys, hidden)?,
        tensors.matrix(&name("attn_v.weight"), keys, hidden)?,
    ];
    let bias = if tensors.has(&name("attn_q.bias")) {
        let mut bias = tensors.floats(&name("attn_q.bias"), queries)?;
        bias.extend(tensors.floats(&name("attn_k.bias"), keys)?);
        bias.extend(tensors.floats(&name("attn_v.bias"), keys)?);
        Some(bias)
    } else {
        None
    };
    let attention_output = tensors.matrix(&name("attn_output.weight"), hidden, queries)?;
    let feed_forward_norm = tensors.floats(&name("ffn_norm.weight"), hidden)?;
    let gate_up = vec![
        tensors.matrix(&name("ffn_gate.weight"), config.feed_forward, hidden)?,
        tensors.matrix(&name("ffn_up.weight"), config.feed_forward, hidden)?,
    ];
    let down = tensors.matrix(&name("ffn_down.weight"), hidden, config.feed_forward)?;
    Ok(Layer {
        attention_norm,
        qkv: linear(index, qkv, bias)?,
        attention_output: linear(index, vec![attention_output], None)?,
        feed_forward_norm,
        gate_up: linear(index, gate_up, None)?,
        down: linear(index, vec![down], None)?,
    })
}

fn linear(layer: usize, parts: Vec<PackedMatrix>, bias: Option<Vec<f32>>) -> Result<Linear, LoadError> {
    Linear::new(parts, bias).map_err(|source| LoadError::Linear { layer, source })
}

/// Frequencies of the rotation; Llama 3 files carry a factor for each in `rope_freqs.weight`.
fn rope_table(tensors: &mut Tensors<'_>, config: &Config, context: usize) -> Result<RopeTable, LoadError> {
    let pairs = config.rope_dims / 2;
    let name = "rope_freqs.weight";
    let factors = if tensors.has(name) { tensors.floats(name, pairs)? } else { vec![1.0; pairs] };
    let frequencies: Vec<f64> = factors
        .iter()
        .enumerate()
        .map(|(i, factor)| {
            let frequency = config.rope_base.powf(-2.0 * i as f64 / config.rope_dims as f64);
            frequency / f64::from(*factor) / config.rope_divisor
        })
        .collect();
    Ok(RopeTable::new(context, &frequencies, config.rope_style))
}

#[cfg(test)]
mod tests;
