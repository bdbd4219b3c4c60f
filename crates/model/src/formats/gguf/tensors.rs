//! The descriptions of the tensors, and the proof that each one's bytes are in the file.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use ruvllm_kernels::WeightType;

use super::assembly::{Assembly, Part};
use super::cursor::Cursor;
use super::error::{Damage, Fault, GgufError, Place, TensorFault, shortened};
use super::name_index::{Duplicate, NameIndex};
use crate::formats::map::FileBytes;

/// Far more than any model has; bounds the table whatever the file's size.
pub(super) const TENSORS_MAX: u64 = 1 << 16;
pub(super) const DIMENSIONS_MAX: usize = 4;

/// GGUF allows 64. Converters of other kinds of models exceed that, which hurts nobody.
pub(super) const NAME_BYTES_MAX: u64 = 256;

/// A name's length and one byte of it, the count of dimensions and one dimension, the type, the offset.
pub(super) const TENSOR_INFO_BYTES_MIN: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// A tensor of a model.
#[derive(Clone)]
pub struct Tensor<'a> {
    pub name: &'a str,
    /// 1 to 4 lengths, none of them zero. GGUF's order: the length of a row comes first.
    pub dims: &'a [usize],
    pub kind: WeightType,
    /// The type that the weights are quantized to when they are loaded, if they are.
    pub packed_as: Option<WeightType>,
    /// Where the bytes are in the file, or would be.
    pub range: Range<usize>,
    storage: Storage<'a>,
}

#[derive(Clone)]
enum Storage<'a> {
    InFile(&'a FileBytes),
    Made(&'a Assembly),
}

impl<'a> Tensor<'a> {
    pub fn element_count(&self) -> usize {
        self.dims.iter().product()
    }

    /// Returns how many bytes there are, without reading them.
    pub fn bytes_len(&self) -> usize {
        self.range.len()
    }

    /// Returns how many bytes there are once the tensor is loaded.
    pub fn loaded_len(&self) -> usize {
        let rows = self.dims[1..].iter().product::<usize>();
        let packed = self.packed_as.and_then(|kind| kind.row_bytes(self.dims[0])?.checked_mul(rows));
        packed.unwrap_or(self.bytes_len())
    }

    /// Returns the bytes: those of the map, or ones that are made now.
    pub fn bytes(&self) -> Cow<'a, [u8]> {
        match &self.storage {
            Storage::InFile(file) => Cow::Borrowed(&file[self.range.clone()]),
            Storage::Made(assembly) => assembly.bytes(),
        }
    }

    /// Returns the bytes in files that the tensor is made of.
    pub fn stored(&self) -> Vec<&'a [u8]> {
        match &self.storage {
            Storage::InFile(file) => vec![&file[self.range.clone()]],
            Storage::Made(assembly) => assembly.parts.iter().map(Part::bytes).collect(),
        }
    }

    /// Gives the memory behind the bytes back to the system. They can still be read.
    pub fn give_back(&self) {
        match &self.storage {
            // Advice only: where the system does not take it, the pages are dropped later under pressure.
            Storage::InFile(file) => drop(file.give_back(self.range.clone())),
            Storage::Made(assembly) => assembly.give_back(),
        }
    }
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({:?}, {:?}, {}, bytes {:?})", self.name, self.dims, self.kind, self.range)
    }
}

/// What the file says about one tensor. The sizes are not yet checked against each other or the file.
#[derive(Debug)]
pub(super) struct TensorInfo {
    name: Box<str>,
    dims: Vec<u64>,
    type_number: u32,
    /// From the start of the data section.
    offset: u64,
}

