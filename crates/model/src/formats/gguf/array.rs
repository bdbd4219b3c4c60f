//! Metadata arrays: checked once when the file is opened, decoded from the file's bytes each time they are iterated.

use std::fmt;
use std::iter;
use std::ops::Range;

use super::cursor::Cursor;
use super::error::{Damage, Fault, MetadataError, shortened};
use super::value::ValueType;

/// Arrays of arrays of arrays of arrays: more than any known file uses.
pub(super) const DEPTH_MAX: usize = 4;

/// Where an array's elements are.
#[derive(Clone, Debug)]
pub(super) struct ArrayRange {
    pub element: ValueType,
    pub len: usize,
    pub bytes: Range<usize>,
}

/// Reads past an array and checks everything but the text of its strings.
pub(super) fn read_array(cursor: &mut Cursor<'_>) -> Result<ArrayRange, Damage> {
    read_array_within(cursor, 1)
}

fn read_array_within(cursor: &mut Cursor<'_>, depth: usize) -> Result<ArrayRange, Damage> {
    let start = cursor.position();
    if depth > DEPTH_MAX {
        return Err(cursor.damage(Fault::ArrayTooDeep { max: DEPTH_MAX }));
    }
    let element = read_type(cursor)?;
    let count = cursor.u64()?;
    let remaining = cursor.remaining();
    let past_end = || Cursor::damage_at(start, Fault::ArrayPastEnd { element, count, remaining });
    let bytes_min = count.checked_mul(element.bytes_min() as u64).filter(|bytes| *bytes <= remaining);
    let bytes_min = bytes_min.ok_or_else(past_end)?;
    let len = usize::try_from(count).map_err(|_| past_end())?;
    let elements_start = cursor.position();
    match element {
        ValueType::String => (0..len).try_for_each(|_| cursor.string_bytes().map(drop))?,
        ValueType::Array => (0..len).try_for_each(|_| read_array_within(cursor, depth + 1).map(drop))?,
        ValueType::Bool => (0..len).try_for_each(|_| cursor.bool().map(drop))?,
        _ => drop(cursor.take(bytes_min)?),
    }
    Ok(ArrayRange { element, len, bytes: elements_start..cursor.position() })
}

pub(super) fn read_type(cursor: &mut Cursor<'_>) -> Result<ValueType, Damage> {
    let start = cursor.position();
    let number = cursor.u32()?;
    ValueType::from_number(number).ok_or_else(|| Cursor::damage_at(start, Fault::ValueType { number }))
}

/// The elements of a metadata array, still in the file.
#[derive(Clone, Copy, PartialEq)]
pub struct Array<'a> {
    /// For error messages.
    key: &'a str,
    element: ValueType,
    len: usize,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    pub(super) fn new(key: &'a str, range: &ArrayRange, file: &'a [u8]) -> Self {
        Self { key, element: range.element, len: range.len, bytes: &file[range.bytes.clone()] }
    }

    /// The elements' bytes as they are in the file.
    pub(super) fn encoded(&self) -> &'a [u8] {
        self.bytes
    }

    pub fn element_type(&self) -> ValueType {
        self.element
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements of an array whose element type is exactly `T`.
    pub fn numbers<T: Number>(self) -> Result<impl ExactSizeIterator<Item = T>, MetadataError> {
        self.expect(T::TYPE.name(), self.element == T::TYPE)?;
        Ok(self.bytes.chunks_exact(T::TYPE.bytes_min()).map(T::decode))
    }

    /// The elements of an array of integers of any width.
    pub fn integers(self) -> Result<impl ExactSizeIterator<Item = i128>, MetadataError> {
        let decode: fn(&[u8]) -> i128 = match self.element {
            ValueType::U8 => |bytes| u8::decode(bytes).into(),
            ValueType::I8 => |bytes| i8::decode(bytes).into(),
            ValueType::U16 => |bytes| u16::decode(bytes).into(),
            ValueType::I16 => |bytes| i16::decode(bytes).into(),
            ValueType::U32 => |bytes| u32::decode(bytes).into(),
            ValueType::I32 => |bytes| i32::decode(bytes).into(),
            ValueType::U64 => |bytes| u64::decode(bytes).into(),
            ValueType::I64 => |bytes| i64::decode(bytes).into(),
            _ => return Err(self.wrong_type("integers")),
        };
        Ok(self.bytes.chunks_exact(self.element.bytes_min()).map(decode))
    }

    pub fn bools(self) -> Result<impl ExactSizeIterator<Item = bool>, MetadataError> {
        self.expect("bools", self.element == ValueType::Bool)?;
        Ok(self.bytes.iter().map(|byte| *byte == 1))
    }

    /// The strings, each checked for valid UTF-8 as it is read.
    pub fn strings(self) -> Result<impl Iterator<Item = Result<&'a str, MetadataError>>, MetadataError> {
        self.expect("strings", self.element == ValueType::String)?;
        Ok(self.elements(|array, index, cursor| {
            let bytes = cursor.string_bytes().map_err(|_| array.changed(index))?;
            str::from_utf8(bytes).map_err(|_| MetadataError::ElementUtf8 { key: shortened(array.key), index })
        }))
    }

    pub fn arrays(self) -> Result<impl Iterator<Item = Result<Array<'a>, MetadataError>>, MetadataError> {
        self.expect("arrays", self.element == ValueType::Array)?;
        Ok(self.elements(|array, index, cursor| {
            let range = read_array(cursor).map_err(|_| array.changed(index))?;
            Ok(Array::new(array.key, &range, array.bytes))
        }))
    }

    fn elements<T>(
        self,
        mut decode: impl FnMut(&Self, usize, &mut Cursor<'a>) -> Result<T, MetadataError>,
    ) -> impl Iterator<Item = Result<T, MetadataError>> {
        let mut cursor = Cursor::new(self.bytes);
        let mut index = 0;
        iter::from_fn(move || {
            let element = (index < self.len).then(|| decode(&self, index, &mut cursor))?;
            index = match element {
                // Nothing that follows can be found any more.
                Err(MetadataError::ElementChanged { .. }) => self.len,
                _ => index + 1,
            };
            Some(element)
        })
    }

    fn expect(&self, expected: &'static str, holds: bool) -> Result<(), MetadataError> {
        if holds { Ok(()) } else { Err(self.wrong_type(expected)) }
    }

    fn wrong_type(&self, elements: &'static str) -> MetadataError {
        MetadataError::WrongElementType { key: shortened(self.key), expected: elements, got: self.element }
    }

    fn changed(&self, index: usize) -> MetadataError {
        MetadataError::ElementChanged { key: shortened(self.key), index }
    }

    pub(super) fn type_name(&self) -> String {
        format!("array of {}", self.element)
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({} x {})", self.len, self.element)
    }
}

/// A number that an array can hold.
pub trait Number: Sized {
    const TYPE: ValueType;

    /// From exactly the bytes of one element.
    fn decode(bytes: &[u8]) -> Self;

    fn encode(self) -> impl IntoIterator<Item = u8>;
}

macro_rules! number {
    ($($type:ty: $value_type:ident),*) => {$(
        impl Number for $type {
            const TYPE: ValueType = ValueType::$value_type;

            fn decode(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("chunks have the length of the type"))
            }

            fn encode(self) -> impl IntoIterator<Item = u8> {
                self.to_le_bytes()
            }
        }
    )*};
}

number!(u8: U8, i8: I8, u16: U16, i16: I16, u32: U32, i32: I32, f32: F32, u64: U64, i64: I64, f64: F64);
