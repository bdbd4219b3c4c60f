//! Identifies a model file without reading all of it.

use ruvllm_model::formats::gguf::Gguf;

/// Number of bytes that are read at either end of a tensor.
const SAMPLE: usize = 4096;

/// Returns the identity of a model in the disk tier, which outlives this process: a hash of everything that describes it
/// (metadata, names and positions of tensors) and of a sample of each tensor. Another quantization or fine-tuning of the same
/// model differs in both.
pub(crate) fn fingerprint(gguf: &Gguf) -> [u8; 32] {
    let file: &[u8] = gguf.file();
    let mut hasher = blake3::Hasher::new_derive_key("ruvllm model fingerprint 1");
    let described = gguf.tensors().map(|tensor| tensor.range.start).min().unwrap_or(file.len());
    hasher.update(&(file.len() as u64).to_le_bytes());
    hasher.update(&file[..described]);
    for tensor in gguf.tensors() {
        let sample = tensor.bytes.len().min(SAMPLE);
        hasher.update(&tensor.bytes[..sample]);
        hasher.update(&tensor.bytes[tensor.bytes.len() - sample..]);
    }
    *hasher.finalize().as_bytes()
}
