//! Reads any bytes as a GGUF file and touches everything a sound one offers.

use ruvllm_model::formats::gguf::facts::ModelFacts;
use ruvllm_model::formats::gguf::{Array, Gguf, Value};

pub fn run(bytes: &[u8]) {
    match Gguf::parse(bytes.to_vec()) {
        Ok(file) => walk(&file),
        // The message is made of the file's bytes too.
        Err(error) => assert!(error.to_string().len() < 2_000),
    }
}

fn walk(file: &Gguf) {
    for (key, value) in file.metadata().iter() {
        assert!(file.metadata().get(key).is_some());
        if let Value::Array(array) = value {
            walk_array(array);
        }
    }
    let mut ranges = Vec::new();
    for tensor in file.tensors() {
        assert_eq!(file.tensor(tensor.name).map(|found| found.range), Some(tensor.range.clone()));
        assert_eq!(tensor.bytes().len(), tensor.range.len());
        assert!(tensor.element_count() > 0);
        ranges.push(tensor.range);
    }
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
    let _ = ModelFacts::of(file);
}

fn walk_array(array: Array<'_>) {
    if let Ok(strings) = array.strings() {
        assert_eq!(strings.count(), array.len());
    }
    if let Ok(integers) = array.integers() {
        assert_eq!(integers.count(), array.len());
    }
    if let Ok(numbers) = array.numbers::<f32>() {
        assert_eq!(numbers.count(), array.len());
    }
    if let Ok(flags) = array.bools() {
        assert_eq!(flags.count(), array.len());
    }
    if let Ok(arrays) = array.arrays() {
        arrays.map(|inner| inner.expect("checked when the file was opened")).for_each(walk_array);
    }
}
