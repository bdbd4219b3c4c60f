//! From the weights of transformers to GGUF's tensors: names, shapes, and what llama.cpp's converter changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use ruvllm_kernels::WeightType;

use super::HuggingFaceError;
use super::config::Settings;
use super::names;
use super::weights::{Weights, float_type};
use crate::formats::gguf::assembly::{Assembly, Gather, Part, Step};
use crate::formats::gguf::shortened;
use crate::formats::safetensors::{ElementType, StoredTensor};

/// Elements of a block of MXFP4.
const MXFP4_BLOCK: usize = 32;

/// Matrices of experts and their names, by the number of the expert.
type OfExperts<'a> = BTreeMap<usize, (&'a str, &'a StoredTensor)>;

/// A tensor as GGUF has it.
pub(super) struct Made {
    pub name: String,
    /// The length of a row comes first.
    pub dims: Vec<usize>,
    pub kind: WeightType,
    pub assembly: Assembly,
}

/// What the changes depend on.
pub(super) struct Converter<'a> {
    architecture: &'static str,
    settings: &'a Settings,
    weights: &'a Weights<'a>,
    made: Vec<Made>,
}

impl<'a> Converter<'a> {
    pub fn new(architecture: &'static str, settings: &'a Settings, weights: &'a Weights<'a>) -> Self {
        Self { architecture, settings, weights, made: Vec::new() }
    }

    /// Returns all tensors of the model.
    pub fn tensors(mut self) -> Result<Vec<Made>, HuggingFaceError> {
        self.made.extend(super::rope_tensors::tensors(self.architecture, self.settings, self.weights)?);
        let is_tied = self.settings.flag("tie_word_embeddings")? == Some(true);
        let mut experts: BTreeMap<(usize, &str), OfExperts<'_>> = BTreeMap::new();
        for (name, tensor) in self.weights.iter() {
            let unknown = || HuggingFaceError::UnknownTensor { name: shortened(name) };
            let layer = name.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
            match layer {
                // The same as the embedding, where it is stored twice.
                None if name == "lm_head.weight" && is_tied => {}
                None => {
                    let gguf = names::outer(name).ok_or_else(unknown)?;
                    self.convert(name, gguf.to_owned(), gguf, tensor)?;
                }
                Some((layer, rest)) => {
                    let layer: usize = layer.parse().map_err(|_| unknown())?;
                    if let Some((expert, gguf)) = names::of_expert(rest) {
                        experts.entry((layer, gguf)).or_default().insert(expert, (name, tensor));
                    } else if rest.contains("experts.") {
                        self.experts(name, layer, rest, tensor).unwrap_or_else(|| Err(unknown()))?;
                    } else {
                        let gguf = names::inner(self.architecture, rest).ok_or_else(unknown)?;
                        self.convert(name, format!("blk.{layer}.{gguf}"), &gguf, tensor)?;
                    }
                }
            }
        }
        for ((layer, gguf), of_experts) in experts {
            self.stack(format!("blk.{layer}.{gguf}"), &of_experts)?;
        }
        Ok(self.made)
    }

    /// Adds a tensor of floats; `kind` is its GGUF name without the layer.
    fn convert(&mut self, name: &str, gguf: String, kind: &str, tensor: &StoredTensor) -> Result<(), HuggingFaceError> {
        let float = float_type(name, tensor)?;
        let shape_error =
            |expected: String| HuggingFaceError::Shape { name: shortened(name), got: tensor.shape.clone(), expected };
        // Convolutions have one input per channel.
        let shape: Vec<usize> = match (&tensor.shape[..], kind) {
            ([channels, 1, taps], "shortconv.conv.weight" | "ssm_conv1d.weight") => vec![*channels, *taps],
            ([], _) => vec![1],
            (shape, _) => shape.to_vec(),
        };
        let mut steps = Vec::new();
        if let Some(gather) = self.order(kind, &shape, float).map_err(shape_error)? {
            steps.push(Step::Gather(gather));
        }
        let mut to = float;
        if is_f32(kind, &shape) {
            to = WeightType::F32;
            let change = self.change(kind);
            if float != to || change.is_some() {
                steps.push(Step::ToF32 { from: float, change: change.unwrap_or(identity) });
            }
        }
        self.push(gguf, &shape, to, vec![part(tensor)], steps);
        Ok(())
    }

