//! GGUF files for tests: sound ones, and ones that lie.

use ruvllm_kernels::WeightType;

use super::super::value::ValueType;
use super::encode::{array, entry, preamble, string, tensor_info};

/// A file in the making. Nothing is checked.
#[derive(Clone, Debug)]
pub struct Draft {
    pub version: u32,
    pub alignment: usize,
    /// What the header says, if it is not to be the truth.
    pub entry_count: Option<u64>,
    pub tensor_count: Option<u64>,
    entries: Vec<Vec<u8>>,
    infos: Vec<Vec<u8>>,
    data: Vec<u8>,
}

impl Draft {
    pub fn new() -> Self {
        Self {
            version: 3,
            alignment: 32,
            entry_count: None,
            tensor_count: None,
            entries: Vec::new(),
            infos: Vec::new(),
            data: Vec::new(),
        }
    }

    /// An entry with any key, type number and value bytes.
    pub fn raw_entry(mut self, key: &[u8], type_number: u32, value: &[u8]) -> Self {
        self.entries.push(entry(key, type_number, value));
        self
    }

    pub fn entry(self, key: &str, kind: ValueType, value: &[u8]) -> Self {
        self.raw_entry(key.as_bytes(), kind as u32, value)
    }

    pub fn u32(self, key: &str, value: u32) -> Self {
        self.entry(key, ValueType::U32, &value.to_le_bytes())
    }

    pub fn string(self, key: &str, value: &str) -> Self {
        self.entry(key, ValueType::String, &string(value.as_bytes()))
    }

    pub fn array(self, key: &str, element: ValueType, count: u64, elements: &[u8]) -> Self {
        self.entry(key, ValueType::Array, &array(element, count, elements))
    }

    pub fn strings(self, key: &str, strings: &[&[u8]]) -> Self {
        let elements: Vec<u8> = strings.iter().flat_map(|text| string(text)).collect();
        self.array(key, ValueType::String, strings.len() as u64, &elements)
    }

    /// A description of a tensor, without bytes for it.
    pub fn info(mut self, name: &str, dims: &[u64], type_number: u32, offset: u64) -> Self {
        self.infos.push(tensor_info(name, dims, type_number, offset));
        self
    }

    /// A tensor and its bytes, which follow those of the tensor before.
    pub fn tensor(mut self, name: &str, dims: &[u64], kind: WeightType, bytes: &[u8]) -> Self {
        self.data.resize(self.data.len().next_multiple_of(self.alignment), 0);
        let offset = self.data.len() as u64;
        self.data.extend(bytes);
        self.info(name, dims, kind as u32, offset)
    }

    pub fn data(mut self, bytes: &[u8]) -> Self {
        self.data.extend(bytes);
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let tensor_count = self.tensor_count.unwrap_or(self.infos.len() as u64);
        let entry_count = self.entry_count.unwrap_or(self.entries.len() as u64);
        let mut file = preamble(self.version, tensor_count, entry_count);
        file.extend(self.entries.concat());
        file.extend(self.infos.concat());
        if !self.data.is_empty() {
            file.resize(file.len().next_multiple_of(self.alignment), 0);
            file.extend(&self.data);
        }
        file
    }
}
