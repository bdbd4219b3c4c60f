//! Models of a real shape with made-up weights. Speed does not depend on what weights say, so two programs can be
//! compared on such a file where no real one can be had.
//!
//! The same file for the same recipe every time: each row has a generator of its own, whatever the number of threads.

use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, anyhow};
use ruvllm_kernels::{WeightType, quantize_row};
use ruvllm_model::formats::gguf::Value;
use ruvllm_model::formats::gguf::write::{Header, Writer};
use ruvllm_model::quantize::{Fate, ModelShape, Recipe};

const HIDDEN: usize = 2048;
const LAYERS: usize = 22;
const HEADS: usize = 32;
const KV_HEADS: usize = 4;
const HEAD_DIM: usize = 64;
const FEED_FORWARD: usize = 5632;
const VOCABULARY: usize = 32000;
const CONTEXT: u32 = 4096;

const SEED: u64 = 20_240_104;
/// Keeps what every layer adds near the size of its input.
const STANDARD_DEVIATION: f32 = 0.02;

/// ChatML, which every server knows.
const CHAT_TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] \
                             + '<|im_end|>' + '\n' }}{% endfor %}\
                             {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// The paths of the models of all recipes, which are written if they are not there.
pub fn ensure_all(folder: &Path) -> Result<Vec<String>> {
    let recipes = [
        ("q4_0", Recipe::Uniform(WeightType::Q4_0)),
        ("q4_k_m", Recipe::Q4KM),
        ("q8_0", Recipe::Uniform(WeightType::Q8_0)),
    ];
    recipes
        .into_iter()
        .map(|(name, recipe)| {
            let path = folder.join(format!("tinyllama-1.1b.{name}.gguf"));
            if !path.exists() {
                eprintln!("making {}", path.display());
                fs::create_dir_all(folder)?;
                write_tinyllama(&path, recipe)?;
            }
            path.into_os_string().into_string().map_err(|path| anyhow!("{} is not UTF-8", path.display()))
        })
        .collect()
}

/// Writes a file of TinyLlama-1.1B's shape, vocabulary size and tokenizer type, which Llama engines load and run. What
/// it generates is noise.
fn write_tinyllama(path: &Path, recipe: Recipe) -> Result<()> {
    let mut header = Header::new();
    set_shape(&mut header, recipe);
    set_tokenizer(&mut header);
    let tensors = tensors();
    let model = ModelShape { layers: LAYERS, tied_output: false };
    let kinds: Vec<WeightType> = tensors
        .iter()
        .map(|(name, dims)| match recipe.fate(name, dims, model) {
            Fate::Kept => WeightType::F32,
            Fate::Becomes(kind) | Fate::FallsBack { to: kind, .. } => kind,
        })
        .collect();
    for ((name, dims), kind) in tensors.iter().zip(&kinds) {
        header.add_tensor(name, dims, *kind);
    }
    let gaussians = gaussians();
    let mut writer = Writer::create(path, &header)?;
    for (index, ((name, dims), kind)) in tensors.iter().zip(&kinds).enumerate() {
        let seed = SEED + ((index as u64) << 32);
        let result = match dims[..] {
            [len] => writer.write(&1f32.to_le_bytes().repeat(len)).map_err(Into::into),
            _ => write_matrix(&mut writer, dims, *kind, seed, &gaussians),
        };
        result.with_context(|| format!("tensor {name}"))?;
    }
    Ok(writer.finish()?)
}

fn set_shape(header: &mut Header, recipe: Recipe) {
    header.set("general.architecture", Value::String("llama"));
    header.set("general.name", Value::String("synthetic weights in TinyLlama-1.1B's shape"));
    header.set("general.file_type", Value::U32(recipe.file_type()));
    header.set("general.quantization_version", Value::U32(2));
    for (key, value) in [
        ("block_count", LAYERS as u32),
        ("context_length", CONTEXT),
        ("embedding_length", HIDDEN as u32),
        ("feed_forward_length", FEED_FORWARD as u32),
        ("attention.head_count", HEADS as u32),
        ("attention.head_count_kv", KV_HEADS as u32),
        ("rope.dimension_count", HEAD_DIM as u32),
        ("vocab_size", VOCABULARY as u32),
    ] {
        header.set(&format!("llama.{key}"), Value::U32(value));
    }
    header.set("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
    header.set("llama.rope.freq_base", Value::F32(10_000.0));
}

/// SentencePiece's three control tokens and 256 bytes, then pieces: single letters first, so that any English text has
/// tokens, then syllables with falling scores.
fn set_tokenizer(header: &mut Header) {
    const UNKNOWN: i32 = 2;
    const CONTROL: i32 = 3;
    const NORMAL: i32 = 1;
    const BYTE: i32 = 6;
    let mut tokens = vec![("<unk>".to_owned(), UNKNOWN), ("<s>".to_owned(), CONTROL), ("</s>".to_owned(), CONTROL)];
    tokens.extend((0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), BYTE)));
    tokens.extend(pieces().take(VOCABULARY - tokens.len()).map(|piece| (piece, NORMAL)));
    let first_piece = 3 + 256;
    let scores: Vec<f32> = (0..tokens.len()).map(|id| -(id.saturating_sub(first_piece) as f32)).collect();
    let types: Vec<i32> = tokens.iter().map(|(_, kind)| *kind).collect();
    let texts: Vec<&String> = tokens.iter().map(|(text, _)| text).collect();
    header.set("tokenizer.ggml.model", Value::String("llama"));
    header.set("tokenizer.ggml.pre", Value::String("default"));
    header.set_strings("tokenizer.ggml.tokens", &texts);
    header.set_numbers("tokenizer.ggml.scores", &scores);
    header.set_numbers("tokenizer.ggml.token_type", &types);
    header.set("tokenizer.ggml.bos_token_id", Value::U32(1));
    header.set("tokenizer.ggml.eos_token_id", Value::U32(2));
    header.set("tokenizer.ggml.unknown_token_id", Value::U32(0));
    header.set("tokenizer.ggml.add_bos_token", Value::Bool(true));
    header.set("tokenizer.ggml.add_eos_token", Value::Bool(false));
    header.set("tokenizer.chat_template", Value::String(CHAT_TEMPLATE));
}