impl TensorInfo {
    pub fn read_all(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<Self>, GgufError> {
        (0..count).map(|index| Self::read(cursor, index)).collect()
    }

    fn read(cursor: &mut Cursor<'_>, index: u64) -> Result<Self, GgufError> {
        let name = cursor.name(NAME_BYTES_MAX).map_err(|damage| damage.at(Place::TensorName { index }))?;
        Self::read_rest(cursor, name).map_err(|damage| damage.at(Place::TensorInfo { name: shortened(name) }))
    }

    fn read_rest(cursor: &mut Cursor<'_>, name: &str) -> Result<Self, Damage> {
        let start = cursor.position();
        let count = cursor.u32()?;
        if !(1..=DIMENSIONS_MAX as u32).contains(&count) {
            return Err(Cursor::damage_at(start, Fault::DimensionCount { count }));
        }
        let dims = (0..count).map(|_| cursor.u64()).collect::<Result<_, _>>()?;
        Ok(Self { name: name.into(), dims, type_number: cursor.u32()?, offset: cursor.u64()? })
    }

    fn check(&self, data: &DataSection) -> Result<CheckedTensor, GgufError> {
        self.locate(data).map_err(|fault| GgufError::Tensor { name: shortened(&self.name), fault })
    }

    fn locate(&self, data: &DataSection) -> Result<CheckedTensor, TensorFault> {
        let kind = weight_type(self.type_number)?;
        let dims = self.dims.iter().map(|dim| usize::try_from(*dim)).collect::<Result<Box<[usize]>, _>>();
        let dims = dims.map_err(|_| TensorFault::TooLarge { dims: self.dims.clone() })?;
        let size = size_bytes(&dims, kind)?;
        let range = data.range(self.offset, size)?;
        Ok(CheckedTensor { name: self.name.clone(), dims, kind, packed_as: None, range })
    }
}

/// The bytes of a tensor of this shape. `dims` is not empty.
pub(super) fn size_bytes(dims: &[usize], kind: WeightType) -> Result<usize, TensorFault> {
    let stated = || dims.iter().map(|dim| *dim as u64).collect();
    if let Some(axis) = dims.iter().position(|dim| *dim == 0) {
        return Err(TensorFault::ZeroDimension { axis, dims: stated() });
    }
    if !dims[0].is_multiple_of(kind.block_len()) {
        return Err(TensorFault::PartialBlock { kind, row_len: dims[0] as u64, block_len: kind.block_len() });
    }
    let bytes = || {
        dims.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim))?;
        dims[1..].iter().try_fold(kind.row_bytes(dims[0])?, |product, dim| product.checked_mul(*dim))
    };
    bytes().ok_or_else(|| TensorFault::TooLarge { dims: stated() })
}

fn weight_type(number: u32) -> Result<WeightType, TensorFault> {
    WeightType::from_gguf(number).ok_or_else(|| match unsupported_type_name(number) {
        Some(name) => TensorFault::UnsupportedType { number, name },
        None => TensorFault::UnknownType { number },
    })
}

/// The name of a type that GGUF has (or had) and we do not read.
fn unsupported_type_name(number: u32) -> Option<&'static str> {
    Some(match number {
        4 => "Q4_2 (withdrawn)",
        5 => "Q4_3 (withdrawn)",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        31 => "Q4_0_4_4 (withdrawn)",
        32 => "Q4_0_4_8 (withdrawn)",
        33 => "Q4_0_8_8 (withdrawn)",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36..=38 => "IQ4_NL repacked (withdrawn)",
        40 => "NVFP4",
        41 => "Q1_0",
        _ => return None,
    })
}

/// The part of the file that holds the tensors' bytes.
#[derive(Debug)]
pub(super) struct DataSection {
    pub start: u64,
    pub alignment: u64,
    pub file_size: u64,
}

