//! Which weight type each tensor of a model becomes. The mixtures are llama.cpp's, so that sizes can be compared.

use std::fmt;
use std::str::FromStr;

use ruvllm_kernels::WeightType;

/// What a model is quantized to: one weight type for most tensors, and exceptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipe {
    /// All matrices in one type; the output matrix in Q6_K where the type is smaller.
    Uniform(WeightType),
    /// Q4_K, with Q6_K for the values and the feed-forward outputs of about half of the layers.
    Q4KM,
}

/// What the choice of types depends on besides the tensor itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelShape {
    pub layers: usize,
    /// The embedding is also the output matrix.
    pub tied_output: bool,
}

/// What becomes of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its bytes are copied.
    Kept,
    Becomes(WeightType),
    /// The recipe's type does not divide its rows, the other does.
    FallsBack {
        wanted: WeightType,
        to: WeightType,
    },
}

impl Recipe {
    pub const ALL: [Self; 12] = [
        Self::Q4KM,
        Self::Uniform(WeightType::Q4K),
        Self::Uniform(WeightType::Q4_0),
        Self::Uniform(WeightType::Q4_1),
        Self::Uniform(WeightType::Q5_0),
        Self::Uniform(WeightType::Q5_1),
        Self::Uniform(WeightType::Q5K),
        Self::Uniform(WeightType::Q6K),
        Self::Uniform(WeightType::Q8_0),
        Self::Uniform(WeightType::F16),
        Self::Uniform(WeightType::Bf16),
        Self::Uniform(WeightType::F32),
    ];

    /// The type of most tensors.
    pub fn base(self) -> WeightType {
        match self {
            Self::Uniform(kind) => kind,
            Self::Q4KM => WeightType::Q4K,
        }
    }

    pub fn is_float(self) -> bool {
        is_float(self.base())
    }

    /// What `general.file_type` says of such a file. K-quants without exceptions are called small ("Q4_K_S").
    pub fn file_type(self) -> u32 {
        match self {
            Self::Uniform(kind) => match kind {
                WeightType::F32 => 0,
                WeightType::F16 => 1,
                WeightType::Q4_0 => 2,
                WeightType::Q4_1 => 3,
                WeightType::Q8_0 => 7,
                WeightType::Q5_0 => 8,
                WeightType::Q5_1 => 9,
                WeightType::Q2K => 10,
                WeightType::Q3K => 11,
                WeightType::Q4K => 14,
                WeightType::Q5K => 16,
                WeightType::Q6K => 18,
                WeightType::Iq4Nl => 25,
                WeightType::Iq4Xs => 30,
                WeightType::Bf16 => 32,
                WeightType::Mxfp4 => 38,
            },
            Self::Q4KM => 15,
        }
    }

    /// What becomes of a tensor of this name and shape.
    pub fn fate(self, name: &str, dims: &[usize], model: ModelShape) -> Fate {
        if !is_matrix(name, dims) {
            return Fate::Kept;
        }
        let wanted = self.wanted(name, model);
        let fits = |kind: &WeightType| dims[0].is_multiple_of(kind.block_len());
        match std::iter::successors(Some(wanted), |kind| Some(next_best(*kind))).find(fits) {
            Some(to) if to != wanted => Fate::FallsBack { wanted, to },
            _ => Fate::Becomes(wanted),
        }
    }

    fn wanted(self, name: &str, model: ModelShape) -> WeightType {
        let is_output = name == "output.weight" || (model.tied_output && name == "token_embd.weight");
        if is_output && bits(self.base()) < bits(WeightType::Q6K) {
            return WeightType::Q6K;
        }
        let is_sensitive = name.ends_with("attn_v.weight") || name.ends_with("ffn_down.weight");
        match (self, layer(name)) {
            (Self::Q4KM, Some(layer)) if is_sensitive && deserves_more_bits(layer, model.layers) => WeightType::Q6K,
            _ => self.base(),
        }
    }
}

/// The names on the command line: `q4_k_m`, and the types' own.
impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform(kind) => f.write_str(&kind.name().to_lowercase()),
            Self::Q4KM => f.write_str("q4_k_m"),
        }
    }
}

impl FromStr for Recipe {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(|recipe| recipe.to_string()).join(", ");
        let found = Self::ALL.into_iter().find(|recipe| recipe.to_string().eq_ignore_ascii_case(name));
        found.ok_or_else(|| format!("'{name}' is not one of {}", known()))
    }
}

/// Bits per weight, to compare types by.
fn bits(kind: WeightType) -> f64 {
    kind.block_bytes() as f64 * 8.0 / kind.block_len() as f64
}

pub(super) fn is_float(kind: WeightType) -> bool {
    matches!(kind, WeightType::F32 | WeightType::F16 | WeightType::Bf16)
}

