//! What a simulation runs on: the device and its shape, memory, tiers, and what requests are like.

use std::path::Path;

use ruvllm_kernels::{KernelSet, Pool, WeightType};
use ruvllm_kv::{KvOptions, Tiers};
use ruvllm_model::formats::gguf::write::{Header, Writer};
use ruvllm_model::formats::gguf::{Gguf, Value};
use ruvllm_model::{CpuRunner, Model};
use ruvllm_runner::{FakeRunner, FaultInjector, KvShape, PageFormat, Runner};

use super::super::{Core, CoreOptions};
use crate::DraftOptions;
use crate::random::Random;

pub const VOCABULARY: u32 = 48;
pub const CONTEXT: usize = 320;

/// What runs the batches.
#[derive(Clone, Copy, PartialEq)]
pub enum Device {
    /// A tiny model with random weights.
    Cpu,
    /// One with recurrent layers, of those that architectures are tested with.
    Recurrent(&'static str),
    /// No model at all, which loses nothing when pages are converted.
    Fake,
    /// The same with recurrent states.
    FakeRecurrent,
    /// The same with all of a sequence in its slot, of which nothing can be shared, copied or read.
    FakeSlots,
    /// The same, and it chooses tokens by itself.
    FakeChoosing,
    /// And with a window of 20 tokens in one of two layers.
    FakeWindowed,
}

/// What is simulated.
#[derive(Clone, Copy)]
pub struct Setting {
    pub device: Device,
    pub steps: usize,
    pub seed: u64,
    pub batch_rows: usize,
    pub tiers: &'static str,
    /// Heads of the model, as many for keys and values, and their dimension.
    pub heads: usize,
    pub head_dim: usize,
    /// Of pages. Hidden states come on top.
    pub budget_bytes: usize,
    pub with_disk: bool,
    /// Whether hidden states are kept, and wanted.
    pub keeps_states: bool,
    /// Tokens of prompts that are their own, at most.
    pub own_tokens: usize,
    /// Whether there is a draft model.
    pub has_draft: bool,
    /// Whether texts are observed beside the requests.
    pub observes: bool,
}

impl Setting {
    pub fn tiers(&self) -> Tiers {
        self.tiers.parse().expect("sound tiers")
    }

    pub fn core(&self, options: CoreOptions) -> Core {
        self.core_with_faults(options).0
    }

    pub fn core_with_faults(&self, mut options: CoreOptions) -> (Core, FaultInjector) {
        let mut faults = FaultInjector::default();
        let runner: Box<dyn Runner> = match self.device {
            Device::Cpu => {
                let pool = Pool::new(2, KernelSet::best());
                Box::new(CpuRunner::new(model(self.heads, self.head_dim).into(), pool, self.batch_rows))
            }
            Device::Recurrent(architecture) => {
                let pool = Pool::new(2, KernelSet::best());
                Box::new(CpuRunner::new(recurrent_model(architecture).into(), pool, self.batch_rows))
            }
            Device::Fake | Device::FakeRecurrent | Device::FakeSlots | Device::FakeChoosing | Device::FakeWindowed => {
                let mut shape = KvShape::new(2, self.heads, self.head_dim);
                if self.device == Device::FakeWindowed {
                    shape = shape.with_windows(1, 20);
                }
                let mut runner = FakeRunner::new(shape, VOCABULARY as usize, CONTEXT, self.batch_rows);
                if self.device == Device::FakeRecurrent {
                    runner = runner.with_states(8);
                }
                if self.device == Device::FakeSlots {
                    runner = runner.without_prefixes();
                }
                if self.device == Device::FakeChoosing {
                    runner = runner.choosing_tokens();
                }
                faults = runner.faults();
                Box::new(runner)
            }
        };
        options.keeps_states = self.keeps_states;
        if self.keeps_states {
            // Those of a page of 2 KiB.
            options.kv.budget_bytes += options.kv.budget_bytes / 2048 * 16 * Core::state_bytes(runner.limits().hidden);
        }
        (Core::new(runner, options), faults)
    }

