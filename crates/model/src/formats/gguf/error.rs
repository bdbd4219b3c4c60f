//! What can be wrong with a GGUF file, and where.

use std::fmt;
use std::io;
use std::path::PathBuf;

use ruvllm_kernels::WeightType;
use thiserror::Error;

use super::metadata::ENTRIES_MAX;
use super::recognise::ForeignFormat;
use super::tensors::TENSORS_MAX;
use super::value::ValueType;
use super::{ALIGNMENT_MAX, ALIGNMENT_MIN};

/// Why a file could not be opened as GGUF. Names in it are shortened, so that a hostile one cannot flood a log.
#[derive(Debug, Error)]
pub enum GgufError {
    #[error("cannot open {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("not a GGUF file: {0}")]
    Foreign(ForeignFormat),
    #[error("GGUF version {0} is not supported (only 2 and 3 are): the file is too old or too new, or damaged")]
    Version(u32),
    #[error(
        "the header promises {count} {what} of at least {bytes_min} bytes each, but only {remaining} bytes follow it"
    )]
    Count { what: &'static str, count: u64, bytes_min: u64, remaining: u64 },
    #[error("{count} metadata entries are more than the supported {ENTRIES_MAX}")]
    TooManyEntries { count: u64 },
    #[error("{count} tensors are more than the supported {TENSORS_MAX}")]
    TooManyTensors { count: u64 },
    #[error("{fault}, in {place} at byte {offset}")]
    Damaged { place: Place, offset: u64, fault: Fault },
    #[error("metadata key {key:?} occurs twice: at byte {first} and at byte {second}")]
    DuplicateKey { key: String, first: u64, second: u64 },
    #[error(
        "general.alignment is {0}; it must be a power of two between {min} and {max}",
        min = ALIGNMENT_MIN,
        max = ALIGNMENT_MAX
    )]
    Alignment(u64),
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    #[error("tensor {name:?}: {fault}")]
    Tensor { name: String, fault: TensorFault },
    #[error("tensor name {name:?} occurs twice: as tensor {first} and as tensor {second}")]
    DuplicateTensor { name: String, first: usize, second: usize },
    #[error(
        "tensors {first:?} and {second:?} overlap: the second starts at byte {start}, the first ends at byte {end}"
    )]
    Overlap { first: String, second: String, start: u64, end: u64 },
}

/// What was being read when the damage was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Header,
    Key { index: u64 },
    Value { key: String },
    TensorName { index: u64 },
    TensorInfo { name: String },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => write!(f, "the header"),
            Self::Key { index } => write!(f, "the key of metadata entry {index}"),
            Self::Value { key } => write!(f, "the value of {key:?}"),
            Self::TensorName { index } => write!(f, "the name of tensor {index}"),
            Self::TensorInfo { name } => write!(f, "the description of tensor {name:?}"),
        }
    }
}

/// Bytes that make no sense where they stand.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    #[error("the file ends: {needed} bytes needed, {remaining} left")]
    Truncated { needed: u64, remaining: u64 },
    #[error("a string of {length} bytes, but only {remaining} bytes are left")]
    StringPastEnd { length: u64, remaining: u64 },
    #[error("a string of {length} bytes is longer than the supported {max}")]
    StringTooLong { length: u64, max: u64 },
    #[error("a name of {length} bytes; it must have 1 to {max}")]
    NameLength { length: u64, max: u64 },
    #[error("text that is not valid UTF-8")]
    Utf8,
    #[error("unknown value type {number}")]
    ValueType { number: u32 },
    #[error("a bool of {byte}; it must be 0 or 1")]
    Bool { byte: u8 },
    #[error("an array of {count} x {element}, but only {remaining} bytes are left")]
    ArrayPastEnd { element: ValueType, count: u64, remaining: u64 },
    #[error("arrays nested more than {max} deep")]
    ArrayTooDeep { max: usize },
    #[error("{count} dimensions; there must be 1 to 4")]
    DimensionCount { count: u32 },
}

/// A fault and the byte it is at; the reader adds the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Damage {
    pub offset: u64,
    pub fault: Fault,
}

impl Damage {
    pub fn at(self, place: Place) -> GgufError {
        GgufError::Damaged { place, offset: self.offset, fault: self.fault }
    }
}

/// A tensor whose description is readable but cannot be true.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TensorFault {
    #[error("weight type {name} (number {number}) is not supported")]
    UnsupportedType { number: u32, name: &'static str },
    #[error("unknown weight type number {number}")]
    UnknownType { number: u32 },
    #[error("dimension {axis} of {dims:?} is zero")]
    ZeroDimension { axis: usize, dims: Vec<u64> },
    #[error("dimensions {dims:?} are more than can be addressed")]
    TooLarge { dims: Vec<u64> },
    #[error("rows of {row_len} elements are not a whole number of {kind} blocks, which hold {block_len}")]
    PartialBlock { kind: WeightType, row_len: u64, block_len: usize },
    #[error("offset {offset} is not a multiple of the alignment {alignment}")]
    Misaligned { offset: u64, alignment: u64 },
    #[error(
        "its {size} bytes at offset {offset} of the data end beyond the file of {file_size} bytes; is the download complete?"
    )]
    PastEnd { offset: u64, size: u64, file_size: u64 },
}

/// Why a metadata value is not what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MetadataError {
    #[error("metadata key {key:?} is missing")]
    Missing { key: String },
    #[error("metadata key {key:?} should be {expected}, but is {got}")]
    WrongType { key: String, expected: &'static str, got: String },
    #[error("metadata key {key:?} should be an array of {expected}, but is an array of {got}")]
    WrongElementType { key: String, expected: &'static str, got: ValueType },
    #[error("metadata key {key:?} should be {expected}, but its value {value} does not fit")]
    OutOfRange { key: String, expected: &'static str, value: i128 },
    #[error("metadata key {key:?}: element {index} is not valid UTF-8")]
    ElementUtf8 { key: String, index: usize },
    #[error("metadata key {key:?}: element {index} is damaged; the file has changed since it was opened")]
    ElementChanged { key: String, index: usize },
}

/// A name for an error message: at most 80 characters of it.
pub(crate) fn shortened(name: &str) -> String {
    cut(name, 80)
}

/// Returns at most so many characters of a text, and a mark where there are more.
pub(crate) fn cut(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
