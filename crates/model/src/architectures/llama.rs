//! Llama and everything of its shape: norm, attention with rotary positions and grouped heads, norm, gated feed-forward.
//! Qwen2 is the same with biases on Q, K and V and another pairing of rotated elements.

use ruvllm_kernels::ops::{
    Activations, Attention, AttentionShape, Batch, KvMemory, Linear, Matrix, RopeStyle, RopeTable, SharedItems, matmul,
    matmul_residual, matmul_swiglu, normalize,
};
use ruvllm_kernels::{PackedMatrix, Pool, Worker};

use crate::error::LoadError;
use crate::formats::gguf::Gguf;
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

/// Where the vectors of tokens come from. They are in memory: a file that somebody changes or cuts short while it is served
/// must not reach the model, and a mapped one that is cut short ends the process.
#[derive(Debug)]
enum Embedding {
    /// The rows of the output matrix.
    Tied,
    /// `[vocabulary, hidden]`
    Own(PackedMatrix),
}

impl Llama {
    /// The dimensions of a file's model, without its weights.
    pub fn read_config(gguf: &Gguf) -> Result<Config, LoadError> {
        let architecture: &str = gguf.metadata().required("general.architecture")?;
        let style = match architecture {
            "llama" => RopeStyle::Neighbours,
            "qwen2" => RopeStyle::Halves,
            other => return Err(LoadError::Architecture(other.to_owned())),
        };
        Config::from_gguf(gguf, style)
    }

    /// Repacks the weights of a file, for sequences of up to `context` tokens. Takes about as much memory as the file.
    /// `progress` is told how many bytes of weights are loaded.
    pub fn load(gguf: &Gguf, context: usize, progress: &mut dyn FnMut(u64)) -> Result<Self, LoadError> {
        let config = Self::read_config(gguf)?;
        if context > config.context {
            return Err(LoadError::Context { asked: context, model: config.context });
        }
        let mut tensors = Tensors::new(gguf, progress);
        let layers = (0..config.layers).map(|i| load_layer(&mut tensors, &config, i)).collect::<Result<_, _>>()?;
        let output_norm = tensors.floats("output_norm.weight", config.hidden)?;
        // Without an output matrix of its own, a model uses its embedding.
        let mut embedding = Embedding::Tied;
        let mut output = tensors.matrix("token_embd.weight", config.vocabulary, config.hidden)?;
        if tensors.has("output.weight") {
            let own = tensors.matrix("output.weight", config.vocabulary, config.hidden)?;
            embedding = Embedding::Own(std::mem::replace(&mut output, own));
        }
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
        let embedding = match &self.embedding {
            Embedding::Tied => 0,
            Embedding::Own(rows) => rows.bytes(),
        };
        layers.chain([&self.output]).map(Linear::bytes).sum::<usize>() + embedding
    }

    /// Writes the vector of a token to `out`.
    fn embed(&self, token: u32, out: &mut [f32]) {
        match &self.embedding {
            Embedding::Tied => self.output.row(token as usize, out),
            Embedding::Own(rows) => rows.row(token as usize, out),
        }
    }

    /// Runs the rows of `batch`, whose tokens are `tokens`, appends their keys and values to `kv`, and leaves the
    /// logits of `logit_rows` in `state`.
    ///
    /// Panics if the batch is larger than `state`, or a token or position is out of range: the engine checks requests.
    pub fn forward(
        &self,
        pool: &mut Pool,
        state: &mut RunState,
        kv: &KvMemory,
        batch: &Batch<'_>,
        tokens: &[u32],
        logit_rows: &[usize],
    ) {
        assert!(tokens.len() == batch.rows() && tokens.len() <= state.rows_max);
        assert!(logit_rows.len() <= state.logit_rows_max);
        for (row, token) in tokens.iter().enumerate() {
            self.embed(*token, state.x.row_mut(row));
        }
        let state = &*state;
        let rows = batch.rows();
        pool.run(|worker| {
            normalize(worker, &state.x, &state.all_rows[..rows], &self.layers[0].attention_norm, &state.normed);
            worker.barrier();
            for (i, layer) in self.layers.iter().enumerate() {
                // A layer leaves its output normalized for the next.
                let next_norm = self.layers.get(i + 1).map_or(&self.output_norm, |next| &next.attention_norm);
                self.attend(worker, state, kv, batch, i, layer);
                self.feed_forward(worker, state, rows, layer, next_norm);
            }
            self.logits(worker, state, rows, logit_rows);
        });
    }