    /// Adds a draft model: a fake, which expects what a fake says when it is not sampled, with little memory.
    pub fn add_draft(&self, core: &mut Core) -> FaultInjector {
        let shape = KvShape::new(1, self.heads, self.head_dim);
        let runner = FakeRunner::new(shape, VOCABULARY as usize, CONTEXT - 20, self.batch_rows);
        let kv = KvOptions { budget_bytes: 24 << 10, ..KvOptions::new(Tiers::uniform(PageFormat::F16)) };
        let faults = runner.faults();
        core.set_draft_model(Box::new(runner), &DraftOptions { kv, fingerprint: [1; 32], cost: 0.1 });
        faults
    }

    /// Whether answers are bit for bit the same however they come about.
    pub fn is_exact(&self) -> bool {
        self.is_fake() || self.tiers().is_uniform()
    }

    pub fn is_fake(&self) -> bool {
        !matches!(self.device, Device::Cpu | Device::Recurrent(_))
    }
}

/// Pages of 2 KiB in half floats.
pub const TINY: Setting = Setting {
    device: Device::Cpu,
    steps: 1500,
    seed: 0,
    batch_rows: 24,
    tiers: "f16",
    heads: 1,
    head_dim: 16,
    budget_bytes: 30 << 11,
    with_disk: true,
    keeps_states: false,
    own_tokens: 60,
    has_draft: false,
    observes: false,
};

/// Without a model, over far more steps: any break of the page accounting, and any wrong page, in any mix of formats.
pub const FAKE: Setting = Setting { device: Device::Fake, steps: 20_000, ..TINY };

fn recurrent_model(architecture: &str) -> Model {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/architectures");
    let gguf = Gguf::open(root.join(architecture).join("model.gguf")).expect("a sound file");
    Model::load(&gguf, CONTEXT, &mut |_| {}).expect("a sound model")
}

/// Two layers and random weights.
fn model(heads: usize, head_dim: usize) -> Model {
    let hidden = (heads * head_dim).max(32);
    let mut header = Header::new();
    header.set("general.architecture", Value::String("llama"));
    for (key, value) in [
        ("block_count", 2),
        ("embedding_length", hidden),
        ("feed_forward_length", 64),
        ("attention.head_count", hidden / head_dim),
        ("attention.head_count_kv", heads),
        ("context_length", CONTEXT),
    ] {
        header.set(&format!("llama.{key}"), Value::U32(value as u32));
    }
    header.set("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
    let mut tensors =
        vec![("token_embd".to_owned(), vec![hidden, VOCABULARY as usize]), ("output_norm".to_owned(), vec![hidden])];
    for layer in 0..2 {
        for (name, dims) in [
            ("attn_norm", vec![hidden]),
            ("attn_q", vec![hidden, hidden]),
            ("attn_k", vec![hidden, heads * head_dim]),
            ("attn_v", vec![hidden, heads * head_dim]),
            ("attn_output", vec![hidden, hidden]),
            ("ffn_norm", vec![hidden]),
            ("ffn_gate", vec![hidden, 64]),
            ("ffn_up", vec![hidden, 64]),
            ("ffn_down", vec![64, hidden]),
        ] {
            tensors.push((format!("blk.{layer}.{name}"), dims));
        }
    }
    for (name, dims) in &tensors {
        header.add_tensor(&format!("{name}.weight"), dims, WeightType::F32);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tiny.gguf");
    let mut writer = Writer::create(&path, &header).expect("it can be written");
    let mut random = Random::new(7);
    for (_, dims) in &tensors {
        let value = |random: &mut Random| if dims.len() == 1 { 1.0 } else { random.unit() as f32 - 0.5 };
        let bytes = (0..dims.iter().product()).flat_map(|_: usize| value(&mut random).to_le_bytes());
        writer.write(&bytes.collect::<Vec<u8>>()).expect("it can be written");
    }
    writer.finish().expect("it can be written");
    let gguf = Gguf::open(&path).expect("a sound file");
    Model::load(&gguf, CONTEXT, &mut |_| {}).expect("a sound model")
}
