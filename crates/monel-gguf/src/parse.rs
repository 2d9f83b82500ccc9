//! The header of one file: magic, version, counts, metadata, tensor list.
//!
//! One pass from front to back. Everything is checked where it is read, so that an error can say at which byte; what
//! only shows once the header is complete (tensors past the end, tensors that overlap) is checked last. When this
//! returns, every tensor's range lies in the file, on its alignment, and shares no byte with another.

use crate::cursor::Cursor;
use crate::error::{NameError, quoted};
use crate::tensor::{MAX_DIMS, ShapeError, measure};
use crate::{Array, DEFAULT_ALIGNMENT, Error, GgmlType, LooksLike, MAX_ARRAY_DEPTH, MAX_NAME_BYTES};
use crate::{MAGIC, Metadata, StringArray, TensorInfo, Value, ValueType};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Length of key, one byte of key, type, one byte of value.
const LEAST_METADATA_BYTES: u64 = 8 + 1 + 4 + 1;
/// Length of name, one byte of name, number of dimensions, type, offset.
const LEAST_TENSOR_BYTES: u64 = 8 + 1 + 4 + 4 + 8;

/// The tensors of all files of a model, with lookup by name.
#[derive(Debug, Default)]
pub(crate) struct TensorTable {
    pub tensors: Vec<TensorInfo>,
    pub index: HashMap<Box<str>, usize>,
}

pub(crate) struct Header {
    pub version: u32,
    pub alignment: u32,
    pub metadata: Metadata,
    /// Where the data section starts; past the end of a file without tensors, it may be.
    pub data_start: u64,
}

/// Reads the header of `file`, which is part number `part`, and adds its tensors to `table`.
pub(crate) fn parse(file: &[u8], part: usize, table: &mut TensorTable) -> Result<Header, Error> {
    let mut cursor = Cursor::new(file);
    let version = magic_and_version(&mut cursor, file)?;
    let tensor_count = cursor.u64().map_err(|short| short.reading("the number of tensors"))?;
    let metadata_count = cursor.u64().map_err(|short| short.reading("the number of metadata entries"))?;
    let possible = cursor.left() / LEAST_METADATA_BYTES;
    if metadata_count > possible {
        return Err(Error::MetadataCount { count: metadata_count, possible });
    }
    let possible = cursor.left() / LEAST_TENSOR_BYTES;
    if tensor_count > possible {
        return Err(Error::TensorCount { count: tensor_count, possible });
    }

    let mut metadata = Metadata::new();
    for index in 0..metadata_count {
        metadata_entry(&mut cursor, index, &mut metadata)?;
    }
    let alignment = alignment_of(&metadata)?;

    let first = table.tensors.len();
    for index in 0..tensor_count {
        tensor_entry(&mut cursor, index, part, alignment, table)?;
    }
    // No overflow: the position is below the limit of a header, the alignment below 2^32.
    let data_start = cursor.position().next_multiple_of(u64::from(alignment));
    check_ranges(&table.tensors[first..], data_start, file.len() as u64)?;
    Ok(Header { version, alignment, metadata, data_start })
}

fn magic_and_version(cursor: &mut Cursor<'_>, file: &[u8]) -> Result<u32, Error> {
    if file.is_empty() {
        return Err(Error::Empty);
    }
    let same = file.iter().zip(MAGIC).take_while(|(found, wanted)| **found == *wanted).count();
    if same < file.len().min(MAGIC.len()) {
        return Err(Error::NotGguf { looks_like: LooksLike::of(file) });
    }
    cursor.take(MAGIC.len() as u64).map_err(|short| short.reading("the magic \"GGUF\""))?;
    let version = cursor.u32().map_err(|short| short.reading("the version"))?;
    match version {
        2 | 3 => Ok(version),
        _ if (1..=0xffff).contains(&version.swap_bytes()) && version > 0xffff => {
            Err(Error::BigEndian { version: version.swap_bytes() })
        }
        _ => Err(Error::UnsupportedVersion { version }),
    }
}

