//! Model files that are sound GGUF and no sound models: every number, name, shape and weight of each architecture's tiny
//! model changed, one at a time. Nothing may panic, and what is missing or wrong is named.

use std::path::PathBuf;
use std::sync::Arc;
use std::{fs, panic};

use ruvllm_kernels::{KernelSet, Pool, WeightType};
use ruvllm_model::formats::gguf::{Gguf, Value};
use ruvllm_model::{CpuRunner, Model};
use ruvllm_runner::{Batch, PageFormat, PageLocation, Rotation, Runner, StateSlot};

const CONTEXT: usize = 32;

fn files() -> Vec<(String, Vec<u8>)> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/architectures");
    let mut folders: Vec<PathBuf> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    let name = |folder: &PathBuf| folder.file_name().unwrap().to_string_lossy().into_owned();
    folders.iter().map(|folder| (name(folder), fs::read(folder.join("model.gguf")).unwrap())).collect()
}

/// Where `needle` stands in a file, with its length before it as GGUF has it. The place behind it.
fn behind(file: &[u8], needle: &str) -> usize {
    let wanted = [&(needle.len() as u64).to_le_bytes()[..], needle.as_bytes()].concat();
    file.windows(wanted.len()).position(|window| window == wanted).expect("it is there") + wanted.len()
}

/// Loads a model and runs a few tokens, if it is one; otherwise why not.
fn load_and_run(file: Vec<u8>) -> Result<(), String> {
    let gguf = Gguf::parse(file).map_err(|error| error.to_string())?;
    let model = Model::load(&gguf, CONTEXT, &mut |_| {}).map_err(|error| error.to_string())?;
    let mut runner = CpuRunner::new(Arc::new(model), Pool::new(1, KernelSet::best()), 4);
    let page_bytes = runner.limits().kv_shape.page_bytes(PageFormat::F16);
    runner.reserve_pages(page_bytes, Rotation::None);
    runner.reserve_states(1);
    let mut batch = Batch::default();
    batch.push(0, [1, 2, 3], 1, [PageLocation { offset: 0, format: PageFormat::F16 }], None);
    if runner.limits().state_bytes > 0 {
        batch.set_state(StateSlot(0), 0);
    }
    runner.submit(&batch).map_err(|error| error.to_string())
}

#[test]
fn no_number_in_the_metadata_makes_loading_panic() {
    let (mut refused, mut accepted) = (0, 0);
    for (name, file) in files() {
        let gguf = Gguf::parse(file.clone()).expect("a sound file");
        for (key, value) in gguf.metadata().iter().filter(|(key, _)| !key.starts_with("tokenizer.")) {
            let values: Vec<u32> = match value {
                Value::U32(number) => {
                    let near = [number.wrapping_sub(1), number.wrapping_add(1), number.wrapping_mul(2)];
                    [&[0, 1, 3][..], &near, &[1 << 20, u32::MAX]].concat()
                }
                Value::F32(_) => [0.0, -1.0, 1e-30, 1e30, f32::INFINITY, f32::NAN].map(f32::to_bits).to_vec(),
                _ => continue,
            };
            for changed in values {
                let mut file = file.clone();
                let at = behind(&file, key) + 4;
                file[at..at + 4].copy_from_slice(&changed.to_le_bytes());
                let outcome = panic::catch_unwind(|| load_and_run(file));
                match outcome.unwrap_or_else(|_| panic!("{name}: {key} = {changed:#x} panics")) {
                    Ok(()) => accepted += 1,
                    Err(message) => {
                        assert!(!message.is_empty());
                        refused += 1;
                    }
                }
            }
        }
    }
    println!("{refused} refused, {accepted} of no consequence");
    assert!(refused > 500 && accepted > 100);
}

#[test]
fn a_tensor_that_is_missing_or_has_another_name_is_named() {
    for (name, file) in files() {
        let gguf = Gguf::parse(file.clone()).expect("a sound file");
        for tensor in gguf.tensors() {
            let mut file = file.clone();
            let end = behind(&file, tensor.name);
            // The last letter.
            file[end - 1] ^= 1;
            let message = load_and_run(file).expect_err("a tensor that nobody knows");
            // Without a matrix of all three, queries, keys and values are looked for.
            let begun = tensor.name.strip_suffix("kv.weight").unwrap_or(&tensor.name[..tensor.name.len() - 1]);
            assert!(message.contains(begun), "{name}, {}: {message}", tensor.name);
        }
    }
}

#[test]
fn a_tensor_of_another_shape_is_named() {
    for (name, file) in files() {
        let gguf = Gguf::parse(file.clone()).expect("a sound file");
        for tensor in gguf.tensors().filter(|tensor| tensor.dims.len() > 1 && tensor.dims[0] != tensor.dims[1]) {
            // As many weights, the other way round.
            let mut file = file.clone();
            let dims = behind(&file, tensor.name) + 4;
            file[dims..][..8].copy_from_slice(&(tensor.dims[1] as u64).to_le_bytes());
            file[dims + 8..][..8].copy_from_slice(&(tensor.dims[0] as u64).to_le_bytes());
            let message = load_and_run(file).expect_err("a tensor of another shape");
            // The embedding says how large the vocabulary is.
            assert!(message.contains(tensor.name) || tensor.name.starts_with("token_embd"), "{name}: {message}");
        }
    }
}

#[test]
fn a_weight_that_is_no_number_is_named() {
    for (name, file) in files() {
        let gguf = Gguf::parse(file.clone()).expect("a sound file");
        for tensor in gguf.tensors() {
            let mut file = file.clone();
            let last = tensor.range.end;
            match tensor.kind {
                WeightType::F32 => file[last - 4..last].copy_from_slice(&f32::NAN.to_le_bytes()),
                WeightType::Bf16 => file[last - 2..last].copy_from_slice(&0x7fc0u16.to_le_bytes()),
                _ => continue,
            }
            let message = load_and_run(file).expect_err("a weight that is no number");
            assert!(message.contains(tensor.name), "{name}: {message}");
        }
    }
}
