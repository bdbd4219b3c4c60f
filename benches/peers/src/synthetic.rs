//! Models of a real shape with made-up weights. Speed does not depend on what weights say, so two programs can be
//! compared on such a file where no real one can be had.
//!
//! The same file for the same recipe every time: each row has a generator of its own, whatever the number of threads.

mod shapes;

use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, anyhow};
use ruvllm_kernels::{WeightType, quantize_row};
use ruvllm_model::formats::gguf::Value;
use ruvllm_model::formats::gguf::write::{Header, Writer};
use ruvllm_model::quantize::{Fate, ModelShape, Recipe};

use shapes::{SHAPES, Shape};

const SEED: u64 = 20_240_104;
/// Keeps what every layer adds near the size of its input.
const STANDARD_DEVIATION: f32 = 0.02;

/// ChatML, which every server knows.
const CHAT_TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] \
                             + '<|im_end|>' + '\n' }}{% endfor %}\
                             {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// The shapes that models can be made in.
pub fn names() -> Vec<&'static str> {
    SHAPES.iter().map(|shape| shape.name).collect()
}

/// The paths of the models of some shapes in all of their recipes, which are written if they are not there.
pub fn ensure_all(folder: &Path, names: &[String]) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    for name in names {
        let shape = SHAPES.iter().find(|shape| shape.name == name);
        let shape = shape.ok_or_else(|| anyhow!("'{name}' is no shape; there are {}", self::names().join(", ")))?;
        for (recipe_name, recipe) in shape.recipes {
            let path = folder.join(format!("{name}.{recipe_name}.gguf"));
            if !path.exists() {
                eprintln!("making {}", path.display());
                fs::create_dir_all(folder)?;
                write_model(&path, shape, *recipe)?;
            }
            let path = path.into_os_string().into_string();
            paths.push(path.map_err(|path| anyhow!("{} is not UTF-8", path.display()))?);
        }
    }
    Ok(paths)
}

/// Writes a file that engines load and run as the real one. What it generates is noise.
fn write_model(path: &Path, shape: &Shape, recipe: Recipe) -> Result<()> {
    let mut header = Header::new();
    shape.set(&mut header, recipe);
    set_tokenizer(&mut header, shape.vocabulary);
    let tensors = shape.tensors();
    let model = ModelShape { layers: shape.layers, tied_output: shape.tied_output };
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
            // What states are multiplied by at each token is e to a negative power.
            [len] if name.ends_with("ssm_a") => writer.write(&(-1f32).to_le_bytes().repeat(len)).map_err(Into::into),
            [len] => writer.write(&1f32.to_le_bytes().repeat(len)).map_err(Into::into),
            _ => write_matrix(&mut writer, dims, *kind, seed, &gaussians),
        };
        result.with_context(|| format!("tensor {name}"))?;
    }
    Ok(writer.finish()?)
}

/// SentencePiece's three control tokens and 256 bytes, then pieces: single letters first, so that any English text has
/// tokens, then syllables with falling scores.
fn set_tokenizer(header: &mut Header, vocabulary: usize) {
    const UNKNOWN: i32 = 2;
    const CONTROL: i32 = 3;
    const NORMAL: i32 = 1;
    const BYTE: i32 = 6;
    let mut tokens = vec![("<unk>".to_owned(), UNKNOWN), ("<s>".to_owned(), CONTROL), ("</s>".to_owned(), CONTROL)];
    tokens.extend((0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), BYTE)));
    tokens.extend(pieces().take(vocabulary - tokens.len()).map(|piece| (piece, NORMAL)));
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

/// Random rows, a share of them on each core.
fn write_matrix(
    writer: &mut Writer,
    dims: &[usize],
    kind: WeightType,
    seed: u64,
    gaussians: &[f32; GAUSSIANS],
) -> Result<()> {
    // Experts stand below each other.
    let (len, rows) = (dims[0], dims[1..].iter().product::<usize>());
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
