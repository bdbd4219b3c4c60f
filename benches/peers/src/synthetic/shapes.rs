//! The shapes of real models.

use ruvllm_kernels::WeightType;
use ruvllm_model::formats::gguf::Value;
use ruvllm_model::formats::gguf::write::Header;
use ruvllm_model::quantize::Recipe;

/// The name and shape of a tensor, the length of a row first.
type Tensor = (&'static str, Vec<usize>);
type Tensors = Vec<Tensor>;

/// A model to be made: what its file says, and its tensors.
pub(super) struct Shape {
    pub name: &'static str,
    /// In what real ones are made of.
    pub recipes: &'static [(&'static str, Recipe)],
    pub architecture: &'static str,
    pub layers: usize,
    pub hidden: usize,
    pub vocabulary: usize,
    /// Whether the embedding is also the output matrix.
    pub tied_output: bool,
    /// Of the architecture, beside those that all have.
    numbers: &'static [(&'static str, u32)],
    rope_base: f32,
    /// The tensors of a layer, without their number.
    layer: fn(usize) -> Tensors,
}

const Q4_0: (&str, Recipe) = ("q4_0", Recipe::Uniform(WeightType::Q4_0));
const Q4_K_M: (&str, Recipe) = ("q4_k_m", Recipe::Q4KM);
const Q8_0: (&str, Recipe) = ("q8_0", Recipe::Uniform(WeightType::Q8_0));

/// All of them, the default first.
pub(super) const SHAPES: [Shape; 4] = [
    Shape {
        name: "tinyllama-1.1b",
        recipes: &[Q4_0, Q4_K_M, Q8_0],
        architecture: "llama",
        layers: 22,
        hidden: 2048,
        vocabulary: 32_000,
        tied_output: false,
        numbers: &[
            ("feed_forward_length", 5632),
            ("attention.head_count", 32),
            ("attention.head_count_kv", 4),
            ("rope.dimension_count", 64),
        ],
        rope_base: 1e4,
        layer: |_| dense_layer(2048, 2048, 256, 5632),
    },
    // Mistral's shape.
    Shape {
        name: "llama-7b",
        recipes: &[Q4_0, Q4_K_M],
        architecture: "llama",
        layers: 32,
        hidden: 4096,
        vocabulary: 32_000,
        tied_output: false,
        numbers: &[
            ("feed_forward_length", 14_336),
            ("attention.head_count", 32),
            ("attention.head_count_kv", 8),
            ("rope.dimension_count", 128),
        ],
        rope_base: 1e6,
        layer: |_| dense_layer(4096, 4096, 1024, 14_336),
    },
    // Of 2.7 billion weights a token uses 0.6.
    Shape {
        name: "qwen3moe-3b",
        recipes: &[Q4_K_M],
        architecture: "qwen3moe",
        layers: 24,
        hidden: 1024,
        vocabulary: 151_936,
        tied_output: true,
        numbers: &[
            ("feed_forward_length", 4096),
            ("attention.head_count", 16),
            ("attention.head_count_kv", 4),
            ("attention.key_length", 128),
            ("attention.value_length", 128),
            ("expert_count", 64),
            ("expert_used_count", 8),
            ("expert_feed_forward_length", 512),
        ],
        rope_base: 1e6,
        layer: |_| {
            let mut tensors = attention(1024, 2048, 512);
            tensors.extend(qk_norms(128));
            tensors.extend([
                ("ffn_norm.weight", vec![1024]),
                ("ffn_gate_inp.weight", vec![1024, 64]),
                ("ffn_gate_exps.weight", vec![1024, 512, 64]),
                ("ffn_up_exps.weight", vec![1024, 512, 64]),
                ("ffn_down_exps.weight", vec![512, 1024, 64]),
            ]);
            tensors
        },
    },
    Shape {
        name: "qwen35-0.8b",
        recipes: &[Q4_K_M],
        architecture: "qwen35",
        layers: 24,
        hidden: 1024,
        vocabulary: 248_320,
        tied_output: true,
        numbers: &[
            ("feed_forward_length", 3584),
            ("attention.head_count", 8),
            ("attention.head_count_kv", 2),
            ("attention.key_length", 256),
            ("attention.value_length", 256),
            ("rope.dimension_count", 64),
            ("full_attention_interval", 4),
            ("ssm.conv_kernel", 4),
            ("ssm.state_size", 128),
            ("ssm.group_count", 16),
            ("ssm.time_step_rank", 16),
            ("ssm.inner_size", 2048),
        ],
        rope_base: 1e7,
        layer: |layer| {
            let mut tensors = match layer % 4 {
                // Queries and their gates.
                3 => attention(1024, 2048, 512)
                    .into_iter()
                    .map(|(name, dims)| if name == "attn_q.weight" { (name, vec![1024, 4096]) } else { (name, dims) })
                    .chain(qk_norms(256))
                    .collect(),
                _ => vec![
                    ("attn_norm.weight", vec![1024]),
                    ("attn_qkv.weight", vec![1024, 6144]),
                    ("attn_gate.weight", vec![1024, 2048]),
                    ("ssm_alpha.weight", vec![1024, 16]),
                    ("ssm_beta.weight", vec![1024, 16]),
                    ("ssm_conv1d.weight", vec![4, 6144]),
                    ("ssm_a", vec![16]),
                    ("ssm_dt.bias", vec![16]),
                    ("ssm_norm.weight", vec![128]),
                    ("ssm_out.weight", vec![2048, 1024]),
                ],
            };
            tensors.push(("post_attention_norm.weight", vec![1024]));
            tensors.extend(feed_forward(1024, 3584));
            tensors
        },
    },
];

