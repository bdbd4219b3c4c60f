//! Identifies a model file without reading all of it.

use ruvllm_model::formats::gguf::Gguf;

/// Number of bytes that are read at either end of a tensor.
const SAMPLE: usize = 4096;

/// Returns the identity of a model in the disk tier, which outlives this process: a hash of everything that describes it
/// (metadata, names and positions of tensors) and of a sample of each tensor. Another quantization or fine-tuning of the same
/// model differs in both.
pub(crate) fn fingerprint(gguf: &Gguf) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("ruvllm model fingerprint 1");
    hasher.update(&gguf.size_bytes().to_le_bytes());
    hasher.update(gguf.head());
    // What is quantized at load gives other keys and values.
    for (index, tensor) in gguf.tensors().enumerate() {
        if let Some(kind) = tensor.packed_as {
            hasher.update(&(index as u64).to_le_bytes());
            hasher.update(&(kind as u32).to_le_bytes());
        }
    }
    for stored in gguf.tensors().flat_map(|tensor| tensor.stored()) {
        let sample = stored.len().min(SAMPLE);
        hasher.update(&stored[..sample]);
        hasher.update(&stored[stored.len() - sample..]);
    }
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ruvllm_kernels::WeightType;
    use ruvllm_model::open;
    use ruvllm_model::quantize::{Recipe, quantize_at_load};

    use super::*;

    #[test]
    fn models_that_are_quantized_differently_at_load_never_share_pages() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/architectures/llama3");
        let of = |recipe: Option<Recipe>| {
            let mut gguf = open(&folder).unwrap();
            recipe.into_iter().for_each(|recipe| quantize_at_load(&mut gguf, recipe).unwrap());
            fingerprint(&gguf)
        };
        let recipes = [None, Some(Recipe::Uniform(WeightType::Q8_0)), Some(Recipe::Q4KM)];
        let [none, q8, q4] = recipes.map(of);
        assert!(none != q8 && none != q4 && q8 != q4);
        assert_eq!(recipes.map(of), [none, q8, q4]);
    }
}