/// All different: a space, printable ASCII, then every string of two, three, ... letters, with and without a space.
fn pieces() -> impl Iterator<Item = String> {
    const SPACE: &str = "\u{2581}";
    const LETTERS: &[u8] = b"etaoinshrdlucmfwypvbgkjqxz";
    let singles = (b'!'..=b'~').map(|byte| char::from(byte).to_string());
    let words = (2u32..).flat_map(|len| {
        (0..LETTERS.len().pow(len)).map(move |number| {
            let letter = |place: u32| char::from(LETTERS[number / LETTERS.len().pow(place) % LETTERS.len()]);
            (0..len).rev().map(letter).collect::<String>()
        })
    });
    [SPACE.to_owned()].into_iter().chain(singles).chain(words.flat_map(|word| [format!("{SPACE}{word}"), word]))
}

/// Names and shapes, the length of a row first.
fn tensors() -> Vec<(String, Vec<usize>)> {
    let mut tensors = vec![
        ("token_embd.weight".to_owned(), vec![HIDDEN, VOCABULARY]),
        ("output_norm.weight".to_owned(), vec![HIDDEN]),
        ("output.weight".to_owned(), vec![HIDDEN, VOCABULARY]),
    ];
    for layer in 0..LAYERS {
        let mut add = |name: &str, dims: &[usize]| tensors.push((format!("blk.{layer}.{name}.weight"), dims.to_vec()));
        add("attn_norm", &[HIDDEN]);
        add("attn_q", &[HIDDEN, HEADS * HEAD_DIM]);
        add("attn_k", &[HIDDEN, KV_HEADS * HEAD_DIM]);
        add("attn_v", &[HIDDEN, KV_HEADS * HEAD_DIM]);
        add("attn_output", &[HEADS * HEAD_DIM, HIDDEN]);
        add("ffn_norm", &[HIDDEN]);
        add("ffn_gate", &[HIDDEN, FEED_FORWARD]);
        add("ffn_up", &[HIDDEN, FEED_FORWARD]);
        add("ffn_down", &[FEED_FORWARD, HIDDEN]);
    }
    tensors
}

/// Random rows, a share of them on each core.
fn write_matrix(
    writer: &mut Writer,
    dims: &[usize],
    kind: WeightType,
    seed: u64,
    gaussians: &[f32; GAUSSIANS],
) -> Result<()> {
    let (len, rows) = (dims[0], dims[1]);
    let share = rows.div_ceil(thread::available_parallelism().map_or(1, NonZero::get));
    let shares: Vec<Vec<u8>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..rows)
            .step_by(share)
            .map(|first| {
                scope.spawn(move || {
                    let mut bytes = Vec::new();
                    let mut row = vec![0f32; len];
                    for r in first..rows.min(first + share) {
                        fill(&mut row, seed + r as u64, gaussians);
                        quantize_row(kind, &row, &mut bytes)?;
                    }
                    anyhow::Ok(bytes)
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("quantizing does not panic")).collect::<Result<_>>()
    })?;
    shares.iter().try_for_each(|bytes| writer.write(bytes))?;
    Ok(())
}

/// So many draws that nobody will miss the others.
const GAUSSIANS: usize = 1 << 16;

/// Draws of a normal distribution (Box-Muller), from which rows take theirs: a table is much faster than logarithms.
fn gaussians() -> Box<[f32; GAUSSIANS]> {
    let mut random = Random(SEED);
    let mut uniform = move || ((random.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let mut draw = || (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
    let draws: Vec<f32> = (0..GAUSSIANS).map(|_| draw() as f32 * STANDARD_DEVIATION).collect();
    draws.into_boxed_slice().try_into().expect("as many as asked for")
}

fn fill(row: &mut [f32], seed: u64, gaussians: &[f32; GAUSSIANS]) {
    let mut random = Random(seed);
    for chunk in row.chunks_mut(4) {
        let bits = random.next();
        for (i, value) in chunk.iter_mut().enumerate() {
            *value = gaussians[usize::from((bits >> (16 * i)) as u16)];
        }
    }
}

/// SplitMix64: neighbouring seeds give unrelated numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}
