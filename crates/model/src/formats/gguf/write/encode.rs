//! How GGUF spells things. Nothing is checked here.

use super::super::MAGIC;
use super::super::value::ValueType;

/// The fixed part at the front.
pub(super) fn preamble(version: u32, tensor_count: u64, entry_count: u64) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(tensor_count.to_le_bytes());
    bytes.extend(entry_count.to_le_bytes());
    bytes
}

pub(super) fn entry(key: &[u8], type_number: u32, value: &[u8]) -> Vec<u8> {
    [&string(key), &type_number.to_le_bytes()[..], value].concat()
}

/// `offset` counts from the start of the data.
pub(super) fn tensor_info(name: &str, dims: &[u64], type_number: u32, offset: u64) -> Vec<u8> {
    let mut info = string(name.as_bytes());
    info.extend((dims.len() as u32).to_le_bytes());
    info.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
    info.extend(type_number.to_le_bytes());
    info.extend(offset.to_le_bytes());
    info
}

pub(crate) fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}

pub(crate) fn array(element: ValueType, count: u64, elements: &[u8]) -> Vec<u8> {
    [&(element as u32).to_le_bytes()[..], &count.to_le_bytes(), elements].concat()
}
