//! The key-value pairs at the front of the file.

use super::array::{Array, ArrayRange, read_array, read_type};
use super::cursor::Cursor;
use super::error::{Damage, GgufError, MetadataError, Place, shortened};
use super::name_index::{Duplicate, NameIndex};
use super::value::{FromValue, Mismatch, Value, ValueType};

/// Far more than any model needs; bounds the table whatever the file's size.
pub(super) const ENTRIES_MAX: u64 = 1 << 16;
pub(super) const KEY_BYTES_MAX: u64 = (1 << 16) - 1;

/// A key's length and one byte of it, the value's type, one byte of value.
pub(super) const ENTRY_BYTES_MIN: u64 = 8 + 1 + 4 + 1;

/// All entries, in the file's order. Scalars are decoded, arrays are only located.
#[derive(Debug)]
pub(super) struct MetadataTable {
    entries: Vec<Entry>,
    by_key: NameIndex,
}

#[derive(Debug)]
struct Entry {
    key: Box<str>,
    /// Where the entry starts in the file.
    offset: usize,
    value: Stored,
}

#[derive(Debug)]
enum Stored {
    Scalar(Value<'static>),
    String(Box<str>),
    Array(ArrayRange),
}

impl MetadataTable {
    pub fn read(cursor: &mut Cursor<'_>, count: u64) -> Result<Self, GgufError> {
        // Grows with what is really read; the count is only a claim.
        let mut entries = Vec::new();
        for index in 0..count {
            entries.push(Entry::read(cursor, index)?);
        }
        let by_key = NameIndex::new(&entries, |entry| &entry.key).map_err(|Duplicate { first, second }| {
            GgufError::DuplicateKey {
                key: shortened(&entries[first].key),
                first: entries[first].offset as u64,
                second: entries[second].offset as u64,
            }
        })?;
        Ok(Self { entries, by_key })
    }
}

impl Entry {
    fn read(cursor: &mut Cursor<'_>, index: u64) -> Result<Self, GgufError> {
        let offset = cursor.position();
        let key = cursor.name(KEY_BYTES_MAX).map_err(|damage| damage.at(Place::Key { index }))?;
        let value = Stored::read(cursor).map_err(|damage| damage.at(Place::Value { key: shortened(key) }))?;
        Ok(Self { key: key.into(), offset, value })
    }
}

impl Stored {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, Damage> {
        let value = match read_type(cursor)? {
            ValueType::String => return Ok(Self::String(cursor.string()?.into())),
            ValueType::Array => return Ok(Self::Array(read_array(cursor)?)),
            ValueType::Bool => Value::Bool(cursor.bool()?),
            ValueType::U8 => Value::U8(u8::from_le_bytes(cursor.array()?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(cursor.array()?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(cursor.array()?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(cursor.array()?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(cursor.array()?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(cursor.array()?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(cursor.array()?)),
            ValueType::U64 => Value::U64(u64::from_le_bytes(cursor.array()?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(cursor.array()?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(cursor.array()?)),
        };
        Ok(Self::Scalar(value))
    }
}

/// A file's metadata: a cheap view, made by [`Gguf::metadata`](super::Gguf::metadata).
#[derive(Clone, Copy, Debug)]
pub struct Metadata<'a> {
    table: &'a MetadataTable,
    file: &'a [u8],
}

impl<'a> Metadata<'a> {
    pub(super) fn new(table: &'a MetadataTable, file: &'a [u8]) -> Self {
        Self { table, file }
    }

    pub fn len(&self) -> usize {
        self.table.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.entries.is_empty()
    }

    /// All keys and values, in the file's order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = (&'a str, Value<'a>)> {
        self.table.entries.iter().map(move |entry| (&*entry.key, self.view(entry)))
    }

    pub fn get(self, key: &str) -> Option<Value<'a>> {
        let entry = self.table.by_key.find(&self.table.entries, |entry| &entry.key, key)?;
        Some(self.view(entry))
    }

    /// The value of `key` as a `T`; `None` if the file does not have the key.
    pub fn optional<T: FromValue<'a>>(self, key: &str) -> Result<Option<T>, MetadataError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        T::from_value(value).map(Some).map_err(|mismatch| match mismatch {
            Mismatch::Type => {
                MetadataError::WrongType { key: shortened(key), expected: T::EXPECTED, got: value.type_name() }
            }
            Mismatch::Range(value) => MetadataError::OutOfRange { key: shortened(key), expected: T::EXPECTED, value },
        })
    }

    /// The value of `key` as a `T`.
    pub fn required<T: FromValue<'a>>(self, key: &str) -> Result<T, MetadataError> {
        self.optional(key)?.ok_or_else(|| MetadataError::Missing { key: shortened(key) })
    }

    fn view(self, entry: &'a Entry) -> Value<'a> {
        match &entry.value {
            Stored::Scalar(value) => *value,
            Stored::String(text) => Value::String(text),
            Stored::Array(range) => Value::Array(Array::new(&entry.key, range, self.file)),
        }
    }
}
