//! The forward pass itself, without the rounding that quantized weights bring: a copy of the default model in 32-bit
//! floats gives the logits of plain float arithmetic. Only keys and values are rounded then, to half floats.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::support::{distance, golden, smollm2};
use ruvllm_engine::{Core, CoreOptions};
use ruvllm_kernels::{KernelSet, Pool, dequantize_row};
use ruvllm_model::formats::gguf::{Gguf, Value};
use ruvllm_model::{CpuRunner, Model};

/// Over the 20 highest logits of a prompt, root mean square.
const TOLERANCE: f64 = 0.01;

#[test]
fn float_weights_give_the_logits_of_float_arithmetic() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("smollm2-f32.gguf");
    write_float_copy(&Gguf::open(smollm2()).expect("it opens"), &path);
    let model = Model::load(&Gguf::open(&path).expect("it opens"), 256, &mut |_| {}).expect("it loads");
    let options = CoreOptions { sequences_max: 1, queue_max: 1, ..CoreOptions::new(16 << 20) };
    let runner = CpuRunner::new(model.into(), Pool::new(2, KernelSet::best()), 64);
    let mut core = Core::new(Box::new(runner), options);
    let mut largest = 0f64;
    for prompt in golden().iter().filter(|prompt| prompt.tokens.len() <= 40) {
        let last = prompt.tokens.len() - 1;
        let mut got = Vec::new();
        let pick = |_: usize, logits: &[f32]| got = prompt.top.iter().map(|(id, _)| logits[*id as usize]).collect();
        core.evaluate(&prompt.tokens, last..last + 1, pick).expect("it fits");
        let error = distance(&got, &prompt.exact);
        largest = largest.max(error);
        assert!(error < TOLERANCE, "{}: {error} from exact arithmetic", prompt.name);
    }
    println!("at most {largest:.4} from exact arithmetic");
}

/// A GGUF file with the same tensors as 32-bit floats, and the metadata that the model's dimensions are read from.
fn write_float_copy(source: &Gguf, path: &Path) {
    let wanted = |key: &str| key == "general.architecture" || key.starts_with("llama.");
    let entries: Vec<(&str, Value<'_>)> = source.metadata().iter().filter(|(key, _)| wanted(key)).collect();
    let mut head = Vec::new();
    head.extend(b"GGUF");
    head.extend(3u32.to_le_bytes());
    head.extend((source.tensors().len() as u64).to_le_bytes());
    head.extend((entries.len() as u64).to_le_bytes());
    for (key, value) in entries {
        put_text(&mut head, key);
        match value {
            Value::U32(number) => {
                head.extend(4u32.to_le_bytes());
                head.extend(number.to_le_bytes());
            }
            Value::F32(number) => {
                head.extend(6u32.to_le_bytes());
                head.extend(number.to_le_bytes());
            }
            Value::String(text) => {
                head.extend(8u32.to_le_bytes());
                put_text(&mut head, text);
            }
            other => panic!("{key} has the unexpected value {other:?}"),
        }
    }
    let mut offset = 0u64;
    for tensor in source.tensors() {
        put_text(&mut head, tensor.name);
        head.extend((tensor.dims.len() as u32).to_le_bytes());
        tensor.dims.iter().for_each(|dim| head.extend((*dim as u64).to_le_bytes()));
        head.extend(0u32.to_le_bytes());
        head.extend(offset.to_le_bytes());
        offset += (tensor.element_count() as u64 * 4).next_multiple_of(32);
    }
    head.resize(head.len().next_multiple_of(32), 0);
    let mut file = BufWriter::new(File::create(path).expect("a new file"));
    file.write_all(&head).expect("written");
    for tensor in source.tensors() {
        let mut floats = vec![0f32; tensor.element_count()];
        dequantize_row(tensor.kind, &tensor.bytes(), &mut floats);
        // Half a gigabyte, in code that is not optimized.
        let bytes: &[u8] = bytemuck::cast_slice(&floats);
        file.write_all(bytes).expect("written");
        file.write_all(&[0; 32][..bytes.len().next_multiple_of(32) - bytes.len()]).expect("written");
    }
    file.flush().expect("written");
}

fn put_text(to: &mut Vec<u8>, text: &str) {
    to.extend((text.len() as u64).to_le_bytes());
    to.extend(text.as_bytes());
}
