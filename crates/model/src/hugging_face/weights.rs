//! The weights of a text model by names that do not depend on what else the files hold.

use std::collections::BTreeMap;

use super::HuggingFaceError;
use crate::formats::gguf::shortened;
use crate::formats::safetensors::{ElementType, Safetensors, StoredTensor};

/// What stands before names of the text model; the longest first.
const PREFIXES: [&str; 4] = ["model.language_model.", "language_model.model.", "language_model.", "model."];
/// Of what is not the text model: images and sound, and layers that draft tokens.
const OTHERS: [&str; 9] = [
    "visual.",
    "vision_tower.",
    "vision_model.",
    "multi_modal_projector.",
    "audio_tower.",
    "embed_vision.",
    "embed_audio.",
    "mtp.",
    "vision_encoder.",
];

/// The tensors of the text model: `layers.0.…`, `embed_tokens.weight`, `norm.weight`, `lm_head.weight`.
pub(super) struct Weights<'a> {
    tensors: BTreeMap<&'a str, &'a StoredTensor>,
}

impl<'a> Weights<'a> {
    pub fn new(files: &'a Safetensors) -> Result<Self, HuggingFaceError> {
        let mut tensors = BTreeMap::new();
        for (name, tensor) in files.iter() {
            let short = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
            let is_other = OTHERS.iter().any(|other| short.starts_with(other) || name.starts_with(other));
            // Frequencies that older versions stored; they follow from the settings.
            if is_other || short.ends_with("rotary_emb.inv_freq") {
                continue;
            }
            // What is counted by a tensor's rows must be in the file.
            if tensor.range.is_empty() {
                let (name, got) = (shortened(short), tensor.shape.clone());
                return Err(HuggingFaceError::Shape { name, got, expected: "at least one element".to_owned() });
            }
            if tensors.insert(short, tensor).is_some() {
                return Err(HuggingFaceError::Twice { name: shortened(short) });
            }
        }
        Ok(Self { tensors })
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a StoredTensor)> {
        self.tensors.iter().map(|(name, tensor)| (*name, *tensor))
    }

    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    pub fn get(&self, name: &str) -> Option<&'a StoredTensor> {
        self.tensors.get(name).copied()
    }

    /// Returns the length of the first dimension of a tensor, if it is there.
    pub fn rows(&self, name: &str) -> Option<u32> {
        u32::try_from(*self.get(name)?.shape.first()?).ok()
    }

    /// Returns the same of a layer's tensor, which must be there.
    pub fn layer_rows(&self, layer: usize, name: &str) -> Result<u32, HuggingFaceError> {
        let name = format!("layers.{layer}.{name}");
        self.rows(&name).filter(|rows| *rows > 0).ok_or(HuggingFaceError::MissingTensor { name })
    }
}

/// Returns the weight type of floats.
pub(super) fn float_type(name: &str, tensor: &StoredTensor) -> Result<ruvllm_kernels::WeightType, HuggingFaceError> {
    use ruvllm_kernels::WeightType;
    match tensor.element {
        ElementType::F32 => Ok(WeightType::F32),
        ElementType::F16 => Ok(WeightType::F16),
        ElementType::Bf16 => Ok(WeightType::Bf16),
        ElementType::U8 | ElementType::Other(_) => {
            Err(HuggingFaceError::ElementType { name: shortened(name), got: tensor.element_name.clone() })
        }
    }
}
