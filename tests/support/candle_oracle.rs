//! The forward pass of another implementation, candle's quantized Llama, as a reference for ours.
//!
//! Candle keeps f32 keys and values and rounds activations to 8 bits before every quantized matmul, as we do, so logits
//! agree with llama.cpp and with ours to the tolerances stated in `tests/golden/README.md`, not to the bit.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use candle_core::quantized::gguf_file;
use candle_core::{Device, Result, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;

pub struct Oracle(ModelWeights);

impl Oracle {
    /// A Llama-like model from a GGUF file, on the CPU.
    pub fn load(model: &Path) -> Result<Self> {
        let mut reader = BufReader::new(File::open(model)?);
        let content = gguf_file::Content::read(&mut reader)?;
        Ok(Self(ModelWeights::from_gguf(content, &mut reader, &Device::Cpu)?))
    }

    /// Logits after the last of `tokens`, which start a sequence. Panics without any token.
    pub fn logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        assert!(!tokens.is_empty(), "a forward pass needs a token");
        self.0.clear_kv_cache();
        let input = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
        self.0.forward(&input, 0)?.squeeze(0)?.to_vec1()
    }
}