/// `general.alignment`, which decides where data may start.
pub(crate) fn alignment_of(metadata: &Metadata) -> Result<u32, Error> {
    match metadata.get_u32("general.alignment")? {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(found) if found.is_power_of_two() => Ok(found),
        Some(found) => Err(Error::InvalidAlignment { found }),
    }
}

/// Bytes as a key or tensor name.
pub(crate) fn check_name(bytes: &[u8]) -> Result<&str, NameError> {
    if bytes.is_empty() {
        return Err(NameError::Empty);
    }
    if bytes.len() > MAX_NAME_BYTES {
        return Err(NameError::TooLong { length: bytes.len() as u64 });
    }
    std::str::from_utf8(bytes).map_err(|error| NameError::NotUtf8 {
        valid_up_to: error.valid_up_to(),
        start: String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned(),
    })
}

fn metadata_entry(cursor: &mut Cursor<'_>, index: u64, metadata: &mut Metadata) -> Result<(), Error> {
    let at = cursor.position();
    let bytes = cursor.string(|| format!("metadata key {index}"))?;
    let key = check_name(bytes).map_err(|reason| Error::Key { index, at, reason })?;
    if metadata.contains(key) {
        return Err(Error::DuplicateKey { key: key.to_string(), at });
    }
    let ty = value_type(cursor, key)?;
    let value = value(cursor, key, ty)?;
    metadata.insert(key, value);
    Ok(())
}

fn value_type(cursor: &mut Cursor<'_>, key: &str) -> Result<ValueType, Error> {
    let at = cursor.position();
    let id = cursor.u32().map_err(|short| short.reading(format!("the value type of key {}", quoted(key))))?;
    ValueType::from_id(id).ok_or_else(|| Error::UnknownValueType { key: key.to_string(), at, id })
}

fn value(cursor: &mut Cursor<'_>, key: &str, ty: ValueType) -> Result<Value, Error> {
    let number = match ty {
        ValueType::String => {
            let bytes = cursor.string(|| format!("the string of key {}", quoted(key)))?;
            return Ok(Value::String(bytes.to_vec()));
        }
        ValueType::Array => return array(cursor, key, 1).map(Value::Array),
        ValueType::Bool => return bools(cursor, key, 1).map(|bools| Value::Bool(bools == [true])),
        ValueType::U8 => cursor.array().map(|bytes| Value::U8(u8::from_le_bytes(bytes))),
        ValueType::I8 => cursor.array().map(|bytes| Value::I8(i8::from_le_bytes(bytes))),
        ValueType::U16 => cursor.array().map(|bytes| Value::U16(u16::from_le_bytes(bytes))),
        ValueType::I16 => cursor.array().map(|bytes| Value::I16(i16::from_le_bytes(bytes))),
        ValueType::U32 => cursor.array().map(|bytes| Value::U32(u32::from_le_bytes(bytes))),
        ValueType::I32 => cursor.array().map(|bytes| Value::I32(i32::from_le_bytes(bytes))),
        ValueType::F32 => cursor.array().map(|bytes| Value::F32(f32::from_le_bytes(bytes))),
        ValueType::U64 => cursor.array().map(|bytes| Value::U64(u64::from_le_bytes(bytes))),
        ValueType::I64 => cursor.array().map(|bytes| Value::I64(i64::from_le_bytes(bytes))),
        ValueType::F64 => cursor.array().map(|bytes| Value::F64(f64::from_le_bytes(bytes))),
    };
    number.map_err(|short| short.reading(format!("the {ty} of key {}", quoted(key))))
}

