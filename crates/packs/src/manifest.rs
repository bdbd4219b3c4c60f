//! `kernels.json`: what a pack is and what is in it.

mod check;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::sandbox::InstanceLimits;
use crate::signature::PublicKey;

pub use check::ManifestError;

/// The version of the manifest's form.
pub const SCHEMA: u32 = 1;
pub(crate) const KERNELS_MAX: usize = 64;

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub schema: u32,
    pub name: String,
    pub version: semver::Version,
    #[serde(default)]
    pub description: String,
    /// The first and the last version of RuvLLM that it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_runtime_version: Option<semver::Version>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_runtime_version: Option<semver::Version>,
    /// When it was made, as RFC 3339.
    #[serde(default)]
    pub created: String,
    #[serde(default)]
    pub author: Author,
    pub kernels: Vec<Kernel>,
    /// What is used instead of a kernel where its features are missing: another kernel of the pack, or "native".
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fallbacks: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Author {
    #[serde(default)]
    pub name: String,
    /// The key that the pack is signed with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    pub id: String,
    #[serde(default)]
    pub name: String,
    /// What it computes.
    pub category: Category,
    /// The module, within the pack.
    pub path: String,
    /// `sha256:` and 64 hexadecimal digits.
    #[serde(default)]
    pub hash: String,
    /// The function of the module that computes.
    #[serde(default = "kernel_forward")]
    pub entry: String,
    pub inputs: Vec<Tensor>,
    pub outputs: Vec<Tensor>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub params: Vec<Param>,
    #[serde(default)]
    pub limits: Limits,
    pub platforms: Vec<Platform>,
    /// What its author has measured; for people.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub benchmarks: BTreeMap<String, f64>,
}

fn kernel_forward() -> String {
    "kernel_forward".to_owned()
}

/// What a kernel computes, which fixes what its inputs, its output and its first parameters are.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// Rows and a weight; `epsilon`.
    RmsNorm,
    /// Heads, and a cosine and sine for each pair; `head_dim`, `pairs`, `interleaved`.
    Rope,
    /// Gate and up.
    Swiglu,
    Geglu,
    /// Floats to Q8_0 or Q4_0, and back.
    KvQuantize,
    KvDequantize,
    /// A vector and both factors, one behind the other; `rank`, `scale`.
    LoraApply,
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RmsNorm => "rms_norm",
            Self::Rope => "rope",
            Self::Swiglu => "swiglu",
            Self::Geglu => "geglu",
            Self::KvQuantize => "kv_quantize",
            Self::KvDequantize => "kv_dequantize",
            Self::LoraApply => "lora_apply",
        })
    }
}

impl Category {
    /// How many inputs it has.
    pub(crate) fn inputs(self) -> usize {
        match self {
            Self::KvQuantize | Self::KvDequantize => 1,
            _ => 2,
        }
    }

    /// Its parameters, with which those of the kernel begin.
    pub(crate) fn params(self) -> &'static [(&'static str, ParamType)] {
        use ParamType::{F32, U32};
        match self {
            Self::RmsNorm => &[("epsilon", F32)],
            Self::Rope => &[("head_dim", U32), ("pairs", U32), ("interleaved", U32)],
            Self::LoraApply => &[("rank", U32), ("scale", F32)],
            _ => &[],
        }
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    pub name: String,
    pub dtype: Dtype,
    /// Numbers, or names of them.
    pub shape: Vec<Dim>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    F32,
    F16,
    /// Blocks of GGUF.
    Q8_0,
    Q4_0,
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Dim {
    Number(u32),
    Name(String),
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Param {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: ParamType,
    pub default: f64,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ParamType {
    U32,
    F32,
}

impl Param {
    /// Its default as a kernel is given it.
    pub(crate) fn default_bytes(&self) -> [u8; 4] {
        match self.kind {
            ParamType::U32 => (self.default as u32).to_le_bytes(),
            ParamType::F32 => (self.default as f32).to_le_bytes(),
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Pages of 64 KiB.
    pub memory_pages: u32,
    pub table_elements: u32,
    /// Milliseconds of a call, in which everybody else waits.
    pub budget_ms: u32,
}

impl Default for Limits {
    fn default() -> Self {
        let InstanceLimits { memory_pages, table_elements, budget_ms } = InstanceLimits::default();
        Self { memory_pages, table_elements, budget_ms }
    }
}

impl From<Limits> for InstanceLimits {
    fn from(limits: Limits) -> Self {
        let Limits { memory_pages, table_elements, budget_ms } = limits;
        Self { memory_pages, table_elements, budget_ms }
    }
}

/// A runtime that a kernel is for, and what it needs there.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Platform {
    /// Such as `wasmtime` or `wasmi`, or `any`.
    pub runtime: String,
    /// Such as `simd128` and `bulk-memory`.
    #[serde(default)]
    pub features: Vec<String>,
}

impl Manifest {
    /// Reads and checks a manifest. Nothing else may have happened to the bytes than that their signature was checked.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        let manifest: Self = serde_json::from_slice(bytes).map_err(ManifestError::Json)?;
        manifest.check()?;
        Ok(manifest)
    }

    pub fn kernel(&self, id: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.id == id)
    }

    /// Returns a kernel that can run here: the one of this id, or what stands in for it. `None` is the native one.
    pub fn runnable(&self, id: &str) -> Option<&Kernel> {
        let mut kernel = self.kernel(id)?;
        // There are no circles, which `check` has seen to.
        while !kernel.missing_features().is_empty() {
            kernel = self.kernel(self.fallbacks.get(&kernel.id)?)?;
        }
        Some(kernel)
    }
}