    fn push(&mut self, name: String, shape: &[usize], kind: WeightType, parts: Vec<Part>, steps: Vec<Step>) {
        let dims = shape.iter().rev().copied().collect();
        self.made.push(Made { name, dims, kind, assembly: Assembly { parts, steps } });
    }

    /// Returns what is computed of each weight, if anything.
    fn change(&self, kind: &str) -> Option<fn(f32) -> f32> {
        let adds_one = match self.architecture {
            "gemma2" | "gemma3" => kind.ends_with("norm.weight"),
            "qwen35" | "qwen35moe" => kind.ends_with("norm.weight") && kind != "ssm_norm.weight",
            _ => false,
        };
        match kind {
            "ssm_a" => Some(|weight| -weight.exp()),
            _ if adds_one => Some(|weight| weight + 1.0),
            _ => None,
        }
    }

    /// Returns how the rows, or parts of them, are put in another order. An error is the shape that is needed.
    fn order(&self, kind: &str, shape: &[usize], float: WeightType) -> Result<Option<Gather>, String> {
        let row = shape[1..].iter().product::<usize>() * float.block_bytes();
        if is_interleaved(self.architecture) {
            let heads = match kind {
                "attn_q.weight" | "attn_q.bias" => self.setting("num_attention_heads"),
                "attn_k.weight" | "attn_k.bias" => {
                    self.setting("num_key_value_heads").or_else(|| self.setting("num_attention_heads"))
                }
                _ => return Ok(None),
            };
            let heads = heads.filter(|heads| *heads > 0 && shape[0].is_multiple_of(2 * heads));
            let heads = heads.ok_or("an even number of rows for each head")?;
            return Ok(Some(halves_to_pairs(shape[0] / heads, row)));
        }
        if !self.architecture.starts_with("qwen35") {
            return Ok(None);
        }
        self.value_head_order(kind, shape, row, float)
    }

    /// Value heads that share a key head are neighbours here; in GGUF those with the same number within their key
    /// head are.
    fn value_head_order(
        &self,
        kind: &str,
        shape: &[usize],
        row: usize,
        float: WeightType,
    ) -> Result<Option<Gather>, String> {
        let setting = |key: &str| self.setting(key).filter(|count| *count > 0).ok_or(format!("{key} to be known"));
        let of_delta_net = ["ssm_a", "ssm_dt.bias", "ssm_alpha.weight", "ssm_beta.weight", "attn_gate.weight"];
        let is_part = ["attn_qkv.weight", "ssm_conv1d.weight", "ssm_out.weight"].contains(&kind);
        if !is_part && !of_delta_net.contains(&kind) {
            return Ok(None);
        }
        let (key_heads, value_heads) = (setting("linear_num_key_heads")?, setting("linear_num_value_heads")?);
        let (key_dim, value_dim) = (setting("linear_key_head_dim")?, setting("linear_value_head_dim")?);
        if !value_heads.is_multiple_of(key_heads) {
            return Err("as many value heads for each key head".to_owned());
        }
        let shared = value_heads / key_heads;
        let head = move |number: usize| number % key_heads * shared + number / key_heads;
        // Rows of a head, and how many come before the first.
        let (rows, before) = match kind {
            "ssm_a" | "ssm_dt.bias" | "ssm_alpha.weight" | "ssm_beta.weight" => (1, 0),
            "attn_gate.weight" => (value_dim, 0),
            "ssm_out.weight" => {
                let chunk = value_dim.saturating_mul(float.block_bytes());
                let pick = Arc::new(head);
                return match shape {
                    [_, cols] if Some(*cols) == value_heads.checked_mul(value_dim) => {
                        Ok(Some(Gather { chunk, group: value_heads, left: value_heads, pick }))
                    }
                    _ => Err(format!("{value_heads} times {value_dim} columns")),
                };
            }
            _ => (value_dim, key_heads.saturating_mul(key_dim).saturating_mul(2)),
        };
        if value_heads.checked_mul(rows).and_then(|rows| rows.checked_add(before)) != Some(shape[0]) {
            return Err(format!("{before} rows and {rows} for each of {value_heads} heads"));
        }
        let pick = Arc::new(move |number: usize| match number.checked_sub(before) {
            None => number,
            Some(number) => before + head(number / rows) * rows + number % rows,
        });
        Ok(Some(Gather { chunk: row, group: shape[0], left: shape[0], pick }))
    }

