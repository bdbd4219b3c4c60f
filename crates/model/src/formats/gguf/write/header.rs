//! What a file will hold: metadata, and the names, shapes and types of its tensors.

use std::collections::HashSet;

use ruvllm_kernels::WeightType;

use super::super::array::Number;
use super::super::error::shortened;
use super::super::metadata::{KEY_BYTES_MAX, Metadata};
use super::super::tensors::{DIMENSIONS_MAX, NAME_BYTES_MAX, size_bytes};
use super::super::value::{Value, ValueType};
use super::super::{ALIGNMENT_DEFAULT, ALIGNMENT_KEY, is_alignment};
use super::WriteError;
use super::encode::{array, entry, preamble, string, tensor_info};

const VERSION: u32 = 3;

/// Metadata and tensors of a file that is to be written, in their order.
#[derive(Clone, Debug, Default)]
pub struct Header {
    entries: Vec<Entry>,
    tensors: Vec<Planned>,
}

#[derive(Clone, Debug)]
struct Entry {
    key: String,
    kind: ValueType,
    /// As it will be in the file.
    value: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Planned {
    name: String,
    dims: Vec<usize>,
    kind: WeightType,
}

impl Header {
    pub fn new() -> Self {
        Self::default()
    }

    /// All metadata of another file, unchanged.
    pub fn copying(metadata: Metadata<'_>) -> Self {
        // Read keys are known to differ, so none is looked for.
        let entries = metadata.iter().map(|(key, value)| Entry {
            key: key.to_owned(),
            kind: value.kind(),
            value: value_bytes(value),
        });
        Self { entries: entries.collect(), tensors: Vec::new() }
    }

    /// Sets a key. One that is there keeps its place.
    pub fn set(&mut self, key: &str, value: Value<'_>) {
        self.set_bytes(key, value.kind(), value_bytes(value));
    }

    pub fn set_numbers<T: Number + Copy>(&mut self, key: &str, numbers: &[T]) {
        let elements: Vec<u8> = numbers.iter().flat_map(|number| number.encode()).collect();
        self.set_bytes(key, ValueType::Array, array(T::TYPE, numbers.len() as u64, &elements));
    }

    pub fn set_bools(&mut self, key: &str, flags: &[bool]) {
        let elements: Vec<u8> = flags.iter().map(|flag| u8::from(*flag)).collect();
        self.set_bytes(key, ValueType::Array, array(ValueType::Bool, flags.len() as u64, &elements));
    }

    pub fn set_strings<S: AsRef<str>>(&mut self, key: &str, strings: &[S]) {
        let elements: Vec<u8> = strings.iter().flat_map(|text| string(text.as_ref().as_bytes())).collect();
        self.set_bytes(key, ValueType::Array, array(ValueType::String, strings.len() as u64, &elements));
    }

    fn set_bytes(&mut self, key: &str, kind: ValueType, value: Vec<u8>) {
        match self.entries.iter_mut().find(|entry| entry.key == key) {
            Some(entry) => (entry.kind, entry.value) = (kind, value),
            None => self.entries.push(Entry { key: key.to_owned(), kind, value }),
        }
    }

    /// Adds a tensor; its bytes are written after those of the tensors before. `dims` as in a
    /// [`Tensor`](super::super::Tensor): the length of a row comes first.
    pub fn add_tensor(&mut self, name: &str, dims: &[usize], kind: WeightType) {
        self.tensors.push(Planned { name: name.to_owned(), dims: dims.to_vec(), kind });
    }

    /// Checks everything and finds the place of every tensor.
    pub fn layout(&self) -> Result<Layout, WriteError> {
        let alignment = self.alignment()?;
        let mut head = preamble(VERSION, self.tensors.len() as u64, self.entries.len() as u64);
        for Entry { key, kind, value } in &self.entries {
            check_name("metadata key", key, KEY_BYTES_MAX)?;
            head.extend(entry(key.as_bytes(), *kind as u32, value));
        }
        let mut names = HashSet::new();
        let mut sizes = Vec::new();
        let mut end = 0u64;
        for tensor in &self.tensors {
            if !names.insert(&tensor.name) {
                return Err(WriteError::DuplicateTensor { name: shortened(&tensor.name) });
            }
            let size = tensor.size_bytes()?;
            let dims: Vec<u64> = tensor.dims.iter().map(|dim| *dim as u64).collect();
            head.extend(tensor_info(&tensor.name, &dims, tensor.kind as u32, end));
            let next = end.checked_add(size).and_then(|end| end.checked_next_multiple_of(alignment));
            end = next.ok_or(WriteError::TooLarge)?;
            sizes.push(size);
        }
        head.resize(head.len().next_multiple_of(alignment as usize), 0);
        Ok(Layout {
            file_bytes: end.checked_add(head.len() as u64).ok_or(WriteError::TooLarge)?,
            head,
            sizes,
            alignment,
        })
    }