    fn attend(
        &self,
        worker: &mut Worker<'_>,
        state: &RunState,
        kv: &KvMemory,
        batch: &Batch<'_>,
        index: usize,
        layer: &Layer,
    ) {
        let rows = batch.rows();
        matmul(worker, &layer.qkv, &state.normed, rows, &state.qkv);
        worker.barrier();
        let attention = Attention {
            qkv: &state.qkv,
            batch,
            rope: &self.rope,
            kv,
            layer: index,
            shape: self.attention_shape(),
            shared: &state.shared_items,
            out: &state.attended,
        };
        attention.run(worker);
        worker.barrier();
        let (output, norm) = (&layer.attention_output, &layer.feed_forward_norm);
        matmul_residual(worker, output, &state.attended, rows, &state.x, norm, &state.normed);
        worker.barrier();
    }

    fn feed_forward(&self, worker: &mut Worker<'_>, state: &RunState, rows: usize, layer: &Layer, next_norm: &[f32]) {
        matmul_swiglu(worker, &layer.gate_up, &state.normed, rows, &state.gated);
        worker.barrier();
        matmul_residual(worker, &layer.down, &state.gated, rows, &state.x, next_norm, &state.normed);
        worker.barrier();
    }

    fn logits(&self, worker: &mut Worker<'_>, state: &RunState, rows: usize, logit_rows: &[usize]) {
        if logit_rows == &state.all_rows[..rows] {
            matmul(worker, &self.output, &state.normed, rows, &state.logits);
        } else if !logit_rows.is_empty() {
            normalize(worker, &state.x, logit_rows, &self.output_norm, &state.last);
            worker.barrier();
            matmul(worker, &self.output, &state.last, logit_rows.len(), &state.logits);
        }
    }

    /// The state of a row behind all layers in the last forward pass, normalized as the output matrix is given it.
    pub fn final_state(&self, state: &mut RunState, row: usize, out: &mut [f32]) {
        let x = &*state.x.row_mut(row);
        let scale = 1.0 / (mean_square(x) + self.config.norm_epsilon).sqrt();
        for ((out, x), norm) in out.iter_mut().zip(x).zip(&self.output_norm) {
            *out = x * scale * norm;
        }
    }

    fn attention_shape(&self) -> AttentionShape {
        AttentionShape { heads: self.config.heads, scale: 1.0 / (self.config.head_dim as f32).sqrt() }
    }

    /// The buffers of forward passes of up to `rows` rows, of which `logit_rows` give logits.
    pub fn run_state(&self, pool: &Pool, kv: &KvMemory, rows: usize, logit_rows: usize) -> RunState {
        let config = &self.config;
        let epsilon = config.norm_epsilon;
        let inputs = |of: fn(&Layer) -> &Linear| Activations::new(pool, rows, self.layers.iter().map(of));
        let normed = self.layers.iter().flat_map(|layer| [&layer.qkv, &layer.gate_up]).chain([&self.output]);
        RunState {
            rows_max: rows,
            logit_rows_max: logit_rows,
            all_rows: (0..rows).collect(),
            x: Matrix::new(pool, rows, config.hidden),
            normed: Activations::new(pool, rows, normed).normalized(pool, epsilon),
            qkv: Matrix::new(pool, rows, (config.heads + 2 * config.kv_heads) * config.head_dim),
            shared_items: SharedItems::new(pool, kv, self.attention_shape(), self.context),
            attended: inputs(|layer| &layer.attention_output),
            gated: inputs(|layer| &layer.down),
            last: Activations::new(pool, logit_rows, [&self.output]).normalized(pool, epsilon),
            logits: Matrix::new(pool, logit_rows, config.vocabulary),
        }
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
