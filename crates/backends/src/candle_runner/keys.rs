//! The metadata that candle's code reads, or would have to, checked before it does.

use std::fmt::Display;

use candle_core::quantized::gguf_file::Value;
use ruvllm_model::formats::gguf::{Gguf, Value as GgufValue};

use super::error::CandleError;

/// Keys of one architecture, such as `phi2.block_count`.
pub(super) struct Keys<'a> {
    gguf: &'a Gguf,
    architecture: &'a str,
}

impl<'a> Keys<'a> {
    pub(super) fn new(gguf: &'a Gguf) -> Result<Self, CandleError> {
        Ok(Self { gguf, architecture: gguf.metadata().required("general.architecture")? })
    }

    pub(super) fn architecture(&self) -> &'a str {
        self.architecture
    }

    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// Refuses a value unless `holds`.
    pub(super) fn require(
        &self,
        key: &str,
        got: impl Display,
        holds: bool,
        wanted: &'static str,
    ) -> Result<(), CandleError> {
        if holds { Ok(()) } else { Err(CandleError::Value { key: self.name(key), got: got.to_string(), wanted }) }
    }

    /// Reads a count of at least 1.
    pub(super) fn count(&self, key: &str) -> Result<usize, CandleError> {
        let count = self.gguf.metadata().required::<u32>(&self.name(key))? as usize;
        self.require(key, count, count > 0, "it must be at least 1").map(|()| count)
    }

    pub(super) fn count_or(&self, key: &str, default: usize) -> Result<usize, CandleError> {
        let is_there = self.gguf.metadata().get(&self.name(key)).is_some();
        if is_there { self.count(key) } else { Ok(default) }
    }

    /// Reads a count that is 0 where it is not there.
    fn count_or_none(&self, key: &str) -> Result<usize, CandleError> {
        Ok(self.gguf.metadata().optional::<u32>(&self.name(key))?.unwrap_or(0) as usize)
    }

    /// Reads how many layers there are: no more than there are tensors for.
    pub(super) fn layers(&self) -> Result<usize, CandleError> {
        let layers = self.count("block_count")?;
        let is_possible = layers <= self.gguf.tensors().len();
        self.require("block_count", layers, is_possible, "the file has fewer tensors").map(|()| layers)
    }

    pub(super) fn positive(&self, key: &str, default: Option<f32>) -> Result<f32, CandleError> {
        let value: f32 = match default {
            Some(default) => self.gguf.metadata().optional(&self.name(key))?.unwrap_or(default),
            None => self.gguf.metadata().required(&self.name(key))?,
        };
        let is_positive = value.is_finite() && value > 0.0;
        self.require(key, value, is_positive, "it must be a positive number").map(|()| value)
    }

    /// Refuses another length than the one that candle's code takes for granted.
    pub(super) fn expect(&self, key: &str, wanted: usize) -> Result<(), CandleError> {
        let got = self.count_or(key, wanted)?;
        self.require(key, got, got == wanted, "candle's code takes another value for granted")
    }

    /// Refuses positions that are scaled: candle's code rotates them as they are.
    pub(super) fn refuse_scaling(&self) -> Result<(), CandleError> {
        let wanted = "candle's code does not scale positions";
        let kind = self.gguf.metadata().optional::<&str>(&self.name("rope.scaling.type"))?.unwrap_or("none");
        self.require("rope.scaling.type", kind, kind == "none", wanted)?;
        for key in ["rope.scaling.factor", "rope.scale_linear"] {
            let factor: f32 = self.gguf.metadata().optional(&self.name(key))?.unwrap_or(1.0);
            self.require(key, factor, factor == 1.0 || factor == 0.0, wanted)?;
        }
        Ok(())
    }

    /// Refuses a window that is shorter than the context.
    pub(super) fn refuse_window(&self, context: usize) -> Result<(), CandleError> {
        let window = self.count_or_none("attention.sliding_window")?;
        let is_without_effect = window == 0 || window >= context;
        self.require("attention.sliding_window", window, is_without_effect, "candle's code attends to all tokens")
    }

    /// Refuses parts of a model that candle's code does not have: a count above 0, or a list.
    pub(super) fn refuse(&self, key: &str) -> Result<(), CandleError> {
        let is_list = matches!(self.gguf.metadata().get(&self.name(key)), Some(GgufValue::Array(_)));
        let wanted = "candle's code has nothing for that";
        self.require(key, "a list", !is_list, wanted)?;
        let count = self.count_or_none(key)?;
        self.require(key, count, count == 0, wanted)
    }

    /// Returns how many rows a matrix has; 0 without one, which the check of tensors then misses.
    pub(super) fn rows_of(&self, tensor: &str) -> usize {
        self.gguf.tensor(tensor).and_then(|tensor| tensor.dims.get(1).copied()).unwrap_or(0)
    }

    /// Returns entries as candle's code reads them: it takes numbers of these types only.
    pub(super) fn entries(&self, counts: &[(&str, usize)], floats: &[(&str, f32)]) -> Vec<(String, Value)> {
        let counts = counts.iter().map(|(key, count)| (self.name(key), Value::U32(*count as u32)));
        let floats = floats.iter().map(|(key, float)| (self.name(key), Value::F32(*float)));
        let architecture = ("general.architecture".to_owned(), Value::String(self.architecture.to_owned()));
        counts.chain(floats).chain([architecture]).collect()
    }
}