fn attention(hidden: usize, queries: usize, keys: usize) -> Tensors {
    vec![
        ("attn_norm.weight", vec![hidden]),
        ("attn_q.weight", vec![hidden, queries]),
        ("attn_k.weight", vec![hidden, keys]),
        ("attn_v.weight", vec![hidden, keys]),
        ("attn_output.weight", vec![queries, hidden]),
    ]
}

fn qk_norms(dim: usize) -> [Tensor; 2] {
    [("attn_q_norm.weight", vec![dim]), ("attn_k_norm.weight", vec![dim])]
}

fn feed_forward(hidden: usize, width: usize) -> [Tensor; 3] {
    [
        ("ffn_gate.weight", vec![hidden, width]),
        ("ffn_up.weight", vec![hidden, width]),
        ("ffn_down.weight", vec![width, hidden]),
    ]
}

fn dense_layer(hidden: usize, queries: usize, keys: usize, width: usize) -> Tensors {
    let mut tensors = attention(hidden, queries, keys);
    tensors.push(("ffn_norm.weight", vec![hidden]));
    tensors.extend(feed_forward(hidden, width));
    tensors
}

impl Shape {
    pub(super) fn set(&self, header: &mut Header, recipe: Recipe) {
        header.set("general.architecture", Value::String(self.architecture));
        header.set("general.name", Value::String(&format!("synthetic weights in the shape of {}", self.name)));
        header.set("general.file_type", Value::U32(recipe.file_type()));
        header.set("general.quantization_version", Value::U32(2));
        let common = [
            ("block_count", self.layers as u32),
            ("context_length", 32_768),
            ("embedding_length", self.hidden as u32),
            ("vocab_size", self.vocabulary as u32),
        ];
        for (key, value) in common.iter().chain(self.numbers) {
            header.set(&format!("{}.{key}", self.architecture), Value::U32(*value));
        }
        header.set(&format!("{}.attention.layer_norm_rms_epsilon", self.architecture), Value::F32(1e-6));
        header.set(&format!("{}.rope.freq_base", self.architecture), Value::F32(self.rope_base));
        if self.architecture == "qwen35" {
            // Positions of text are one number: how pairs are distributed has no effect.
            header.set_numbers("qwen35.rope.dimension_sections", &[11i32, 11, 10, 0]);
        }
    }

    pub(super) fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let mut tensors = vec![
            ("token_embd.weight".to_owned(), vec![self.hidden, self.vocabulary]),
            ("output_norm.weight".to_owned(), vec![self.hidden]),
        ];
        if !self.tied_output {
            tensors.push(("output.weight".to_owned(), vec![self.hidden, self.vocabulary]));
        }
        for layer in 0..self.layers {
            let of_layer = (self.layer)(layer).into_iter();
            tensors.extend(of_layer.map(|(name, dims)| (format!("blk.{layer}.{name}"), dims)));
        }
        tensors
    }
}
