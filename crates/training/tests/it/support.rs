//! Tiny models with random weights, and items for them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruvllm_model::formats::gguf::Gguf;
use ruvllm_training::{Base, Item, LoraWeights, TrainOptions};

pub fn folder(architecture: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/architectures").join(architecture)
}

pub fn gguf(architecture: &str) -> Arc<Gguf> {
    Arc::new(Gguf::open(folder(architecture).join("model.gguf")).expect("a sound file"))
}

pub fn base(architecture: &str, positions: usize) -> Arc<Base> {
    Arc::new(Base::open(gguf(architecture), positions).expect("a model that can be trained"))
}

/// Numbers that follow from a seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// From -1 to 1.
    pub fn float(&mut self) -> f32 {
        self.next() as f32 / (1u64 << 30) as f32 - 1.0
    }
}

/// An item of random tokens, in which the last ones are targets.
pub fn item(base: &Base, len: usize, first_target: usize, document: usize) -> Item {
    let mut random = Random(document as u64 + 11);
    let vocabulary = base.config().vocabulary as u64;
    let tokens = (0..len).map(|_| (random.next() % vocabulary) as u32).collect();
    Item::new(tokens, first_target..len, document)
}

/// Factors of which none is zero.
pub fn random_factors(base: &Base, options: &TrainOptions) -> LoraWeights {
    let mut weights = LoraWeights::new(base, options).expect("sound options");
    let mut random = Random(5);
    for module in &weights.modules {
        weights.numbers[module.b.clone()].iter_mut().for_each(|number| *number = 0.2 * random.float());
    }
    weights
}
