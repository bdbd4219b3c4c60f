//! Tensors with divisors of rotation frequencies, which transformers computes from settings.

use std::f64::consts::TAU;

use ruvllm_kernels::WeightType;
use serde_json::json;

use super::HuggingFaceError;
use super::config::{Rope, Settings};
use super::tensors::Made;
use super::weights::Weights;
use crate::formats::gguf::assembly::{Assembly, Part};
use crate::rope::{LONG, SHORT};

/// The divisors of every model but those with factors for two lengths.
const DIVISORS: &str = "rope_freqs.weight";
/// Divides a frequency so that nothing rotates.
const STILL: f32 = 1e30;
/// Longer than any head, so that a setting cannot ask for memory.
const HEAD_MAX: usize = 1 << 16;

pub(super) fn tensors(
    architecture: &str,
    settings: &Settings,
    weights: &Weights<'_>,
) -> Result<Vec<Made>, HuggingFaceError> {
    let rope = settings.rope("full_attention");
    match (rope.kind(), architecture) {
        ("llama3", "llama") => Ok(vec![made(DIVISORS, &llama3(rope, head_dim(settings)?)?)]),
        ("longrope" | "su", "phi3") => {
            Ok(vec![made(LONG, &rope.floats("long_factor")?), made(SHORT, &rope.floats("short_factor")?)])
        }
        ("proportional", "gemma4") => {
            let types = settings.layer_types()?.unwrap_or_default();
            let full = types.iter().position(|kind| *kind == "full_attention").unwrap_or(0);
            let pairs = weights.layer_rows(full, "self_attn.q_norm.weight")? as usize / 2;
            let rotated = (rope.rotated_part()?.unwrap_or(1.0) * pairs as f32) as usize;
            let divisors: Vec<f32> = (0..pairs).map(|pair| if pair < rotated { 1.0 } else { STILL }).collect();
            Ok(vec![made(DIVISORS, &divisors)])
        }
        _ => Ok(Vec::new()),
    }
}

fn head_dim(settings: &Settings) -> Result<usize, HuggingFaceError> {
    let head_dim = match settings.optional_count("head_dim")? {
        Some(head_dim) => head_dim,
        None => settings.count(&["hidden_size"])? / settings.count(&["num_attention_heads"])?.max(1),
    };
    match head_dim as usize {
        head_dim @ 1..=HEAD_MAX => Ok(head_dim),
        _ => Err(Settings::refusal("head_dim", &json!(head_dim), "is no length of a head")),
    }
}

/// Low frequencies are divided by the factor, high ones are kept, and those between are blended.
fn llama3(rope: Rope<'_>, head_dim: usize) -> Result<Vec<f32>, HuggingFaceError> {
    let base = f64::from(rope.base()?.unwrap_or(10_000.0));
    let factor = f64::from(rope.required_float("factor")?);
    let low = f64::from(rope.float("low_freq_factor")?.unwrap_or(1.0));
    let high = f64::from(rope.float("high_freq_factor")?.unwrap_or(4.0));
    let context = f64::from(rope.original_context()?);
    if !(base > 0.0 && factor > 0.0 && low > 0.0 && high > low) {
        let problem = "and its like must be positive, and high_freq_factor above low_freq_factor";
        return Err(Settings::refusal("factor", &json!(factor), problem));
    }
    let divisor = |pair: usize| {
        let length = TAU * base.powf(2.0 * pair as f64 / head_dim as f64);
        let turns = context / length;
        match turns {
            turns if turns > high => 1.0,
            turns if turns < low => factor,
            turns => {
                let kept = (turns - low) / (high - low);
                1.0 / ((1.0 - kept) / factor + kept)
            }
        }
    };
    Ok((0..head_dim / 2).map(|pair| divisor(pair) as f32).collect())
}

fn made(name: &str, floats: &[f32]) -> Made {
    let bytes: Vec<u8> = floats.iter().flat_map(|float| float.to_le_bytes()).collect();
    let range = 0..bytes.len();
    let assembly = Assembly { parts: vec![Part { file: bytes.into(), range }], steps: Vec::new() };
    Made { name: name.to_owned(), dims: vec![floats.len()], kind: WeightType::F32, assembly }
}
