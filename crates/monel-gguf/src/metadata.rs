//! The metadata of a model: keys with values, in the order of the file.
//!
//! The getters exist because the question is always the same: is the key there, is it of a type that will do, does the
//! number fit? Absence is `None`, everything else that goes wrong is an error that names the key, what was wanted and
//! what is there. `require_…` turns absence into an error too. Integers of every width serve each other as long as the
//! value fits; floats serve each other; nothing else is converted.

use crate::{Array, Error, StringArray, Value};
use std::borrow::Cow;
use std::collections::HashMap;

/// Keys and values in file order, with lookup by key.
#[derive(Clone, Default)]
pub struct Metadata {
    entries: Vec<(Box<str>, Value)>,
    index: HashMap<Box<str>, usize>,
}

impl Metadata {
    /// None yet.
    pub fn new() -> Metadata {
        Metadata::default()
    }

    /// The value as stored.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&at| &self.entries[at].1)
    }

    /// All entries in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> + '_ {
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the key is there, with whatever type.
    pub fn contains(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    /// Adds an entry at the end, or replaces the value of a key that is there (its place stays). Returns the old value.
    pub fn insert(&mut self, key: &str, value: impl Into<Value>) -> Option<Value> {
        let value = value.into();
        if let Some(&at) = self.index.get(key) {
            return Some(std::mem::replace(&mut self.entries[at].1, value));
        }
        self.index.insert(key.into(), self.entries.len());
        self.entries.push((key.into(), value));
        None
    }

    /// The bytes of a string, whether or not they are UTF-8.
    pub fn get_bytes(&self, key: &str) -> Result<Option<&[u8]>, Error> {
        self.typed(key, "string", Value::as_bytes)
    }

    /// A string that is UTF-8.
    pub fn get_str(&self, key: &str) -> Result<Option<&str>, Error> {
        let Some(bytes) = self.get_bytes(key)? else { return Ok(None) };
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(error) => Err(Error::NotUtf8 { key: key.to_string(), valid_up_to: error.valid_up_to() }),
        }
    }

    /// A bool.
    pub fn get_bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, "bool", |value| match value {
            Value::Bool(found) => Some(*found),
            _ => None,
        })
    }

    /// A number of any integer type that fits.
    pub fn get_u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.integer(key, "u32")
    }

    /// A number of any integer type that fits.
    pub fn get_i32(&self, key: &str) -> Result<Option<i32>, Error> {
        self.integer(key, "i32")
    }

    /// A number of any integer type that fits.
    pub fn get_u64(&self, key: &str) -> Result<Option<u64>, Error> {
        self.integer(key, "u64")
    }

    /// A number of any integer type that fits.
    pub fn get_i64(&self, key: &str) -> Result<Option<i64>, Error> {
        self.integer(key, "i64")
    }

    /// An `f32`, or an `f64` rounded to one; a finite `f64` over the range of `f32` is an error.
    pub fn get_f32(&self, key: &str) -> Result<Option<f32>, Error> {
        let Some(found) = self.typed(key, "f32", Value::as_float)? else { return Ok(None) };
        match narrow(found) {
            Some(rounded) => Ok(Some(rounded)),
            None => Err(out_of_range(key, "f32", found)),
        }
    }

    /// An `f64` or an `f32`.
    pub fn get_f64(&self, key: &str) -> Result<Option<f64>, Error> {
        self.typed(key, "f64", Value::as_float)
    }

    /// An array of anything.
    pub fn get_array(&self, key: &str) -> Result<Option<&Array>, Error> {
        self.typed(key, "array", Value::as_array)
    }

    /// An array of strings.
    pub fn get_array_str(&self, key: &str) -> Result<Option<&StringArray>, Error> {
        self.typed(key, "array of string", |value| match value {
            Value::Array(Array::String(strings)) => Some(strings),
            _ => None,
        })
    }

    /// An array of bools.
    pub fn get_array_bool(&self, key: &str) -> Result<Option<&[bool]>, Error> {
        self.typed(key, "array of bool", |value| match value {
            Value::Array(Array::Bool(bools)) => Some(&**bools),
            _ => None,
        })
    }

    /// An array of any integer type whose elements all fit; borrowed if it is stored as `i32`.
    pub fn get_array_i32(&self, key: &str) -> Result<Option<Cow<'_, [i32]>>, Error> {
        self.integers(key, "array of i32", |array| match array {
            Array::I32(numbers) => Some(numbers),
            _ => None,
        })
    }

    /// An array of any integer type whose elements all fit; borrowed if it is stored as `u32`.
    pub fn get_array_u32(&self, key: &str) -> Result<Option<Cow<'_, [u32]>>, Error> {
        self.integers(key, "array of u32", |array| match array {
            Array::U32(numbers) => Some(numbers),
            _ => None,
        })
    }

    /// An array of any integer type whose elements all fit; borrowed if it is stored as `u64`.
    pub fn get_array_u64(&self, key: &str) -> Result<Option<Cow<'_, [u64]>>, Error> {
        self.integers(key, "array of u64", |array| match array {
            Array::U64(numbers) => Some(numbers),
            _ => None,
        })
    }

    /// An array of floats; borrowed if it is stored as `f32`, rounded if as `f64`.
    pub fn get_array_f32(&self, key: &str) -> Result<Option<Cow<'_, [f32]>>, Error> {
        const WANTED: &str = "array of f32";
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::F32(numbers))) => Ok(Some(Cow::Borrowed(numbers))),
            Some(Value::Array(Array::F64(numbers))) => {
                let rounded = numbers.iter().map(|&x| narrow(x).ok_or_else(|| out_of_range(key, WANTED, x)));
                rounded.collect::<Result<Vec<f32>, Error>>().map(|all| Some(Cow::Owned(all)))
            }
            Some(other) => Err(wrong_type(key, WANTED, other)),
        }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| wrong_type(key, wanted, value)),
        }
    }

    fn integer<T: TryFrom<i128>>(&self, key: &str, wanted: &'static str) -> Result<Option<T>, Error> {
        let Some(found) = self.typed(key, wanted, Value::as_integer)? else { return Ok(None) };
        T::try_from(found).map(Some).map_err(|_| out_of_range(key, wanted, found))
    }

    fn integers<'a, T: TryFrom<i128> + Copy + 'a>(
        &'a self,
        key: &str,
        wanted: &'static str,
        same: impl Fn(&'a Array) -> Option<&'a Vec<T>>,
    ) -> Result<Option<Cow<'a, [T]>>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let Value::Array(array) = value else { return Err(wrong_type(key, wanted, value)) };
        if let Some(numbers) = same(array) {
            return Ok(Some(Cow::Borrowed(numbers)));
        }
        let converted = match array {
            Array::U8(numbers) => convert(key, wanted, numbers),
            Array::I8(numbers) => convert(key, wanted, numbers),
            Array::U16(numbers) => convert(key, wanted, numbers),
            Array::I16(numbers) => convert(key, wanted, numbers),
            Array::U32(numbers) => convert(key, wanted, numbers),
            Array::I32(numbers) => convert(key, wanted, numbers),
            Array::U64(numbers) => convert(key, wanted, numbers),
            Array::I64(numbers) => convert(key, wanted, numbers),
            _ => Err(wrong_type(key, wanted, value)),
        };
        converted.map(|numbers| Some(Cow::Owned(numbers)))
    }
}

