//! Reads any bytes as the files of an adapter, and touches everything a sound one says.

use std::fs::{self, File};
use std::io::Write;

use ruvllm_model::adapters::{AdapterError, AdapterFile};

/// Stands between configuration and weights: no text has such a byte.
const SEPARATOR: u8 = 0xff;
/// Follows a header that stands alone, so that inputs stay short.
const ZEROS: u64 = 1 << 20;

pub fn run(bytes: &[u8]) {
    match open_files(bytes) {
        Ok(adapter) => walk(&adapter),
        // The message is made of the files' bytes too.
        Err(error) => assert!(error.to_string().len() < 4_000),
    }
}

/// Opens a GGUF file if the input begins like one, otherwise a folder of PEFT with its two files.
pub fn open_files(bytes: &[u8]) -> Result<AdapterFile, AdapterError> {
    let folder = tempfile::tempdir().expect("a folder");
    if bytes.starts_with(b"GGUF") {
        let path = folder.path().join("adapter.gguf");
        fs::write(&path, bytes).expect("it is written");
        return AdapterFile::open(&path);
    }
    let split = bytes.iter().position(|byte| *byte == SEPARATOR).unwrap_or(bytes.len());
    let (config, weights) = (&bytes[..split], bytes.get(split + 1..).unwrap_or_default());
    fs::write(folder.path().join("adapter_config.json"), config).expect("it is written");
    let path = folder.path().join("adapter_model.safetensors");
    match weights {
        [] => {}
        // Only a header: it gets its length, and tensors.
        [b'{', ..] => {
            let mut file = File::create(path).expect("a file");
            file.write_all(&(weights.len() as u64).to_le_bytes()).expect("it is written");
            file.write_all(weights).expect("it is written");
            file.set_len(8 + weights.len() as u64 + ZEROS).expect("it is longer");
        }
        weights => fs::write(path, weights).expect("it is written"),
    }
    AdapterFile::open(folder.path())
}

fn walk(adapter: &AdapterFile) {
    let (least, most) = adapter.ranks;
    assert!(0 < least && least <= most, "{adapter:?}");
    assert!(!adapter.targets.is_empty(), "{adapter:?}");
    assert!(adapter.file_bytes > 0);
}
