//! Measures whether a model's prompts can be computed in bf16, once for each model and machine: its predictions must stay the
//! same, and it must be faster.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use ruvllm_engine::{Core, EvaluateError, TokenId};
use ruvllm_text::Tokenizer;
use serde_json::{Value, json};

use crate::encode::encode_text;
use crate::kv_calibration::{DIVERGENCE_MAX, READ_MAX, TEXT, mean_divergence, model_name, scored};

/// Lengths of prompts that are tried.
const LENGTHS: [usize; 5] = [32, 64, 128, 256, READ_MAX];
/// Times that each is tried in both ways, of which the shortest counts.
const ATTEMPTS: usize = 3;

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
    pub(crate) fn measure(core: &mut Core, tokenizer: &Tokenizer) -> Result<Self, EvaluateError> {
        let mut tokens = encode_text(tokenizer, TEXT);
        tokens.truncate(READ_MAX);
        let exact = predictions(core, &tokens, None)?;
        let fast = predictions(core, &tokens, Some(0))?;
        let divergence = mean_divergence(&exact, &fast);
        let rows_min = if divergence <= DIVERGENCE_MAX { shortest_gain(core, &tokens)? } else { None };
        core.set_fast_rows_min(rows_min);
        Ok(Self { divergence, rows_min })
    }

    /// Reads what was measured before, for this model with these kernels on so many threads.
    pub(crate) fn read(folder: &Path, model: &[u8; 32], machine: &str) -> Option<Self> {
        let text = fs::read_to_string(path(folder, model, machine)).ok()?;
        let value: Value = serde_json::from_str(&text).ok()?;
        let rows_min = value["rows_min"].as_u64().and_then(|rows| usize::try_from(rows).ok());
        Some(Self { divergence: value["kld"].as_f64()?, rows_min })
    }

    pub(crate) fn write(&self, folder: &Path, model: &[u8; 32], machine: &str) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let value = json!({ "kld": self.divergence, "rows_min": self.rows_min });
        fs::write(path(folder, model, machine), format!("{value:#}\n"))
    }
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
fn shortest_gain(core: &mut Core, tokens: &[TokenId]) -> Result<Option<usize>, EvaluateError> {
    for length in LENGTHS.into_iter().filter(|length| *length <= tokens.len()) {
        let mut shortest = [Duration::MAX; 2];
        for _ in 0..ATTEMPTS {
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