/// Vectors, norms, the kernels of convolutions and the little matrix that chooses experts are a negligible part of a model
/// and matter much.
fn is_matrix(name: &str, dims: &[usize]) -> bool {
    let kept = [
        "_norm.weight",
        "ffn_gate_inp.weight",
        "position_embd.weight",
        "token_types.weight",
        "shortconv.conv.weight",
        "ssm_conv1d.weight",
    ];
    dims.len() > 1 && name.ends_with("weight") && !kept.iter().any(|suffix| name.ends_with(suffix))
}

/// A type with smaller blocks and no fewer bits.
fn next_best(kind: WeightType) -> WeightType {
    match kind {
        WeightType::Q2K | WeightType::Q3K => WeightType::Q4_0,
        WeightType::Q4K => WeightType::Q5_0,
        WeightType::Q5K => WeightType::Q5_1,
        WeightType::Q6K => WeightType::Q8_0,
        _ => WeightType::F16,
    }
}

/// The number of the layer that a tensor belongs to.
pub(super) fn layer(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// llama.cpp's rule: the first and the last eighth of the layers, and every third of those between.
fn deserves_more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: ModelShape = ModelShape { layers: 22, tied_output: false };

    #[test]
    fn the_medium_mixture_spends_bits_where_llama_cpp_does() {
        let fate = |name: &str| Recipe::Q4KM.fate(name, &[2048, 2048], MODEL);
        let more: Vec<usize> = (0..22)
            .filter(|layer| fate(&format!("blk.{layer}.ffn_down.weight")) == Fate::Becomes(WeightType::Q6K))
            .collect();
        assert_eq!(more, [0, 1, 4, 7, 10, 13, 16, 19, 20, 21]);
        assert_eq!(fate("blk.0.attn_v.weight"), Fate::Becomes(WeightType::Q6K));
        assert_eq!(fate("blk.0.attn_k.weight"), Fate::Becomes(WeightType::Q4K));
        assert_eq!(fate("output.weight"), Fate::Becomes(WeightType::Q6K));
        assert_eq!(fate("token_embd.weight"), Fate::Becomes(WeightType::Q4K));
        let tied = ModelShape { tied_output: true, ..MODEL };
        assert_eq!(Recipe::Q4KM.fate("token_embd.weight", &[2048, 9], tied), Fate::Becomes(WeightType::Q6K));
    }

    #[test]
    fn the_output_is_never_stored_in_fewer_bits_than_asked_for() {
        for recipe in Recipe::ALL {
            let Fate::Becomes(kind) = recipe.fate("output.weight", &[512, 512], MODEL) else { panic!("{recipe}") };
            let base = recipe.base();
            assert_eq!(kind, if bits(base) < 6.5 { WeightType::Q6K } else { base });
        }
    }

    #[test]
    fn rows_that_do_not_fit_fall_back_to_no_fewer_bits() {
        let fate = |kind, row: usize| Recipe::Uniform(kind).fate("blk.1.attn_q.weight", &[row, 4], MODEL);
        let falls = |wanted, to| Fate::FallsBack { wanted, to };
        assert_eq!(fate(WeightType::Q4K, 576), falls(WeightType::Q4K, WeightType::Q5_0));
        assert_eq!(fate(WeightType::Q5K, 576), falls(WeightType::Q5K, WeightType::Q5_1));
        assert_eq!(fate(WeightType::Q6K, 576), falls(WeightType::Q6K, WeightType::Q8_0));
        assert_eq!(fate(WeightType::Q4K, 50), falls(WeightType::Q4K, WeightType::F16));
        assert_eq!(fate(WeightType::Q8_0, 50), falls(WeightType::Q8_0, WeightType::F16));
        assert_eq!(fate(WeightType::F16, 50), Fate::Becomes(WeightType::F16));
        assert_eq!(fate(WeightType::Bf16, 50), Fate::Becomes(WeightType::Bf16));
    }

    #[test]
    fn vectors_and_what_is_no_weight_matrix_are_kept() {
        for (name, dims) in [
            ("blk.0.attn_norm.weight", &[64][..]),
            ("blk.0.attn_q.bias", &[64]),
            ("blk.0.attn_q_norm.weight", &[64, 2]),
            ("blk.0.ffn_gate_inp.weight", &[64, 8]),
            ("blk.0.shortconv.conv.weight", &[3, 64]),
            ("blk.0.ssm_conv1d.weight", &[4, 64]),
            ("rope_freqs.weight", &[32]),
        ] {
            assert_eq!(Recipe::Q4KM.fate(name, dims, MODEL), Fate::Kept, "{name}");
        }
    }

    #[test]
    fn names_are_read_back_and_a_wrong_one_says_what_there_is() {
        for recipe in Recipe::ALL {
            assert_eq!(recipe.to_string().to_uppercase().parse(), Ok(recipe));
        }
        let error = "q9".parse::<Recipe>().unwrap_err();
        assert!(error.starts_with("'q9' is not one of q4_k_m, q4_k, q4_0,"), "{error}");
    }
}