macro_rules! required {
    ($($require:ident $get:ident $wanted:literal $result:ty;)*) => {
        /// The same, for keys that must be there.
        impl Metadata {
            $(
                #[doc = concat!("As [`", stringify!($get), "`](Metadata::", stringify!($get), "), and an error if the key is missing.")]
                pub fn $require(&self, key: &str) -> Result<$result, Error> {
                    self.$get(key)?.ok_or_else(|| Error::MissingKey { key: key.to_string(), wanted: $wanted })
                }
            )*
        }
    };
}

required! {
    require_bytes get_bytes "string" &[u8];
    require_str get_str "string" &str;
    require_bool get_bool "bool" bool;
    require_u32 get_u32 "u32" u32;
    require_i32 get_i32 "i32" i32;
    require_u64 get_u64 "u64" u64;
    require_i64 get_i64 "i64" i64;
    require_f32 get_f32 "f32" f32;
    require_f64 get_f64 "f64" f64;
    require_array get_array "array" &Array;
    require_array_str get_array_str "array of string" &StringArray;
    require_array_bool get_array_bool "array of bool" &[bool];
    require_array_i32 get_array_i32 "array of i32" Cow<'_, [i32]>;
    require_array_u32 get_array_u32 "array of u32" Cow<'_, [u32]>;
    require_array_u64 get_array_u64 "array of u64" Cow<'_, [u64]>;
    require_array_f32 get_array_f32 "array of f32" Cow<'_, [f32]>;
}

