//! Metadata values.
//!
//! A file stores each value with its own type, and writers disagree on which integer width to use, so [`Value`] keeps
//! exactly what was stored (a file that is read and written again stays the same) and the typed getters of
//! [`Metadata`](crate::Metadata) do the widening. Strings are bytes: nothing in a file guarantees that they are UTF-8,
//! and one odd string must not make a model unreadable.

use crate::StringArray;
use std::fmt;

/// How deep arrays may be nested; a plain array is depth 1.
pub const MAX_ARRAY_DEPTH: usize = 8;

/// The type of a metadata value, with its id in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
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
    const ALL: [(ValueType, &'static str, u64); 13] = [
        (ValueType::U8, "u8", 1),
        (ValueType::I8, "i8", 1),
        (ValueType::U16, "u16", 2),
        (ValueType::I16, "i16", 2),
        (ValueType::U32, "u32", 4),
        (ValueType::I32, "i32", 4),
        (ValueType::F32, "f32", 4),
        (ValueType::Bool, "bool", 1),
        (ValueType::String, "string", 8),
        (ValueType::Array, "array", 12),
        (ValueType::U64, "u64", 8),
        (ValueType::I64, "i64", 8),
        (ValueType::F64, "f64", 8),
    ];

    /// The type with this id in a file, if there is one.
    pub fn from_id(id: u32) -> Option<ValueType> {
        Self::ALL.get(usize::try_from(id).ok()?).map(|entry| entry.0)
    }

    /// The id stored in files.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// The short name, for example `u32`.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// The fewest bytes a value of this type takes in a file: an empty string is its length, an empty array its type
    /// and count.
    pub(crate) fn least_bytes(self) -> u64 {
        Self::ALL[self as usize].2
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One metadata value, as stored.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// Bytes that ought to be UTF-8.
    String(Vec<u8>),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of values of one type, as stored.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(StringArray),
    /// Arrays in an array; each has its own element type and length.
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// Runs `$body` with `$items` bound to the list of whichever variant it is.
macro_rules! each_list {
    ($array:expr, $items:ident => $body:expr) => {
        match $array {
            Array::U8($items) => $body,
            Array::I8($items) => $body,
            Array::U16($items) => $body,
            Array::I16($items) => $body,
            Array::U32($items) => $body,
            Array::I32($items) => $body,
            Array::F32($items) => $body,
            Array::Bool($items) => $body,
            Array::String($items) => $body,
            Array::Array($items) => $body,
            Array::U64($items) => $body,
            Array::I64($items) => $body,
            Array::F64($items) => $body,
        }
    };
}

impl Array {
    /// The type of the elements.
    pub fn element_type(&self) -> ValueType {
        match self {
            Array::U8(_) => ValueType::U8,
            Array::I8(_) => ValueType::I8,
            Array::U16(_) => ValueType::U16,
            Array::I16(_) => ValueType::I16,
            Array::U32(_) => ValueType::U32,
            Array::I32(_) => ValueType::I32,
            Array::F32(_) => ValueType::F32,
            Array::Bool(_) => ValueType::Bool,
            Array::String(_) => ValueType::String,
            Array::Array(_) => ValueType::Array,
            Array::U64(_) => ValueType::U64,
            Array::I64(_) => ValueType::I64,
            Array::F64(_) => ValueType::F64,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        each_list!(self, items => items.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `index` as a value of its own; `None` past the end.
    pub fn get(&self, index: usize) -> Option<Value> {
        Some(match self {
            Array::U8(items) => Value::U8(*items.get(index)?),
            Array::I8(items) => Value::I8(*items.get(index)?),
            Array::U16(items) => Value::U16(*items.get(index)?),
            Array::I16(items) => Value::I16(*items.get(index)?),
            Array::U32(items) => Value::U32(*items.get(index)?),
            Array::I32(items) => Value::I32(*items.get(index)?),
            Array::F32(items) => Value::F32(*items.get(index)?),
            Array::Bool(items) => Value::Bool(*items.get(index)?),
            Array::String(items) => Value::String(items.get(index)?.to_vec()),
            Array::Array(items) => Value::Array(items.get(index)?.clone()),
            Array::U64(items) => Value::U64(*items.get(index)?),
            Array::I64(items) => Value::I64(*items.get(index)?),
            Array::F64(items) => Value::F64(*items.get(index)?),
        })
    }
}

impl Value {
    /// The type of the value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// The type in words, with element type and length for arrays: `array of 12 string`.
    pub fn describe(&self) -> String {
        match self {
            Value::Array(array) => format!("array of {} {}", array.len(), array.element_type()),
            other => other.value_type().name().to_string(),
        }
    }

    /// The number, if it is of any integer type.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(n) => n.into(),
            Value::I8(n) => n.into(),
            Value::U16(n) => n.into(),
            Value::I16(n) => n.into(),
            Value::U32(n) => n.into(),
            Value::I32(n) => n.into(),
            Value::U64(n) => n.into(),
            Value::I64(n) => n.into(),
            _ => return None,
        })
    }

    /// The number, if it is an `f32` or an `f64`.
    pub fn as_float(&self) -> Option<f64> {
        match *self {
            Value::F32(x) => Some(x.into()),
            Value::F64(x) => Some(x),
            _ => None,
        }
    }

    /// The bytes, if it is a string.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Value::String(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The text, if it is a string and UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        self.as_bytes().and_then(|bytes| std::str::from_utf8(bytes).ok())
    }

    /// The array, if it is one.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }
}

macro_rules! from_number {
    ($($variant:ident $number:ty),*) => {$(
        impl From<$number> for Value {
            fn from(number: $number) -> Value {
                Value::$variant(number)
            }
        }
        impl From<Vec<$number>> for Value {
            fn from(numbers: Vec<$number>) -> Value {
                Value::Array(Array::$variant(numbers))
            }
        }
    )*};
}
from_number!(U8 u8, I8 i8, U16 u16, I16 i16, U32 u32, I32 i32, F32 f32, Bool bool, U64 u64, I64 i64, F64 f64);

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::String(text.as_bytes().to_vec())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::String(text.into_bytes())
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Value {
        Value::Array(array)
    }
}

impl From<StringArray> for Value {
    fn from(strings: StringArray) -> Value {
        Value::Array(Array::String(strings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_type_ids_lead_back() {
        for (index, (ty, _, _)) in ValueType::ALL.iter().enumerate() {
            assert_eq!(ty.id() as usize, index);
            assert_eq!(ValueType::from_id(ty.id()), Some(*ty));
        }
        assert_eq!(ValueType::from_id(13), None);
    }

    #[test]
    fn elements_come_out_as_values() {
        let array = Array::Array(vec![Array::Bool(vec![true]), Array::String(["x"].into_iter().collect())]);
        assert_eq!(array.get(0), Some(Value::Array(Array::Bool(vec![true]))));
        assert_eq!(array.get(2), None);
        assert_eq!(Value::from(vec![1u16, 2]).describe(), "array of 2 u16");
        assert_eq!(Value::from(vec![1.5f64]).as_array().and_then(|a| a.get(0)), Some(Value::F64(1.5)));
    }
}