fn array(cursor: &mut Cursor<'_>, key: &str, depth: usize) -> Result<Array, Error> {
    if depth > MAX_ARRAY_DEPTH {
        return Err(Error::NestedTooDeep { key: key.to_string(), at: cursor.position() });
    }
    let ty = value_type(cursor, key)?;
    let at = cursor.position();
    let count = cursor
        .u64()
        .map_err(|short| short.reading(format!("the length of the array of key {}", quoted(key))))?;
    let least = count.saturating_mul(ty.least_bytes());
    cursor.require(least).map_err(|short| {
        let key = key.to_string();
        let too_long = Error::ArrayTooLong { key, at, count, element: ty.name(), left: short.left };
        short.unless_over_limit(format!("the array of {} elements", count), too_long)
    })?;
    Ok(match ty {
        ValueType::U8 => Array::U8(numbers(cursor, key, count, u8::from_le_bytes)?),
        ValueType::I8 => Array::I8(numbers(cursor, key, count, i8::from_le_bytes)?),
        ValueType::U16 => Array::U16(numbers(cursor, key, count, u16::from_le_bytes)?),
        ValueType::I16 => Array::I16(numbers(cursor, key, count, i16::from_le_bytes)?),
        ValueType::U32 => Array::U32(numbers(cursor, key, count, u32::from_le_bytes)?),
        ValueType::I32 => Array::I32(numbers(cursor, key, count, i32::from_le_bytes)?),
        ValueType::F32 => Array::F32(numbers(cursor, key, count, f32::from_le_bytes)?),
        ValueType::U64 => Array::U64(numbers(cursor, key, count, u64::from_le_bytes)?),
        ValueType::I64 => Array::I64(numbers(cursor, key, count, i64::from_le_bytes)?),
        ValueType::F64 => Array::F64(numbers(cursor, key, count, f64::from_le_bytes)?),
        ValueType::Bool => Array::Bool(bools(cursor, key, count)?),
        ValueType::String => Array::String(strings(cursor, key, count)?),
        ValueType::Array => {
            // Not reserved by count: an array in memory is larger than an empty one in the file.
            let mut arrays = Vec::new();
            for _ in 0..count {
                arrays.push(array(cursor, key, depth + 1)?);
            }
            Array::Array(arrays)
        }
    })
}

fn numbers<T, const N: usize>(
    cursor: &mut Cursor<'_>,
    key: &str,
    count: u64,
    number: fn([u8; N]) -> T,
) -> Result<Vec<T>, Error> {
    let wanted = count.saturating_mul(N as u64);
    let bytes =
        cursor.take(wanted).map_err(|short| short.reading(format!("the array of key {}", quoted(key))))?;
    let mut numbers = reserved(key, bytes.len() / N)?;
    numbers.extend(bytes.as_chunks::<N>().0.iter().map(|&chunk| number(chunk)));
    Ok(numbers)
}

fn bools(cursor: &mut Cursor<'_>, key: &str, count: u64) -> Result<Vec<bool>, Error> {
    let at = cursor.position();
    let bytes =
        cursor.take(count).map_err(|short| short.reading(format!("the bool of key {}", quoted(key))))?;
    if let Some(index) = bytes.iter().position(|&byte| byte > 1) {
        return Err(Error::InvalidBool { key: key.to_string(), at: at + index as u64, found: bytes[index] });
    }
    let mut bools = reserved(key, bytes.len())?;
    bools.extend(bytes.iter().map(|&byte| byte == 1));
    Ok(bools)
}

/// Two passes: the first measures, the second copies into one buffer of the right size.
fn strings(cursor: &mut Cursor<'_>, key: &str, count: u64) -> Result<StringArray, Error> {
    // The count was compared with what is left of the file, so it fits.
    let count = count as usize;
    let mut ends: Vec<u64> = reserved(key, count)?;
    let start = cursor.position();
    let what = |index| move || format!("string {index} of the array of key {}", quoted(key));
    let mut total = 0;
    let mut all = cursor.fork();
    for index in 0..count {
        total += cursor.string(what(index))?.len();
        ends.push(total as u64);
    }
    debug_assert_eq!(cursor.position() - start, total as u64 + 8 * count as u64);
    let mut bytes = reserved(key, total)?;
    for index in 0..count {
        bytes.extend_from_slice(all.string(what(index))?);
    }
    Ok(StringArray::from_packed(bytes, ends))
}

