//! How keys and values are stored.

use ruvllm_engine::{Tiers, TiersError};
use ruvllm_runner::PageFormat;

/// The formats of KV pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvChoice {
    Tiers(Tiers),
    /// Half floats for the last tokens, then 8 bits, and beyond 2,048 tokens the smallest format that the model tolerates, which
    /// is measured when a model is first loaded.
    Auto,
}

impl KvChoice {
    /// Returns the tiers to start with. What is not measured yet has a format that every model tolerates.
    pub(super) fn tiers(self) -> Tiers {
        match self {
            Self::Tiers(tiers) => tiers,
            Self::Auto => Tiers::with_cold(PageFormat::Q8),
        }
    }
}

impl std::str::FromStr for KvChoice {
    type Err = TiersError;

    fn from_str(text: &str) -> Result<Self, TiersError> {
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::Tiers) }
    }
}
