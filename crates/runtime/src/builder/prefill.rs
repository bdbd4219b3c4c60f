//! How prompts are computed.

use std::fmt;
use std::str::FromStr;

/// How rows of prompts are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefill {
    /// As generated tokens are.
    #[default]
    Exact,
    /// In bf16, where the machine has it.
    Fast,
    /// In bf16 where that was measured to be faster and to leave predictions as they are.
    Auto,
}

/// From how many tokens on, apart from cached ones, a prompt is computed in the fast way where that was asked for without being
/// measured: for a few rows, unpacking the weights costs more than it saves.
pub(super) const FAST_ROWS_MIN: usize = 64;

impl FromStr for Prefill {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "exact" => Ok(Self::Exact),
            "fast" => Ok(Self::Fast),
            "auto" => Ok(Self::Auto),
            other => Err(format!("'{other}' is no way to compute prompts: use auto, fast or exact")),
        }
    }
}

impl fmt::Display for Prefill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exact => "exact",
            Self::Fast => "fast",
            Self::Auto => "auto",
        })
    }
}
