//! From the settings of transformers to GGUF's metadata.

use std::collections::HashSet;

use serde_json::{Value as Json, json};

use super::HuggingFaceError;
use super::config::{Rope, Settings};
use super::weights::Weights;
use crate::formats::gguf::Value;
use crate::formats::gguf::write::Header;

const SLIDING: &str = "sliding_attention";
const FULL: &str = "full_attention";

/// Metadata under the keys of an architecture.
pub(super) struct Keys<'a> {
    pub header: &'a mut Header,
    pub architecture: &'static str,
    pub settings: &'a Settings,
    pub weights: &'a Weights<'a>,
}

impl Keys<'_> {
    fn set(&mut self, key: &str, value: Value<'_>) {
        self.header.set(&format!("{}.{key}", self.architecture), value);
    }

    fn set_count(&mut self, key: &str, count: u32) {
        self.set(key, Value::U32(count));
    }

    fn set_float(&mut self, key: &str, float: f32) {
        self.set(key, Value::F32(float));
    }

    fn copy_count(&mut self, key: &str, settings: &[&str]) -> Result<u32, HuggingFaceError> {
        let count = self.settings.count(settings)?;
        self.set_count(key, count);
        Ok(count)
    }

    fn copy_optional_float(&mut self, key: &str, setting: &str) -> Result<(), HuggingFaceError> {
        if let Some(float) = self.settings.optional_float(setting)? {
            self.set_float(key, float);
        }
        Ok(())
    }

    fn set_bools(&mut self, key: &str, flags: &[bool]) {
        self.header.set_bools(&format!("{}.{key}", self.architecture), flags);
    }

    /// Sets a count that may differ between layers.
    fn set_counts(&mut self, key: &str, counts: &[u32]) {
        match counts {
            [first, rest @ ..] if rest.iter().all(|count| count == first) => self.set_count(key, *first),
            _ => self.header.set_numbers(&format!("{}.{key}", self.architecture), counts),
        }
    }

    fn layers(&self) -> Result<usize, HuggingFaceError> {
        let layers = self.settings.count(&["num_hidden_layers"])? as usize;
        // Loops over layers must not be longer than the file justifies.
        let last = format!("layers.{}.", layers.saturating_sub(1));
        match self.weights.iter().any(|(name, _)| name.starts_with(&last)) {
            true if layers <= self.weights.len() => Ok(layers),
            _ => Err(Settings::refusal("num_hidden_layers", &json!(layers), "is more than there are weights of")),
        }
    }

    /// Sets all keys.
    pub fn fill(&mut self) -> Result<(), HuggingFaceError> {
        let is_gemma4 = self.architecture == "gemma4";
        let layers = self.layers()?;
        self.set_count("block_count", layers as u32);
        let context = self.settings.optional_count("max_position_embeddings")?;
        match context {
            Some(context) => self.set_count("context_length", context),
            // What transformers takes where Gemma does not say it.
            None if self.architecture.starts_with("gemma") => self.set_count("context_length", 131_072),
            None => return Err(HuggingFaceError::MissingSetting { key: "max_position_embeddings".to_owned() }),
        }
        let hidden = self.copy_count("embedding_length", &["hidden_size"])?;
        if let Some(rows) = self.weights.rows("embed_tokens.weight") {
            self.set_count("vocab_size", rows);
        }
        if !is_gemma4 {
            let heads = self.heads(hidden)?;
            self.rope(heads, "rope.freq_base", self.settings.rope(FULL))?;
            self.feed_forward()?;
        }
        let epsilon = self.settings.optional_float("rms_norm_eps")?.or(self.settings.optional_float("norm_eps")?);
        self.set_float("attention.layer_norm_rms_epsilon", epsilon.unwrap_or(1e-6));
        self.own_keys(layers)
    }

    /// Sets the heads of attention; returns the length of one.
    fn heads(&mut self, hidden: u32) -> Result<u32, HuggingFaceError> {
        let shape = self.shape_of_heads()?;
        let heads = match (self.settings.optional_count("num_attention_heads")?, shape) {
            (Some(heads), _) => heads,
            (None, Some((heads, ..))) => heads,
            (None, None) => self.settings.count(&["num_attention_heads"])?,
        };
        if heads == 0 {
            return Err(Settings::refusal("num_attention_heads", &json!(0), "must be at least 1"));
        }
        let kv_heads = match (self.settings.optional_count("num_key_value_heads")?, shape) {
            (Some(kv_heads), _) => kv_heads,
            (None, Some((_, kv_heads, _))) => kv_heads,
            (None, None) => heads,
        };
        self.set_count("attention.head_count", heads);
        if let "lfm2" | "lfm2moe" = self.architecture {
            let types = self.layer_kinds("full_attn_idxs", "conv")?;
            let of_layers: Vec<u32> = types.iter().map(|kind| if *kind == FULL { kv_heads } else { 0 }).collect();
            self.header.set_numbers(
                &format!("{}.attention.head_count_kv", self.architecture),
                &of_layers.iter().map(|heads| *heads as i32).collect::<Vec<_>>(),
            );
        } else {
            self.set_count("attention.head_count_kv", kv_heads);
        }
        let head_dim = self.settings.optional_count("head_dim")?.or(shape.map(|(.., head_dim)| head_dim));
        let is_stated = self.settings.get("head_dim").is_some() || self.architecture == "gemma3";
        if let Some(head_dim) = head_dim.filter(|_| is_stated) {
            self.set_count("attention.key_length", head_dim);
            self.set_count("attention.value_length", head_dim);
        }
        Ok(head_dim.unwrap_or(hidden / heads))
    }

    /// Returns heads, KV heads and their length where the norm of queries tells.
    fn shape_of_heads(&self) -> Result<Option<(u32, u32, u32)>, HuggingFaceError> {
        if self.architecture != "gemma3" {
            return Ok(None);
        }
        let rows = |name: &str| self.weights.layer_rows(0, name);
        let head_dim = rows("self_attn.q_norm.weight")?;
        Ok(Some((rows("self_attn.q_proj.weight")? / head_dim, rows("self_attn.k_proj.weight")? / head_dim, head_dim)))
    }

    /// Returns the kind of each layer: as it is named, or full attention where an older setting lists it.
    fn layer_kinds(&self, listed: &str, otherwise: &'static str) -> Result<Vec<&str>, HuggingFaceError> {
        if let Some(types) = self.settings.layer_types()? {
            return Ok(types);
        }
        let missing = || HuggingFaceError::MissingSetting { key: "layer_types".to_owned() };
        let indices = self.settings.get(listed).and_then(Json::as_array).ok_or_else(missing)?;
        let full: HashSet<u64> = indices.iter().filter_map(Json::as_u64).collect();
        Ok((0..self.layers()? as u64).map(|layer| if full.contains(&layer) { FULL } else { otherwise }).collect())
    }

    fn feed_forward(&mut self) -> Result<(), HuggingFaceError> {
        match self.architecture {
            "qwen35moe" => Ok(()),
            // The setting is not what the layers have.
            "lfm2" => {
                let width = self.weights.layer_rows(0, "feed_forward.w1.weight")?;
                self.set_count("feed_forward_length", width);
                Ok(())
            }
            _ => self.copy_count("feed_forward_length", &["intermediate_size"]).map(drop),
        }
    }

    /// Sets how positions are rotated.
    fn rope(&mut self, head_dim: u32, base_key: &str, rope: Rope<'_>) -> Result<(), HuggingFaceError> {
        let base = rope.base()?.unwrap_or(if self.architecture == "gemma3" { 1_000_000.0 } else { 10_000.0 });
        self.set_float(base_key, base);
        let usual_part = if self.architecture.starts_with("qwen35") { 0.25 } else { 1.0 };
        let part = rope.rotated_part()?.unwrap_or(usual_part);
        if !(part > 0.0 && part <= 1.0) {
            return Err(Settings::refusal("partial_rotary_factor", &json!(part), "must be above 0 and at most 1"));
        }
        let always = ["llama", "mistral3", "granite", "smollm3", "phi3"].contains(&self.architecture);
        if always || part < 1.0 {
            self.set_count("rope.dimension_count", (head_dim as f32 * part) as u32);
        }
        match rope.kind() {
            "default" | "mrope" => Ok(()),
            // The divisors of frequencies are a tensor.
            "llama3" if self.architecture == "llama" => Ok(()),
            "longrope" | "su" if self.architecture == "phi3" => self.longrope(rope),
            "linear" => {
                self.set("rope.scaling.type", Value::String("linear"));
                self.set_float("rope.scaling.factor", rope.required_float("factor")?);
                Ok(())
            }
            "yarn" => self.yarn(rope),
            other => Err(Settings::refusal("rope_type", &json!(other), "is not supported for this architecture")),
        }
    }

    fn yarn(&mut self, rope: Rope<'_>) -> Result<(), HuggingFaceError> {
        let factor = rope.required_float("factor")?;
        self.set("rope.scaling.type", Value::String("yarn"));
        self.set_float("rope.scaling.factor", factor);
        self.set_count("rope.scaling.original_context_length", rope.original_context()?);
        for (key, name) in [("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")] {
            if let Some(turns) = rope.float(name)? {
                self.set_float(&format!("rope.scaling.{key}"), turns);
            }
        }
        if let Some(amplitude) = rope.float("attention_factor")? {
            // Readers multiply by the usual one.
            self.set_float("rope.scaling.attn_factor", amplitude / (0.1 * factor.ln() + 1.0));
        } else if let Some(all) = rope.float("mscale_all_dim")? {
            if rope.float("mscale")?.is_some_and(|mscale| mscale != 1.0) {
                return Err(Settings::refusal(
                    "mscale",
                    &json!(rope.float("mscale")?),
                    "is not supported: it must be 1",
                ));
            }
            self.set_float("rope.scaling.yarn_log_multiplier", all);
        }
        // Files do not say it, and one architecture differs.
        let truncates = rope.get("truncate").and_then(Json::as_bool).unwrap_or(true);
        match truncates == (self.architecture != "gpt-oss") {
            true => Ok(()),
            false => Err(Settings::refusal("truncate", &json!(truncates), "is not supported for this architecture")),
        }
    }

    fn longrope(&mut self, rope: Rope<'_>) -> Result<(), HuggingFaceError> {
        let (context, original) = (self.settings.count(&["max_position_embeddings"])?, rope.original_context()?);
        let stretched = f64::from(context) / f64::from(original.max(1));
        let usual =
            if stretched <= 1.0 { 1.0 } else { (1.0 + stretched.ln() / f64::from(original).ln()).sqrt() as f32 };
        self.set_float("rope.scaling.attn_factor", rope.float("attention_factor")?.unwrap_or(usual));
        Ok(())
    }

    /// Sets what only this architecture has.
    fn own_keys(&mut self, layers: usize) -> Result<(), HuggingFaceError> {
        match self.architecture {
            "llama" | "mistral3" => {
                if let Some(window) = self.settings.optional_count("sliding_window")? {
                    self.set_count("attention.sliding_window", window);
                }
                if let Some(beta) = self.settings.rope(FULL).float("llama_4_scaling_beta")? {
                    self.set_float("attention.temperature_scale", beta);
                }
                Ok(())
            }
            "qwen2" | "qwen3" => self.refuse_windows(),
            "qwen3moe" => {
                self.refuse_windows()?;
                self.settings.require("decoder_sparse_step", &json!(1))?;
                self.settings.require("mlp_only_layers", &json!([]))?;
                self.experts(&["num_experts_per_tok"], "moe_intermediate_size")
            }
            "gemma2" => {
                self.copy_optional_float("attn_logit_softcapping", "attn_logit_softcapping")?;
                self.copy_optional_float("final_logit_softcapping", "final_logit_softcapping")?;
                self.windows(layers, 2)
            }
            "gemma3" => {
                self.copy_optional_float("final_logit_softcapping", "final_logit_softcapping")?;
                let rope = self.settings.rope(SLIDING);
                let local = self.settings.optional_float("rope_local_base_freq")?;
                // Without settings for these layers, what is found are those of all.
                let nested = self.settings.get("rope_parameters").is_some_and(|rope| rope.get(SLIDING).is_some());
                let base = if nested { rope.base()? } else { local };
                self.set_float("rope.freq_base_swa", base.unwrap_or(10_000.0));
                self.windows(layers, 6)
            }
            "gemma4" => self.gemma4(layers),
            "gpt-oss" => {
                self.settings.require("swiglu_alpha", &json!(1.702))?;
                self.settings.require("swiglu_limit", &json!(7.0))?;
                self.experts(&["num_experts_per_tok", "experts_per_token"], "intermediate_size")?;
                self.windows(layers, 2)
            }
            "granite" => {
                self.copy_optional_float("attention.scale", "attention_multiplier")?;
                self.copy_optional_float("embedding_scale", "embedding_multiplier")?;
                self.copy_optional_float("residual_scale", "residual_multiplier")?;
                self.copy_optional_float("logit_scale", "logits_scaling")
            }
            "phi3" => {
                let original = self.settings.rope(FULL).original_context()?;
                self.set_count("rope.scaling.original_context_length", original);
                let window = self.settings.optional_count("sliding_window")?;
                self.set_count("attention.sliding_window", window.unwrap_or(0));
                Ok(())
            }
            "smollm3" => {
                let usual: Vec<u32> = (1..=layers).map(|number| u32::from(!number.is_multiple_of(4))).collect();
                self.refuse_windows()?;
                self.settings.require("no_rope_layers", &json!(usual))
            }
            "lfm2" => self.copy_count("shortconv.l_cache", &["conv_L_cache"]).map(drop),
            "lfm2moe" => {
                self.settings.require("routed_scaling_factor", &json!(1.0))?;
                self.copy_count("leading_dense_block_count", &["num_dense_layers"])?;
                self.set_count("expert_gating_func", 2);
                self.copy_count("shortconv.l_cache", &["conv_L_cache"])?;
                self.experts(&["num_experts_per_tok"], "moe_intermediate_size")
            }
            _ => self.qwen35(),
        }
    }

    fn experts(&mut self, used: &[&str], width: &str) -> Result<(), HuggingFaceError> {
        self.settings.require("norm_topk_prob", &json!(true))?;
        self.copy_count("expert_count", &["num_experts", "num_local_experts"])?;
        self.copy_count("expert_used_count", used)?;
        self.copy_count("expert_feed_forward_length", &[width]).map(drop)
    }

    /// Refuses attention within a window where the architecture has none.
    fn refuse_windows(&self) -> Result<(), HuggingFaceError> {
        match self.settings.layer_types()?.is_some_and(|types| types.contains(&SLIDING)) {
            true => Err(Settings::refusal("layer_types", &json!(SLIDING), "is not supported for this architecture")),
            false => Ok(()),
        }
    }

    /// Sets the window, and which layers have it unless it is all but each last of `period`.
    fn windows(&mut self, layers: usize, period: usize) -> Result<(), HuggingFaceError> {
        self.copy_count("attention.sliding_window", &["sliding_window"])?;
        let periodic = |period: usize| (1..=layers).map(|number| !number.is_multiple_of(period)).collect::<Vec<_>>();
        let stated = self.settings.optional_count("sliding_window_pattern")?.filter(|period| *period > 0);
        let windowed = match self.settings.layer_types()? {
            Some(types) => types.iter().map(|kind| *kind == SLIDING).collect(),
            None => periodic(stated.map_or(period, |period| period as usize)),
        };
        if windowed != periodic(period) {
            self.set_bools("attention.sliding_window_pattern", &windowed);
        }
        Ok(())
    }

    fn qwen35(&mut self) -> Result<(), HuggingFaceError> {
        let rope = self.settings.rope(FULL);
        let sections = rope.get("mrope_section").and_then(Json::as_array);
        if let Some(sections) = sections {
            let mut sections: Vec<i32> =
                sections.iter().map(|one| one.as_i64().and_then(|one| i32::try_from(one).ok()).unwrap_or(0)).collect();
            sections.resize(4, 0);
            self.header.set_numbers(&format!("{}.rope.dimension_sections", self.architecture), &sections);
        }
        self.copy_count("ssm.conv_kernel", &["linear_conv_kernel_dim"])?;
        self.copy_count("ssm.state_size", &["linear_key_head_dim"])?;
        self.copy_count("ssm.group_count", &["linear_num_key_heads"])?;
        let heads = self.copy_count("ssm.time_step_rank", &["linear_num_value_heads"])?;
        let inner = heads.checked_mul(self.settings.count(&["linear_value_head_dim"])?);
        let too_many = || Settings::refusal("linear_num_value_heads", &json!(heads), "is more than any model has");
        self.set_count("ssm.inner_size", inner.ok_or_else(too_many)?);
        let interval = self.settings.optional_count("full_attention_interval")?.unwrap_or(4);
        self.set_count("full_attention_interval", interval);
        if let Some(types) = self.settings.layer_types()? {
            let recurrent: Vec<bool> = types.iter().map(|kind| *kind != FULL).collect();
            self.set_bools("attention.recurrent_layers", &recurrent);
        }
        if self.architecture == "qwen35moe" {
            self.copy_count("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"])?;
            self.experts(&["num_experts_per_tok"], "moe_intermediate_size")?;
        }
        Ok(())
    }

    /// Sets the keys of layers that differ in their heads. Shapes tell more than the settings, which were renamed.
    fn gemma4(&mut self, layers: usize) -> Result<(), HuggingFaceError> {
        let missing = || HuggingFaceError::MissingSetting { key: "layer_types".to_owned() };
        let types = self.settings.layer_types()?.ok_or_else(missing)?;
        let windowed: Vec<bool> = types.iter().map(|kind| *kind == SLIDING).collect();
        let head_dim = |layer: usize| self.weights.layer_rows(layer, "self_attn.q_norm.weight");
        let first = |wanted: bool| windowed.iter().position(|is_windowed| *is_windowed == wanted).unwrap_or(0);
        let (within, all) = (head_dim(first(true))?, head_dim(first(false))?);
        let mut kv_heads = Vec::with_capacity(layers);
        for (layer, is_windowed) in windowed.iter().enumerate() {
            // Layers without keys of their own read those of an earlier one of their kind.
            let name = "self_attn.k_proj.weight";
            let own = self.weights.rows(&format!("layers.{layer}.{name}"));
            let rows = match own {
                Some(rows) => rows,
                None => self.weights.layer_rows(first(*is_windowed), name)?,
            };
            kv_heads.push(rows / head_dim(layer)?);
        }
        let widths: Result<Vec<u32>, _> =
            (0..layers).map(|layer| self.weights.layer_rows(layer, "mlp.gate_proj.weight")).collect();
        self.set_counts("feed_forward_length", &widths?);
        self.copy_count("attention.head_count", &["num_attention_heads"])?;
        self.set_counts("attention.head_count_kv", &kv_heads);
        for (suffix, length, kind) in [("", all, FULL), ("_swa", within, SLIDING)] {
            for key in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
                self.set_count(&format!("{key}{suffix}"), length);
            }
            let rope = self.settings.rope(kind);
            self.set_float(&format!("rope.freq_base{suffix}"), rope.base()?.unwrap_or(10_000.0));
            if !["default", if kind == FULL { "proportional" } else { "default" }].contains(&rope.kind()) {
                return Err(Settings::refusal(
                    "rope_type",
                    &json!(rope.kind()),
                    "is not supported for this architecture",
                ));
            }
        }
        self.copy_count("attention.sliding_window", &["sliding_window"])?;
        self.set_bools("attention.sliding_window_pattern", &windowed);
        let shared = self.settings.optional_count("num_kv_shared_layers")?.unwrap_or(0);
        self.set_count("attention.shared_kv_layers", shared);
        let inputs = self.settings.optional_count("hidden_size_per_layer_input")?.unwrap_or(0);
        self.set_count("embedding_length_per_layer_input", inputs);
        self.copy_optional_float("final_logit_softcapping", "final_logit_softcapping")?;
        if self.settings.flag("enable_moe_block")? == Some(true) {
            self.experts(&["top_k_experts"], "moe_intermediate_size")?;
        }
        Ok(())
    }
}