    fn setting(&self, key: &str) -> Option<usize> {
        self.settings.optional_count(key).ok().flatten().map(|count| count as usize)
    }

    /// Adds experts that are one tensor. `None` if the name is not known.
    fn experts(
        &mut self,
        name: &str,
        layer: usize,
        rest: &str,
        tensor: &StoredTensor,
    ) -> Option<Result<(), HuggingFaceError>> {
        let matrix = rest.strip_prefix("mlp.experts.").or_else(|| rest.strip_prefix("experts."))?;
        let gguf = |of: &str| format!("blk.{layer}.ffn_{of}_exps.weight");
        let shape = &tensor.shape[..];
        let wrong = |expected: &str| {
            Some(Err(HuggingFaceError::Shape {
                name: shortened(name),
                got: tensor.shape.clone(),
                expected: expected.to_owned(),
            }))
        };
        if self.architecture == "gpt-oss" {
            return self.gpt_oss_experts(name, layer, matrix, tensor);
        }
        let &[count, rows, cols] = shape else { return wrong("three dimensions") };
        let kind = match float_type(name, tensor) {
            Ok(kind) => kind,
            Err(error) => return Some(Err(error)),
        };
        match (matrix, self.architecture) {
            ("gate_up_proj", "gemma4") => self.push(gguf("gate_up"), shape, kind, vec![part(tensor)], Vec::new()),
            ("down_proj", _) => self.push(gguf("down"), shape, kind, vec![part(tensor)], Vec::new()),
            ("gate_up_proj", _) if rows.is_multiple_of(2) => {
                for (which, of) in ["gate", "up"].into_iter().enumerate() {
                    let chunk = rows / 2 * cols * kind.block_bytes();
                    let gather = Gather { chunk, group: 2, left: 1, pick: Arc::new(move |_| which) };
                    let shape = [count, rows / 2, cols];
                    self.push(gguf(of), &shape, kind, vec![part(tensor)], vec![Step::Gather(gather)]);
                }
            }
            ("gate_up_proj", _) => return wrong("an even number of rows"),
            _ => return None,
        }
        Some(Ok(()))
    }

