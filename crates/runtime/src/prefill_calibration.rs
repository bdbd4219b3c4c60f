//! Measures whether a model's prompts can be computed in bf16, once for each model and machine: its predictions must stay the
//! same, and it must be faster.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fmt, fs, io};

use ruvllm_engine::{Core, EvaluateError, TokenId};
use ruvllm_model::formats::gguf::Gguf;
use ruvllm_text::Tokenizer;
use serde_json::{Value, json};

use crate::builder::fingerprint;
use crate::encode::encode_text;
use crate::kv_calibration::{DIVERGENCE_MAX, READ_MAX, TEXT, mean_divergence, model_name, scored};

/// How much is read to find out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Tokens of the text whose predictions are compared.
    pub tokens_max: usize,
    /// Lengths of prompts that are tried.
    lengths: &'static [usize],
    /// Times that each is tried in both ways, of which the shortest counts.
    attempts: usize,
}

/// Weights of more bytes than this make a model large: it reads so slowly that it is given less to read.
const LARGE_BYTES: usize = 800_000_000;
const USUAL: Effort = Effort { tokens_max: READ_MAX, lengths: &[32, 64, 128, 256, READ_MAX], attempts: 3 };
const FOR_LARGE: Effort = Effort { tokens_max: 256, lengths: &[64, 256], attempts: 1 };

impl Effort {
    /// Depends on the weights alone, so that the same model is measured in the same way every time.
    pub(crate) fn for_weights(bytes: usize) -> Self {
        if bytes > LARGE_BYTES { FOR_LARGE } else { USUAL }
    }
}

/// What was measured of fast prompts.
#[derive(Clone, Debug, PartialEq)]
pub struct FastPrefill {
    /// Divergence of predictions from those of exact prompts.
    pub divergence: f64,
    /// From how many tokens on it is faster, and so used; `None` is never, also where predictions diverge too much.
    pub rows_min: Option<usize>,
}

impl FastPrefill {
    /// Reads a short text in both ways, a few times. Leaves the engine with what it found.
    pub(crate) fn measure(core: &mut Core, tokenizer: &Tokenizer, effort: Effort) -> Result<Self, EvaluateError> {
        let mut tokens = encode_text(tokenizer, TEXT);
        tokens.truncate(effort.tokens_max);
        let exact = predictions(core, &tokens, None)?;
        let fast = predictions(core, &tokens, Some(0))?;
        let divergence = mean_divergence(&exact, &fast);
        let rows_min = if divergence <= DIVERGENCE_MAX { shortest_gain(core, &tokens, effort)? } else { None };
        core.set_fast_rows_min(rows_min);
        Ok(Self { divergence, rows_min })
    }

    /// Reads what was measured for the model of a file with these kernels on so many threads, from the builder's
    /// `calibration_folder`.
    pub fn of_file(gguf: &Gguf, calibration_folder: &Path, kernels: &str, threads: usize) -> Option<Self> {
        Self::read(calibration_folder, &fingerprint(gguf), &machine_name(kernels, threads))
    }

    pub fn to_json(&self) -> Value {
        json!({ "kld": self.divergence, "rows_min": self.rows_min })
    }

    /// Reads what was measured before, for this model on this machine.
    pub(crate) fn read(folder: &Path, model: &[u8; 32], machine: &str) -> Option<Self> {
        let text = fs::read_to_string(path(folder, model, machine)).ok()?;
        let value: Value = serde_json::from_str(&text).ok()?;
        let rows_min = value["rows_min"].as_u64().and_then(|rows| usize::try_from(rows).ok());
        Some(Self { divergence: value["kld"].as_f64()?, rows_min })
    }

    pub(crate) fn write(&self, folder: &Path, model: &[u8; 32], machine: &str) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        fs::write(path(folder, model, machine), format!("{:#}\n", self.to_json()))
    }
}

/// `fast from 64 tokens on (predictions differ by 0.0012 nats)`
impl fmt::Display for FastPrefill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rows_min {
            Some(rows) => write!(f, "fast from {rows} tokens on")?,
            None => write!(f, "exact")?,
        }
        write!(f, " (predictions differ by {:.4} nats)", self.divergence)
    }
}

/// Names what computes: what was measured with other kernels, on other threads or by another version does not count.
pub(crate) fn machine_name(kernels: &str, threads: usize) -> String {
    format!("{kernels}-{threads}-{}", env!("CARGO_PKG_VERSION"))
}

fn path(folder: &Path, model: &[u8; 32], machine: &str) -> PathBuf {
    folder.join(format!("{}.prefill-{machine}.json", model_name(model)))
}

fn predictions(core: &mut Core, tokens: &[TokenId], fast: Option<usize>) -> Result<Vec<Vec<f32>>, EvaluateError> {
    core.set_fast_rows_min(fast);
    let (range, every) = scored(tokens);
    let mut all = Vec::new();
    core.evaluate(tokens, range, |position, logits| {
        if position.is_multiple_of(every) {
            all.push(logits.to_vec());
        }
    })?;
    Ok(all)
}

/// Returns the shortest of some prompts that the fast way is faster for.
fn shortest_gain(core: &mut Core, tokens: &[TokenId], effort: Effort) -> Result<Option<usize>, EvaluateError> {
    for length in effort.lengths.iter().copied().filter(|length| *length <= tokens.len()) {
        let mut shortest = [Duration::MAX; 2];
        for _ in 0..effort.attempts {
            for (shortest, fast) in shortest.iter_mut().zip([None, Some(0)]) {
                core.set_fast_rows_min(fast);
                let began = Instant::now();
                core.evaluate(&tokens[..length], length - 1..length, |_, _| {})?;
                *shortest = began.elapsed().min(*shortest);
            }
        }
        if shortest[1] < shortest[0] {
            return Ok(Some(length));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        for rows_min in [None, Some(64)] {
            let found = FastPrefill { divergence: 0.0025, rows_min };
            found.write(folder.path(), &[7; 32], "amx-2").unwrap();
            assert_eq!(FastPrefill::read(folder.path(), &[7; 32], "amx-2"), Some(found));
        }
        assert_eq!(FastPrefill::read(folder.path(), &[7; 32], "amx-4"), None);
        assert_eq!(FastPrefill::read(folder.path(), &[8; 32], "amx-2"), None);
    }
}