impl DataSection {
    fn range(&self, offset: u64, size: usize) -> Result<Range<usize>, TensorFault> {
        if !offset.is_multiple_of(self.alignment) {
            return Err(TensorFault::Misaligned { offset, alignment: self.alignment });
        }
        let start = self.start.checked_add(offset);
        let end = start.and_then(|start| start.checked_add(size as u64)).filter(|end| *end <= self.file_size);
        match (start, end) {
            // Both are within the file, and the file is in memory, so they fit a usize.
            (Some(start), Some(end)) => Ok(start as usize..end as usize),
            _ => Err(TensorFault::PastEnd { offset, size: size as u64, file_size: self.file_size }),
        }
    }
}

#[derive(Debug)]
struct CheckedTensor {
    name: Box<str>,
    dims: Box<[usize]>,
    kind: WeightType,
    packed_as: Option<WeightType>,
    range: Range<usize>,
}

/// All tensors, in the order of their descriptions. Each lies within the file and shares no byte with another.
#[derive(Debug)]
pub(super) struct TensorTable {
    tensors: Vec<CheckedTensor>,
    by_name: NameIndex,
    /// Of each tensor, if they are not in the file.
    assemblies: Vec<Assembly>,
}

impl TensorTable {
    pub fn check(infos: &[TensorInfo], data: &DataSection) -> Result<Self, GgufError> {
        let tensors = infos.iter().map(|info| info.check(data)).collect::<Result<Vec<_>, _>>()?;
        let by_name = NameIndex::new(&tensors, |tensor| &tensor.name).map_err(|Duplicate { first, second }| {
            GgufError::DuplicateTensor { name: shortened(&tensors[first].name), first, second }
        })?;
        refuse_overlaps(&tensors)?;
        Ok(Self { tensors, by_name, assemblies: Vec::new() })
    }

    /// Says how the tensors are made that are not in the file. There must be one for each.
    pub fn with_assemblies(self, assemblies: Vec<Assembly>) -> Self {
        assert_eq!(assemblies.len(), self.tensors.len());
        Self { assemblies, ..self }
    }

    /// Says what the tensors are quantized to when they are loaded, in their order.
    pub fn pack_as(&mut self, kinds: Vec<Option<WeightType>>) {
        assert_eq!(kinds.len(), self.tensors.len());
        self.tensors.iter_mut().zip(kinds).for_each(|(tensor, kind)| tensor.packed_as = kind);
    }

    /// Returns where the first tensor is in the file.
    pub fn first_offset(&self) -> Option<usize> {
        self.tensors.iter().map(|tensor| tensor.range.start).min()
    }

    pub fn find<'a>(&'a self, file: &'a FileBytes, name: &str) -> Option<Tensor<'a>> {
        let index = self.by_name.position(&self.tensors, |tensor| &tensor.name, name)?;
        Some(self.view(file, index))
    }

    pub fn iter<'a>(&'a self, file: &'a FileBytes) -> impl ExactSizeIterator<Item = Tensor<'a>> {
        (0..self.tensors.len()).map(|index| self.view(file, index))
    }

    fn view<'a>(&'a self, file: &'a FileBytes, index: usize) -> Tensor<'a> {
        let CheckedTensor { name, dims, kind, packed_as, range } = &self.tensors[index];
        let storage = match self.assemblies.get(index) {
            Some(assembly) => Storage::Made(assembly),
            None => Storage::InFile(file),
        };
        Tensor { name, dims, kind: *kind, packed_as: *packed_as, range: range.clone(), storage }
    }
}

fn refuse_overlaps(tensors: &[CheckedTensor]) -> Result<(), GgufError> {
    let mut by_start: Vec<&CheckedTensor> = tensors.iter().collect();
    by_start.sort_by_key(|tensor| tensor.range.start);
    // No tensor is empty, so if any two overlap then some neighbours do.
    match by_start.windows(2).find(|pair| pair[0].range.end > pair[1].range.start) {
        Some(pair) => Err(GgufError::Overlap {
            first: shortened(&pair[0].name),
            second: shortened(&pair[1].name),
            start: pair[1].range.start as u64,
            end: pair[0].range.end as u64,
        }),
        None => Ok(()),
    }
}
