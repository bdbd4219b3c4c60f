//! Measures the smallest format of KV pages that a model tolerates, once per model.
//!
//! Keys are the delicate part. Some models answer with 4-bit keys as they do with half floats, others produce nonsense, and
//! nothing in a file says which. So the model reads a text with its older tokens in each format, from the smallest up, until its
//! predictions stay the same.

use std::ops::Range;
use std::path::Path;
use std::{fmt, fs, io};

use ruvllm_engine::{Core, EvaluateError, Tiers, TokenId};
use ruvllm_model::formats::gguf::Gguf;
use ruvllm_runner::{KeyFormat, PageFormat, Rotation, ValueFormat};
use ruvllm_text::Tokenizer;
use serde_json::{Value, json};

use crate::builder::fingerprint;
use crate::encode::encode_text;

pub(crate) const TEXT: &str = include_str!("kv_calibration/text.txt");
/// Formats from the smallest up; a rotation costs time at every token and so comes after none. The last is taken without being
/// measured.
const CANDIDATES: [(PageFormat, Rotation); 5] = [
    (PageFormat::new(KeyFormat::Q4, ValueFormat::Q4), Rotation::None),
    (PageFormat::new(KeyFormat::Q4, ValueFormat::Q4), Rotation::Hadamard),
    (PageFormat::new(KeyFormat::Q6, ValueFormat::Q4), Rotation::None),
    (PageFormat::new(KeyFormat::Q8, ValueFormat::Q4), Rotation::None),
    (PageFormat::Q8, Rotation::None),
];
/// Maximum mean Kullback-Leibler divergence in nats, with all but the last few tokens in a format. In use, the last 2,048 tokens
/// have a finer one.
pub(crate) const DIVERGENCE_MAX: f64 = 0.005;
/// Position of the first prediction that is compared: earlier ones have little context.
const SCORED_FROM: usize = 192;
/// Maximum number of tokens that are read: the first load of a model waits for it.
pub(crate) const READ_MAX: usize = 448;
/// Maximum number of predictions that are compared: logits of a large vocabulary take much memory.
const SCORED_MAX: usize = 64;

/// The format of a model's cold pages, and the measurements behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct ColdFormat {
    pub format: PageFormat,
    /// The basis in which all pages are stored.
    pub rotation: Rotation,
    /// Formats that were tried, with the divergence of the predictions from those with half floats.
    pub measured: Vec<(PageFormat, Rotation, f64)>,
}

/// `q4 (q4 diverges by 0.0082, q4 rotated by 0.0042)`
impl fmt::Display for ColdFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |format: PageFormat, rotation| match rotation {
            Rotation::None => format.to_string(),
            Rotation::Hadamard => format!("{format} rotated"),
        };
        write!(f, "{} (", named(self.format, self.rotation))?;
        for (i, (format, rotation, found)) in self.measured.iter().enumerate() {
            let verb = if i == 0 { "diverges by" } else { "by" };
            write!(f, "{}{} {verb} {found:.4}", if i == 0 { "" } else { ", " }, named(*format, *rotation))?;
        }
        write!(f, ")")
    }
}

