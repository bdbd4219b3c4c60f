//! GGUF, versions 2 and 3, little-endian: a header, key-value metadata, descriptions of tensors, the tensors' bytes.
//!
//! Opening a file checks all of its structure, so that what follows needs no more checks. Arrays and tensors stay in
//! the file. What the keys and tensors mean is not known here, except in [`facts`].

mod array;
pub(crate) mod assembly;
mod cursor;
mod error;
pub mod facts;
mod metadata;
mod name_index;
mod recognise;
mod tensors;
mod value;
pub mod write;

use std::path::Path;

use ruvllm_kernels::WeightType;

pub use array::{Array, Number};
pub use error::{Fault, GgufError, MetadataError, Place, TensorFault};
pub(crate) use error::{cut, shortened};
pub use metadata::Metadata;
pub use recognise::ForeignFormat;
pub use tensors::Tensor;
pub use value::{FromValue, Mismatch, Value, ValueType};

use super::map::FileBytes;
use assembly::Assembly;
use cursor::Cursor;
use metadata::{ENTRIES_MAX, ENTRY_BYTES_MIN, MetadataTable};
use tensors::{DataSection, TENSOR_INFO_BYTES_MIN, TENSORS_MAX, TensorInfo, TensorTable};
use write::Layout;

const MAGIC: &[u8; 4] = b"GGUF";
const VERSIONS: std::ops::RangeInclusive<u32> = 2..=3;
const ALIGNMENT_KEY: &str = "general.alignment";
const ALIGNMENT_DEFAULT: u64 = 32;
/// GGUF wants a multiple of eight.
const ALIGNMENT_MIN: u64 = 8;
/// Larger than any page or cache line worth aligning to.
const ALIGNMENT_MAX: u64 = 1 << 20;

/// An opened GGUF file whose structure is sound, or other files presented as one.
#[derive(Debug)]
pub struct Gguf {
    file: FileBytes,
    size_bytes: u64,
    version: u32,
    metadata: MetadataTable,
    tensors: TensorTable,
}

impl Gguf {
    /// Maps the file and checks it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let path = path.as_ref();
        let file = FileBytes::open(path).map_err(|source| GgufError::Open { path: path.to_owned(), source })?;
        Self::parse(file)
    }

    /// Checks bytes that are in memory already.
    pub fn parse(bytes: impl Into<FileBytes>) -> Result<Self, GgufError> {
        let file = bytes.into();
        let size_bytes = file.len() as u64;
        Self::parse_head(file, size_bytes)
    }

    /// Presents tensors that are elsewhere as those of a file with this header, in its order.
    pub(crate) fn assembled(layout: &Layout, assemblies: Vec<Assembly>) -> Result<Self, GgufError> {
        let head = Self::parse_head(layout.head().to_vec().into(), layout.file_bytes())?;
        Ok(Self { tensors: head.tensors.with_assemblies(assemblies), ..head })
    }

    /// Checks everything but the tensors' bytes; `size_bytes` are those of the whole file.
    fn parse_head(file: FileBytes, size_bytes: u64) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(&file);
        let header = Header::read(&file, &mut cursor)?;
        let metadata = MetadataTable::read(&mut cursor, header.entry_count)?;
        let infos = TensorInfo::read_all(&mut cursor, header.tensor_count)?;
        let alignment = alignment(Metadata::new(&metadata, &file))?;
        let data = DataSection {
            start: (cursor.position() as u64).next_multiple_of(alignment),
            alignment,
            file_size: size_bytes,
        };
        let tensors = TensorTable::check(&infos, &data)?;
        Ok(Self { version: header.version, metadata, tensors, size_bytes, file })
    }

    pub fn version(&self) -> u32 {
        self.version
    }

    pub fn metadata(&self) -> Metadata<'_> {
        Metadata::new(&self.metadata, &self.file)
    }

    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        self.tensors.find(&self.file, name)
    }

    /// All tensors, in the order in which the file describes them.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.tensors.iter(&self.file)
    }

    /// Says what the tensors are quantized to when they are loaded, in their order.
    pub(crate) fn pack_as(&mut self, kinds: Vec<Option<WeightType>>) {
        self.tensors.pack_as(kinds);
    }

    /// Returns everything that comes before the tensors' bytes.
    pub fn head(&self) -> &[u8] {
        &self.file[..self.tensors.first_offset().unwrap_or(self.file.len())]
    }

    /// Returns the whole file, or the head of what is presented as one.
    pub fn file(&self) -> &FileBytes {
        &self.file
    }

    /// Returns the size of the file, or that of the file that it would be.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
}

struct Header {
    version: u32,
    tensor_count: u64,
    entry_count: u64,
}

impl Header {
    fn read(file: &[u8], cursor: &mut Cursor<'_>) -> Result<Self, GgufError> {
        let at_header = |damage: error::Damage| damage.at(Place::Header);
        // A file shorter than the magic is a cut GGUF if what is there agrees with it.
        if file.is_empty() || !file.iter().zip(MAGIC).all(|(byte, magic)| byte == magic) {
            return Err(GgufError::Foreign(ForeignFormat::of(file)));
        }
        cursor.take(MAGIC.len() as u64).map_err(at_header)?;
        let version = cursor.u32().map_err(at_header)?;
        if VERSIONS.contains(&version.swap_bytes()) {
            return Err(GgufError::Foreign(ForeignFormat::BigEndianGguf));
        }
        if !VERSIONS.contains(&version) {
            return Err(GgufError::Version(version));
        }
        let tensor_count = cursor.u64().map_err(at_header)?;
        let entry_count = cursor.u64().map_err(at_header)?;
        let header = Self { version, tensor_count, entry_count };
        header.check_counts(cursor.remaining())?;
        Ok(header)
    }

    fn check_counts(&self, remaining: u64) -> Result<(), GgufError> {
        let counts = [
            ("metadata entries", self.entry_count, ENTRY_BYTES_MIN),
            ("tensors", self.tensor_count, TENSOR_INFO_BYTES_MIN),
        ];
        for (what, count, bytes_min) in counts {
            if count > remaining / bytes_min {
                return Err(GgufError::Count { what, count, bytes_min, remaining });
            }
        }
        if self.entry_count > ENTRIES_MAX {
            return Err(GgufError::TooManyEntries { count: self.entry_count });
        }
        if self.tensor_count > TENSORS_MAX {
            return Err(GgufError::TooManyTensors { count: self.tensor_count });
        }
        Ok(())
    }
}

fn alignment(metadata: Metadata<'_>) -> Result<u64, GgufError> {
    let alignment = metadata.optional::<u64>(ALIGNMENT_KEY)?.unwrap_or(ALIGNMENT_DEFAULT);
    if !is_alignment(alignment) {
        return Err(GgufError::Alignment(alignment));
    }
    Ok(alignment)
}

fn is_alignment(alignment: u64) -> bool {
    alignment.is_power_of_two() && (ALIGNMENT_MIN..=ALIGNMENT_MAX).contains(&alignment)
}

#[cfg(test)]
mod tests;