    /// Adds experts whose gates and ups take turns, and whose matrices are transposed or packed to 4 bits.
    fn gpt_oss_experts(
        &mut self,
        name: &str,
        layer: usize,
        matrix: &str,
        tensor: &StoredTensor,
    ) -> Option<Result<(), HuggingFaceError>> {
        let (of, what) = match matrix.split_once("_proj") {
            Some((of @ ("gate_up" | "down"), what)) => (of, what),
            _ => return None,
        };
        let results: &[(&str, usize)] = if of == "down" { &[("down", 0)] } else { &[("gate", 0), ("up", 1)] };
        let turns = results.len();
        let wrong =
            |expected: String| HuggingFaceError::Shape { name: shortened(name), got: tensor.shape.clone(), expected };
        let float =
            if what == "_blocks" || what == "_scales" { Ok(WeightType::Mxfp4) } else { float_type(name, tensor) };
        let float = match float {
            Ok(float) => float,
            Err(error) => return Some(Err(error)),
        };
        let every =
            |chunk: usize, first: usize| Gather { chunk, group: turns, left: 1, pick: Arc::new(move |_| first) };
        for &(result, first) in results {
            let stem = format!("blk.{layer}.ffn_{result}_exps");
            match (what, &tensor.shape[..]) {
                ("_bias", &[count, rows]) if rows.is_multiple_of(turns) => {
                    let mut steps = vec![Step::Gather(every(float.block_bytes(), first))];
                    if float != WeightType::F32 {
                        steps.push(Step::ToF32 { from: float, change: identity });
                    }
                    let shape = [count, rows / turns];
                    self.push(format!("{stem}.bias"), &shape, WeightType::F32, vec![part(tensor)], steps);
                }
                ("", &[count, cols, rows]) if rows.is_multiple_of(turns) => {
                    let pick = Arc::new(move |number: usize| number % cols * rows + number / cols * turns + first);
                    let (group, left) = (rows * cols, rows / turns * cols);
                    let gather = Gather { chunk: float.block_bytes(), group, left, pick };
                    let shape = [count, rows / turns, cols];
                    self.push(format!("{stem}.weight"), &shape, float, vec![part(tensor)], vec![Step::Gather(gather)]);
                }
                ("_blocks", &[count, rows, blocks, 16]) if rows.is_multiple_of(turns) => {
                    let scales = name.replace("_blocks", "_scales");
                    let found = self.weights.get(&scales).filter(|scales| {
                        scales.shape[..] == [count, rows, blocks]
                            && [scales.element, tensor.element] == [ElementType::U8; 2]
                    });
                    let Some(scales) = found else {
                        return Some(Err(wrong(format!(
                            "{} of bytes with one scale for each block of bytes",
                            shortened(&scales)
                        ))));
                    };
                    let row = blocks * WeightType::Mxfp4.block_bytes();
                    let steps = vec![Step::Mxfp4, Step::Gather(every(row, first))];
                    let shape = [count, rows / turns, blocks * MXFP4_BLOCK];
                    let parts = vec![part(tensor), part(scales)];
                    self.push(format!("{stem}.weight"), &shape, WeightType::Mxfp4, parts, steps);
                }
                // Taken with the blocks.
                ("_scales", _) if self.weights.get(&name.replace("_scales", "_blocks")).is_some() => {}
                ("_bias" | "" | "_blocks", _) => return Some(Err(wrong("an expert, rows and columns".to_owned()))),
                _ => return None,
            }
        }
        Some(Ok(()))
    }

    /// Adds one tensor of the matrices of experts.
    fn stack(&mut self, gguf: String, experts: &OfExperts<'_>) -> Result<(), HuggingFaceError> {
        let Some((&0, (name, first))) = experts.first_key_value() else {
            return Err(HuggingFaceError::MissingTensor { name: format!("{gguf} of expert 0") });
        };
        let kind = float_type(name, first)?;
        for (number, (expert, (name, tensor))) in experts.iter().enumerate() {
            if number != *expert {
                return Err(HuggingFaceError::MissingTensor { name: format!("{gguf} of expert {number}") });
            }
            if tensor.shape != first.shape || tensor.element != first.element {
                let expected = format!("{:?} of {}, as the other experts", first.shape, first.element_name);
                return Err(HuggingFaceError::Shape { name: shortened(name), got: tensor.shape.clone(), expected });
            }
        }
        let shape = [&[experts.len()], &first.shape[..]].concat();
        let parts = experts.values().map(|(_, tensor)| part(tensor)).collect();
        self.push(gguf, &shape, kind, parts, Vec::new());
        Ok(())
    }
}

fn identity(weight: f32) -> f32 {
    weight
}

fn part(tensor: &StoredTensor) -> Part {
    Part { file: tensor.file.clone(), range: tensor.range.clone() }
}

/// Vectors, and what is small and matters much, are stored in 32 bits, which other programs count on.
fn is_f32(kind: &str, shape: &[usize]) -> bool {
    let small = ["ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight", "shortconv.conv.weight"];
    shape.len() == 1 || kind.ends_with("_norm.weight") || small.contains(&kind)
}

/// Whether rotated pairs, which are the halves of a head here, are neighbours in GGUF files of an architecture.
pub(crate) fn is_interleaved(architecture: &str) -> bool {
    ["llama", "mistral3", "granite", "smollm3"].contains(&architecture)
}

/// Returns which row of a head here is row `number` in GGUF, where rotated pairs are neighbours.
pub(crate) fn half_of_pair(number: usize, head_dim: usize) -> usize {
    number % 2 * (head_dim / 2) + number / 2
}

fn halves_to_pairs(head_dim: usize, row: usize) -> Gather {
    let pick = Arc::new(move |number: usize| half_of_pair(number, head_dim));
    Gather { chunk: row, group: head_dim, left: head_dim, pick }
}