impl PartialEq for Metadata {
    /// Equal entries in the same order.
    fn eq(&self, other: &Metadata) -> bool {
        self.entries == other.entries
    }
}

impl std::fmt::Debug for Metadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

fn convert<T: TryFrom<i128>, N: Copy + Into<i128>>(
    key: &str,
    wanted: &'static str,
    numbers: &[N],
) -> Result<Vec<T>, Error> {
    let fitting =
        numbers.iter().map(|&n| T::try_from(n.into()).map_err(|_| out_of_range(key, wanted, n.into())));
    fitting.collect()
}

fn narrow(number: f64) -> Option<f32> {
    let rounded = number as f32;
    (rounded.is_finite() || !number.is_finite()).then_some(rounded)
}

fn wrong_type(key: &str, wanted: &'static str, value: &Value) -> Error {
    Error::WrongType { key: key.to_string(), wanted, found: value.describe() }
}

fn out_of_range(key: &str, wanted: &'static str, found: impl std::fmt::Display) -> Error {
    Error::OutOfRange { key: key.to_string(), wanted, found: found.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Metadata {
        let mut metadata = Metadata::new();
        metadata.insert("name", "ünder");
        metadata.insert("bad", Value::String(vec![b'a', 0xff]));
        metadata.insert("u8", 200u8);
        metadata.insert("negative", -1i64);
        metadata.insert("pi", 3.25f64);
        metadata.insert("huge", 1e300f64);
        metadata.insert("yes", true);
        metadata.insert("bytes", vec![1u8, 255]);
        metadata.insert("halves", vec![0.5f64, 1.5]);
        metadata.insert("i32s", vec![-7i32]);
        metadata
    }

    #[test]
    fn integers_of_every_width_serve_each_other() {
        let metadata = sample();
        assert_eq!(metadata.get_u32("u8").unwrap(), Some(200));
        assert_eq!(metadata.get_i64("negative").unwrap(), Some(-1));
        assert_eq!(metadata.get_array_i32("bytes").unwrap().as_deref(), Some(&[1, 255][..]));
        assert!(matches!(metadata.get_array_i32("i32s"), Ok(Some(Cow::Borrowed([-7])))));
        assert_eq!(metadata.get_u64("absent").unwrap(), None);
    }

    #[test]
    fn floats_serve_each_other_and_nothing_else() {
        let metadata = sample();
        assert_eq!(metadata.get_f32("pi").unwrap(), Some(3.25));
        assert_eq!(metadata.get_array_f32("halves").unwrap().as_deref(), Some(&[0.5, 1.5][..]));
        assert!(matches!(metadata.get_f32("huge"), Err(Error::OutOfRange { .. })));
        assert!(matches!(metadata.get_f32("u8"), Err(Error::WrongType { .. })));
        assert_eq!(narrow(f64::INFINITY), Some(f32::INFINITY));
    }

    #[test]
    fn errors_name_key_wanted_and_found() {
        let metadata = sample();
        let message = |error: Error| error.to_string();
        assert_eq!(
            message(metadata.get_u32("negative").unwrap_err()),
            "metadata key \"negative\" holds -1, which is no u32"
        );
        assert_eq!(
            message(metadata.get_bool("bytes").unwrap_err()),
            "metadata key \"bytes\" is of type array of 2 u8: expected bool"
        );
        assert_eq!(
            message(metadata.require_str("gone").unwrap_err()),
            "metadata key \"gone\" is missing: expected a value of type string"
        );
        assert_eq!(
            message(metadata.get_str("bad").unwrap_err()),
            "metadata key \"bad\" is not UTF-8 from byte 1 of its string"
        );
        assert!(matches!(metadata.get_array_u32("i32s"), Err(Error::OutOfRange { .. })));
        assert!(matches!(metadata.get_array_str("bytes"), Err(Error::WrongType { .. })));
    }

    #[test]
    fn replacing_keeps_the_place() {
        let mut metadata = sample();
        assert_eq!(metadata.insert("name", "new"), Some(Value::from("ünder")));
        assert_eq!(metadata.iter().next(), Some(("name", &Value::from("new"))));
        assert_eq!(metadata.len(), 10);
    }
}
