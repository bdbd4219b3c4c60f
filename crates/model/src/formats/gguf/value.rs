//! GGUF's thirteen kinds of values and their conversion to Rust types.

use std::fmt;

use super::array::Array;

/// The kind of a metadata value. The discriminant is GGUF's number for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    pub const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == number)
    }

    /// Bytes of one value: exact for numbers and bools, the least possible for strings and arrays.
    pub const fn bytes_min(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
            Self::String => 8,    // its length
            Self::Array => 4 + 8, // its element type and count
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A metadata value. Arrays stay in the file until they are iterated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(&'a str),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value<'_> {
    pub fn kind(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The value if it is an integer of any width.
    pub fn integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(value) => value.into(),
            Self::I8(value) => value.into(),
            Self::U16(value) => value.into(),
            Self::I16(value) => value.into(),
            Self::U32(value) => value.into(),
            Self::I32(value) => value.into(),
            Self::U64(value) => value.into(),
            Self::I64(value) => value.into(),
            _ => return None,
        })
    }

    /// How an error message calls the type: "u32", "array of string".
    pub(super) fn type_name(&self) -> String {
        match self {
            Self::Array(array) => array.type_name(),
            other => other.kind().to_string(),
        }
    }
}

/// A Rust type that a metadata value can be read as. Writers disagree about the width of integers, so any width is
/// accepted as long as the value fits.
pub trait FromValue<'a>: Sized {
    /// What the value should have been, for the error message.
    const EXPECTED: &'static str;

    fn from_value(value: Value<'a>) -> Result<Self, Mismatch>;
}

/// Why a value cannot be read as the wanted type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    Type,
    Range(i128),
}

macro_rules! integer_from_value {
    ($($type:ty: $expected:literal),*) => {$(
        impl FromValue<'_> for $type {
            const EXPECTED: &'static str = $expected;

            fn from_value(value: Value<'_>) -> Result<Self, Mismatch> {
                let integer = value.integer().ok_or(Mismatch::Type)?;
                integer.try_into().map_err(|_| Mismatch::Range(integer))
            }
        }
    )*};
}

integer_from_value!(
    u32: "an unsigned 32-bit integer",
    u64: "an unsigned 64-bit integer",
    usize: "an unsigned integer",
    i32: "a 32-bit integer",
    i64: "a 64-bit integer"
);

impl FromValue<'_> for f32 {
    const EXPECTED: &'static str = "a floating-point number";

    fn from_value(value: Value<'_>) -> Result<Self, Mismatch> {
        match value {
            Value::F32(number) => Ok(number),
            Value::F64(number) => Ok(number as f32),
            _ => Err(Mismatch::Type),
        }
    }
}

impl FromValue<'_> for bool {
    const EXPECTED: &'static str = "a bool";

    fn from_value(value: Value<'_>) -> Result<Self, Mismatch> {
        match value {
            Value::Bool(flag) => Ok(flag),
            _ => Err(Mismatch::Type),
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const EXPECTED: &'static str = "a string";

    fn from_value(value: Value<'a>) -> Result<Self, Mismatch> {
        match value {
            Value::String(text) => Ok(text),
            _ => Err(Mismatch::Type),
        }
    }
}

impl<'a> FromValue<'a> for Array<'a> {
    const EXPECTED: &'static str = "an array";

    fn from_value(value: Value<'a>) -> Result<Self, Mismatch> {
        match value {
            Value::Array(array) => Ok(array),
            _ => Err(Mismatch::Type),
        }
    }
}

impl<'a> FromValue<'a> for Value<'a> {
    const EXPECTED: &'static str = "any value";

    fn from_value(value: Value<'a>) -> Result<Self, Mismatch> {
        Ok(value)
    }
}
