//! Gemma 3: norms before and after each block, QK norm, GeGLU, and attention within a window in most layers, which rotate with
//! a base of their own.

use ruvllm_kernels::ops::RopeStyle;

use super::{Architecture, gemma2};
use crate::config::Config;
use crate::error::LoadError;
use crate::keys::Keys;
use crate::rope::{RopeConfig, RopeScaling};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "gemma3", describe };

/// Layers from one that attends to everything to the next.
const PERIOD: usize = 6;
/// Of layers with a window, where a file does not say.
const WINDOW_BASE: f32 = 10_000.0;
/// Only the largest model scales scores by the width of the residual stream; files do not say it.
const LARGEST_LAYERS: usize = 62;

fn describe(keys: &Keys<'_>) -> Result<Config, LoadError> {
    let mut all = keys.attention(RopeStyle::Halves)?;
    all.qk_norm = true;
    all.post_norm = true;
    if keys.layers()? == LARGEST_LAYERS {
        all.scale = gemma2::largest_scale(keys, all.heads)?;
    }
    let mut within = all.clone();
    within.window = keys.optional_window()?;
    let base = keys.positive_float("rope.freq_base_swa", Some(WINDOW_BASE))?;
    within.rope = within.rope.map(|rope| RopeConfig { base: base.into(), scaling: RopeScaling::None, ..rope });
    if within.window.is_none() {
        within = all.clone();
    }
    gemma2::decoder(keys, PERIOD, &within, &all)
}
