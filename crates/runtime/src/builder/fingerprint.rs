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