fn reserved<T>(key: &str, count: usize) -> Result<Vec<T>, Error> {
    let mut items = Vec::new();
    match items.try_reserve_exact(count) {
        Ok(()) => Ok(items),
        Err(_) => {
            let wanted = (count as u64).saturating_mul(size_of::<T>() as u64);
            Err(Error::OutOfMemory { key: key.to_string(), wanted })
        }
    }
}

fn tensor_entry(
    cursor: &mut Cursor<'_>,
    index: u64,
    part: usize,
    alignment: u32,
    table: &mut TensorTable,
) -> Result<(), Error> {
    let name_at = cursor.position();
    let bytes = cursor.string(|| format!("the name of tensor {index}"))?;
    let name = check_name(bytes).map_err(|reason| Error::TensorName { index, at: name_at, reason })?;
    let tensor = || name.to_string();

    let shape_at = cursor.position();
    let shape_error = |reason| Error::Shape { tensor: tensor(), at: shape_at, reason };
    let n_dims =
        cursor.u32().map_err(|short| short.reading(format!("the dimensions of tensor {}", quoted(name))))?;
    if n_dims as usize > MAX_DIMS {
        return Err(shape_error(ShapeError::TooManyDimensions { found: n_dims.into() }));
    }
    let mut dims = [0; MAX_DIMS];
    let dims = &mut dims[..n_dims as usize];
    for length in dims.iter_mut() {
        *length =
            cursor.u64().map_err(|short| short.reading(format!("a dimension of tensor {}", quoted(name))))?;
    }
    let type_at = cursor.position();
    let id = cursor.u32().map_err(|short| short.reading(format!("the type of tensor {}", quoted(name))))?;
    let ty = GgmlType::from_id(id).ok_or_else(|| Error::UnknownTensorType {
        tensor: tensor(),
        at: type_at,
        id,
    })?;
    let n_dims = dims.len();
    let (dims, bytes) = measure(ty, dims).map_err(shape_error)?;

    let at = cursor.position();
    let offset =
        cursor.u64().map_err(|short| short.reading(format!("the offset of tensor {}", quoted(name))))?;
    if !offset.is_multiple_of(alignment.into()) {
        return Err(Error::MisalignedTensor { tensor: tensor(), at, offset, alignment });
    }
    match table.index.entry(name.into()) {
        Entry::Occupied(_) => return Err(Error::DuplicateTensor { tensor: tensor(), at: name_at }),
        Entry::Vacant(place) => place.insert(table.tensors.len()),
    };
    table.tensors.push(TensorInfo { name: tensor(), ty, dims, n_dims, offset, bytes, part });
    Ok(())
}

/// Every tensor inside the file, none on another.
fn check_ranges(tensors: &[TensorInfo], data_start: u64, file_bytes: u64) -> Result<(), Error> {
    for tensor in tensors {
        let end = data_start.checked_add(tensor.offset).and_then(|start| start.checked_add(tensor.bytes));
        if end.is_none_or(|end| end > file_bytes) {
            let TensorInfo { name, offset, bytes, .. } = tensor.clone();
            return Err(Error::TensorPastEnd { tensor: name, offset, bytes, data_start, file_bytes });
        }
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.offset);
    for pair in order.windows(2) {
        let (first, second) = (pair[0], pair[1]);
        let end = first.offset + first.bytes;
        if second.offset < end {
            return Err(Error::OverlappingTensors {
                first: first.name.clone(),
                second: second.name.clone(),
                end,
                start: second.offset,
            });
        }
    }
    Ok(())
}