impl ColdFormat {
    pub fn to_json(&self) -> Value {
        let is_rotated = |rotation| rotation == Rotation::Hadamard;
        let measured = self.measured.iter().map(|(format, rotation, found)| {
            json!({ "format": format.to_string(), "rotated": is_rotated(*rotation), "kld": found })
        });
        json!({
            "cold": self.format.to_string(),
            "rotated": is_rotated(self.rotation),
            "measured": measured.collect::<Vec<_>>(),
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let format = |value: &Value| PageFormat::all().find(|format| Some(&*format.to_string()) == value.as_str());
        let rotation = |value: &Value| Some(if value.as_bool()? { Rotation::Hadamard } else { Rotation::None });
        let entry =
            |entry: &Value| Some((format(&entry["format"])?, rotation(&entry["rotated"])?, entry["kld"].as_f64()?));
        let measured = value["measured"].as_array()?.iter().map(entry).collect::<Option<Vec<_>>>()?;
        Some(Self { format: format(&value["cold"])?, rotation: rotation(&value["rotated"])?, measured })
    }

    /// Reads what was measured for the model of a file, from the builder's `calibration_folder`.
    pub fn of_file(gguf: &Gguf, calibration_folder: &Path) -> Option<Self> {
        Self::read(calibration_folder, &fingerprint(gguf))
    }

    pub(crate) fn read(folder: &Path, fingerprint: &[u8; 32]) -> Option<Self> {
        let text = fs::read_to_string(folder.join(file_name(fingerprint))).ok()?;
        Self::from_json(&serde_json::from_str(&text).ok()?)
    }

    pub(crate) fn write(&self, folder: &Path, fingerprint: &[u8; 32]) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        fs::write(folder.join(file_name(fingerprint)), format!("{:#}\n", self.to_json()))
    }
}

fn file_name(fingerprint: &[u8; 32]) -> String {
    format!("{}.json", model_name(fingerprint))
}

/// Returns what files of measurements are named by.
pub(crate) fn model_name(fingerprint: &[u8; 32]) -> String {
    fingerprint[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

impl ColdFormat {
    /// Measures which format the model tolerates for its cold pages: a few readings of a short text.
    pub fn measure(core: &mut Core, tokenizer: &Tokenizer) -> Result<Self, EvaluateError> {
        let mut tokens = encode_text(tokenizer, TEXT);
        tokens.truncate(READ_MAX);
        let exact = predictions(core, &tokens, PageFormat::F16, Rotation::None)?;
        let mut measured = Vec::new();
        for (format, rotation) in CANDIDATES {
            if format == PageFormat::Q8 {
                return Ok(Self { format, rotation, measured });
            }
            let found = predictions(core, &tokens, format, rotation)?;
            let mean = mean_divergence(&exact, &found);
            measured.push((format, rotation, mean));
            if mean <= DIVERGENCE_MAX {
                return Ok(Self { format, rotation, measured });
            }
        }
        unreachable!("the last candidate is taken")
    }
}

/// Returns logits at some positions of a text whose tokens are in half floats for one page and then in `cold`.
fn predictions(
    core: &mut Core,
    tokens: &[TokenId],
    cold: PageFormat,
    rotation: Rotation,
) -> Result<Vec<Vec<f32>>, EvaluateError> {
    core.set_cold(cold, rotation);
    let tiers = Tiers { hot_tokens: 16, warm: cold, cold, warm_tokens: 16, ..Tiers::with_cold(cold) };
    let (scored, every) = scored(tokens);
    let mut all = Vec::new();
    core.evaluate_in(&tiers, tokens, scored, |position, logits| {
        if position.is_multiple_of(every) {
            all.push(logits.to_vec());
        }
    })?;
    Ok(all)
}

/// Returns which predictions of a text are looked at: those in a range, and of these every so many.
pub(crate) fn scored(tokens: &[TokenId]) -> (Range<usize>, usize) {
    let scored = SCORED_FROM.min(tokens.len() / 2)..tokens.len();
    let every = scored.len().div_ceil(SCORED_MAX);
    (scored, every)
}

pub(crate) fn mean_divergence(exact: &[Vec<f32>], found: &[Vec<f32>]) -> f64 {
    exact.iter().zip(found).map(|(exact, found)| divergence(exact, found)).sum::<f64>() / exact.len() as f64
}

/// Returns the Kullback-Leibler divergence of the second prediction from the first.
fn divergence(exact: &[f32], found: &[f32]) -> f64 {
    let total = |logits: &[f32]| {
        let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        largest + logits.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum::<f64>().ln()
    };
    let (exact_total, found_total) = (total(exact), total(found));
    exact
        .iter()
        .zip(found)
        .map(|(exact, found)| {
            let (exact, found) = (f64::from(*exact) - exact_total, f64::from(*found) - found_total);
            exact.exp() * (exact - found)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_predictions_do_not_diverge_and_others_do() {
        let logits = [1.0, 2.0, 5.0, -1.0];
        assert!(divergence(&logits, &logits).abs() < 1e-12);
        let shifted = logits.map(|logit| logit + 3.0);
        assert!(divergence(&logits, &shifted).abs() < 1e-6, "a constant changes no probability");
        let (sure, uniform) = ([40.0, 0.0], [0.0, 0.0]);
        assert!((divergence(&sure, &uniform) - 2f64.ln()).abs() < 1e-6);
    }

    #[test]
    fn a_measured_format_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let (format, rotation) = CANDIDATES[1];
        let measured = vec![(CANDIDATES[0].0, CANDIDATES[0].1, 0.25), (format, rotation, 0.001)];
        let found = ColdFormat { format, rotation, measured };
        assert_eq!(found.to_string(), "q4 rotated (q4 diverges by 0.2500, q4 rotated by 0.0010)");
        assert_eq!(ColdFormat::read(folder.path(), &[7; 32]), None);
        found.write(folder.path(), &[7; 32]).unwrap();
        assert_eq!(ColdFormat::read(folder.path(), &[7; 32]), Some(found));
        assert_eq!(ColdFormat::read(folder.path(), &[8; 32]), None);
    }
}