    fn alignment(&self) -> Result<u64, WriteError> {
        let Some(entry) = self.entries.iter().find(|entry| entry.key == ALIGNMENT_KEY) else {
            return Ok(ALIGNMENT_DEFAULT);
        };
        // Readers take other widths too, so a copied file may have one.
        let value = entry.value.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        let is_integer = !matches!(
            entry.kind,
            ValueType::String | ValueType::Array | ValueType::F32 | ValueType::F64 | ValueType::Bool
        );
        if is_integer && is_alignment(value) {
            return Ok(value);
        }
        let shown = if is_integer { value.to_string() } else { format!("a {}", entry.kind) };
        Err(WriteError::Alignment(shown))
    }
}

impl Planned {
    fn size_bytes(&self) -> Result<u64, WriteError> {
        check_name("tensor name", &self.name, NAME_BYTES_MAX)?;
        if !(1..=DIMENSIONS_MAX).contains(&self.dims.len()) {
            let (name, count) = (shortened(&self.name), self.dims.len());
            return Err(WriteError::DimensionCount { name, count, max: DIMENSIONS_MAX });
        }
        match size_bytes(&self.dims, self.kind) {
            Ok(size) => Ok(size as u64),
            Err(fault) => Err(WriteError::Tensor { name: shortened(&self.name), fault }),
        }
    }
}

fn check_name(what: &'static str, name: &str, max: u64) -> Result<(), WriteError> {
    let length = name.len() as u64;
    if (1..=max).contains(&length) {
        return Ok(());
    }
    Err(WriteError::NameLength { what, name: shortened(name), length, max })
}

fn value_bytes(value: Value<'_>) -> Vec<u8> {
    match value {
        Value::U8(number) => number.to_le_bytes().to_vec(),
        Value::I8(number) => number.to_le_bytes().to_vec(),
        Value::U16(number) => number.to_le_bytes().to_vec(),
        Value::I16(number) => number.to_le_bytes().to_vec(),
        Value::U32(number) => number.to_le_bytes().to_vec(),
        Value::I32(number) => number.to_le_bytes().to_vec(),
        Value::F32(number) => number.to_le_bytes().to_vec(),
        Value::U64(number) => number.to_le_bytes().to_vec(),
        Value::I64(number) => number.to_le_bytes().to_vec(),
        Value::F64(number) => number.to_le_bytes().to_vec(),
        Value::Bool(flag) => vec![u8::from(flag)],
        Value::String(text) => string(text.as_bytes()),
        Value::Array(elements) => array(elements.element_type(), elements.len() as u64, elements.encoded()),
    }
}

/// Where everything will be in the file.
#[derive(Clone, Debug)]
pub struct Layout {
    head: Vec<u8>,
    sizes: Vec<u64>,
    alignment: u64,
    file_bytes: u64,
}

impl Layout {
    /// The size of the finished file.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Everything before the first tensor's bytes.
    pub(in crate::formats::gguf) fn head(&self) -> &[u8] {
        &self.head
    }

    pub(super) fn tensor_count(&self) -> usize {
        self.sizes.len()
    }

    pub(super) fn tensor_bytes(&self, tensor: usize) -> u64 {
        self.sizes.get(tensor).copied().unwrap_or(0)
    }

    /// Every tensor is followed by zeros up to the alignment, the last one too: some readers ask for whole units.
    pub(super) fn padding_after(&self, tensor: usize) -> usize {
        let size = self.tensor_bytes(tensor);
        (size.next_multiple_of(self.alignment) - size) as usize
    }
}
