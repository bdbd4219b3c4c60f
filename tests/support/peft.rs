//! Small random adapters for the default model, in the format of PEFT.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

const LAYERS: usize = 30;
const HIDDEN: usize = 576;
const KV: usize = 192;
const FEED_FORWARD: usize = 1536;
const RANK: usize = 4;

/// Modules that the adapters may change, with the lengths of their inputs and outputs.
const MODULES: [(&str, &str, usize, usize); 4] = [
    ("self_attn", "q_proj", HIDDEN, HIDDEN),
    ("self_attn", "v_proj", HIDDEN, KV),
    ("mlp", "up_proj", HIDDEN, FEED_FORWARD),
    ("mlp", "down_proj", FEED_FORWARD, HIDDEN),
];

/// Writes an adapter that changes answers, another for each seed. Returns its folder.
pub fn random_adapter(parent: &Path, name: &str, seed: u64) -> PathBuf {
    random_adapter_with(parent, name, seed, &json!({}))
}

/// The same with more settings.
pub fn random_adapter_with(parent: &Path, name: &str, seed: u64, settings: &Value) -> PathBuf {
    let folder = parent.join(name);
    std::fs::create_dir_all(&folder).expect("room for a folder");
    let (mut header, mut data) = (Map::new(), Vec::new());
    let mut random = Random(seed);
    for layer in 0..LAYERS {
        for (block, module, input, output) in MODULES {
            let tensors = [("lora_A", vec![RANK, input]), ("lora_B", vec![output, RANK])];
            for (matrix, shape) in tensors {
                let name = format!("base_model.model.model.layers.{layer}.{block}.{module}.{matrix}.weight");
                let begin = data.len();
                let count: usize = shape.iter().product();
                (0..count).for_each(|_| data.extend((random.next() * 0.1).to_le_bytes()));
                let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()] });
                header.insert(name, entry);
            }
        }
    }
    let targets: Vec<&str> = MODULES.iter().map(|(_, module, ..)| *module).collect();
    let mut config = json!({ "peft_type": "LORA", "r": RANK, "lora_alpha": 8, "target_modules": targets,
                         "base_model_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct" });
    for (key, value) in settings.as_object().expect("an object") {
        config[key] = value.clone();
    }
    write_peft(&folder, &config, &Value::Object(header), &data);
    folder
}

/// Writes the two files of an adapter.
pub fn write_peft(folder: &Path, config: &Value, header: &Value, data: &[u8]) {
    let mut header = header.to_string();
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat();
    std::fs::write(folder.join("adapter_config.json"), config.to_string()).expect("room for a file");
    std::fs::write(folder.join("adapter_model.safetensors"), bytes).expect("room for a file");
}

/// Numbers from -1 to 1, always the same for a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 40) as f32 / (1 << 23) as f32) - 1.0
    }
}
