//! Writing a model.
//!
//! Two states. A [`GgufWriter`] collects what the header needs: metadata, and each tensor's name, type and shape.
//! [`start`](GgufWriter::start) writes the header and gives a [`DataWriter`], which takes the tensors' bytes in the
//! announced order, in pieces of any size, and fills the gaps. So a model of any size streams through to any [`Write`],
//! and nothing that could not be read back is ever begun: names, shapes and values are checked as they are added.

use crate::error::{NameError, quoted};
use crate::parse::{alignment_of, check_name};
use crate::tensor::{ShapeError, measure};
use crate::{Array, Error, GgmlType, MAGIC, MAX_ARRAY_DEPTH, MAX_HEADER_BYTES, Metadata};
use crate::{TensorInfo, Value};
use std::collections::HashSet;
use std::io::{self, Write};

/// The version written.
const VERSION: u32 = 3;
/// The longest tensor name written: ggml keeps names in 64 bytes with a zero at the end.
const MAX_WRITTEN_NAME_BYTES: usize = 63;

/// Why something cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The output refused it.
    #[error("cannot write the model: {0}")]
    Io(#[from] io::Error),
    /// A key that cannot be one.
    #[error("the metadata key {} {reason}", quoted(.key))]
    Key {
        /// The key.
        key: String,
        /// What is wrong with it.
        reason: NameError,
    },
    /// A key that was set before.
    #[error("the metadata key {} is set already", quoted(.key))]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// Arrays in arrays in arrays.
    #[error("the metadata key {} nests arrays over {MAX_ARRAY_DEPTH} deep", quoted(.key))]
    NestedTooDeep {
        /// The key.
        key: String,
    },
    /// `general.alignment` cannot be this.
    #[error(transparent)]
    Alignment(Error),
    /// A tensor name that cannot be one.
    #[error("the tensor name {} {reason}", quoted(.tensor))]
    TensorName {
        /// The name.
        tensor: String,
        /// What is wrong with it.
        reason: NameError,
    },
    /// A tensor name longer than other readers accept.
    #[error("the tensor name {} is {length} bytes long: expected at most {MAX_WRITTEN_NAME_BYTES}", quoted(.tensor))]
    TensorNameTooLong {
        /// The name.
        tensor: String,
        /// Its length in bytes.
        length: usize,
    },
    /// A tensor of this name was added before.
    #[error("the tensor {} is added already", quoted(.tensor))]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },
    /// Dimensions that no tensor of this type can have.
    #[error("the tensor {} {reason}", quoted(.tensor))]
    Shape {
        /// The name.
        tensor: String,
        /// What is wrong with them.
        reason: ShapeError,
    },
    /// All tensors together don't fit 63 bits.
    #[error("with the tensor {} the file would not fit 63 bits", quoted(.tensor))]
    FileTooLarge {
        /// The tensor that is too much.
        tensor: String,
    },
    /// Metadata and tensor list are larger than a reader accepts.
    #[error("metadata and tensor list take {found} bytes: expected at most {MAX_HEADER_BYTES}")]
    HeaderTooLarge {
        /// Their size.
        found: u64,
    },
    /// Data for a tensor whose turn it isn't.
    #[error("data of the tensor {} was given: expected {}", quoted(.found), .expected.as_deref().map_or("no more data".to_string(), quoted))]
    TensorOrder {
        /// The tensor given.
        found: String,
        /// The one whose turn it is.
        expected: Option<String>,
    },
    /// More or fewer bytes than the tensor has.
    #[error("{found} bytes of data were given for the tensor {}: expected {expected}", quoted(.tensor))]
    DataLength {
        /// The tensor.
        tensor: String,
        /// Bytes given.
        found: u64,
        /// Its size.
        expected: u64,
    },
    /// Bytes after the data of the last tensor.
    #[error("{found} bytes of data were given after the last tensor")]
    TooMuchData {
        /// Bytes given.
        found: u64,
    },
    /// The end came before the data of all tensors.
    #[error("the data of {missing} tensors is missing, the first is {}", quoted(.first))]
    DataMissing {
        /// Tensors without all their data.
        missing: usize,
        /// The first of them.
        first: String,
    },
}

/// Collects the header of a new file: metadata, and name, type and shape of each tensor. [`start`](GgufWriter::start) writes
/// it and goes on to the data.
#[derive(Debug, Default)]
pub struct GgufWriter {
    metadata: Metadata,
    tensors: Vec<Planned>,
    names: HashSet<String>,
}

/// A tensor before it has its offset, which depends on the alignment.
#[derive(Debug)]
struct Planned {
    name: String,
    ty: GgmlType,
    shape: Vec<u64>,
    bytes: u64,
}

impl GgufWriter {
    /// An empty model.
    pub fn new() -> GgufWriter {
        GgufWriter::default()
    }

    /// Adds a metadata entry; entries are written in the order in which they were added. `general.alignment`, in whatever
    /// integer type, decides the alignment (32 without it).
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> Result<&mut GgufWriter, WriteError> {
        let named = || key.to_string();
        check_name(key.as_bytes()).map_err(|reason| WriteError::Key { key: named(), reason })?;
        if self.metadata.contains(key) {
            return Err(WriteError::DuplicateKey { key: named() });
        }
        let value = value.into();
        if value.as_array().is_some_and(|array| !fits_depth(array, MAX_ARRAY_DEPTH)) {
            return Err(WriteError::NestedTooDeep { key: named() });
        }
        if key == "general.alignment" {
            let mut alone = Metadata::new();
            alone.insert(key, value.clone());
            alignment_of(&alone).map_err(WriteError::Alignment)?;
        }
        self.metadata.insert(key, value);
        Ok(self)
    }

    /// Adds a whole list of entries, as [`set`](GgufWriter::set) for each.
    pub fn set_all(&mut self, metadata: &Metadata) -> Result<&mut GgufWriter, WriteError> {
        for (key, value) in metadata.iter() {
            self.set(key, value.clone())?;
        }
        Ok(self)
    }

    /// Announces a tensor with its dimensions, innermost first (`shape[0]` is the row length in values).
    pub fn tensor(&mut self, name: &str, ty: GgmlType, shape: &[u64]) -> Result<&mut GgufWriter, WriteError> {
        let tensor = || name.to_string();
        check_name(name.as_bytes()).map_err(|reason| WriteError::TensorName { tensor: tensor(), reason })?;
        if name.len() > MAX_WRITTEN_NAME_BYTES {
            return Err(WriteError::TensorNameTooLong { tensor: tensor(), length: name.len() });
        }
        let (_, bytes) =
            measure(ty, shape).map_err(|reason| WriteError::Shape { tensor: tensor(), reason })?;
        if !self.names.insert(tensor()) {
            return Err(WriteError::DuplicateTensor { tensor: tensor() });
        }
        self.tensors.push(Planned { name: tensor(), ty, shape: shape.to_vec(), bytes });
        Ok(self)
    }

    /// Writes the header; the data of the tensors comes next, in the order in which they were announced.
    pub fn start<W: Write>(self, mut output: W) -> Result<DataWriter<W>, WriteError> {
        let alignment = alignment_of(&self.metadata).map_err(WriteError::Alignment)?;
        let tensors = self.placed(alignment)?;
        let mut header = Vec::new();
        header.extend(MAGIC);
        header.extend(VERSION.to_le_bytes());
        header.extend((tensors.len() as u64).to_le_bytes());
        header.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in self.metadata.iter() {
            string(&mut header, key.as_bytes());
            header.extend(value.value_type().id().to_le_bytes());
            write_value(&mut header, value);
        }
        for tensor in &tensors {
            string(&mut header, tensor.name.as_bytes());
            header.extend((tensor.n_dims as u32).to_le_bytes());
            tensor.shape().iter().for_each(|length| header.extend(length.to_le_bytes()));
            header.extend(tensor.ty.id().to_le_bytes());
            header.extend(tensor.offset.to_le_bytes());
        }
        let found = header.len() as u64;
        if found > MAX_HEADER_BYTES {
            return Err(WriteError::HeaderTooLarge { found });
        }
        output.write_all(&header)?;
        let mut writer = DataWriter { output, tensors, next: 0, given: 0, alignment: alignment.into() };
        writer.fill(found)?;
        Ok(writer)
    }

    /// Gives every tensor its place in the data section.
    fn placed(&self, alignment: u32) -> Result<Vec<TensorInfo>, WriteError> {
        let mut end = 0u64;
        let mut tensors = Vec::with_capacity(self.tensors.len());
        for Planned { name, ty, shape, bytes } in &self.tensors {
            let too_large = || WriteError::FileTooLarge { tensor: name.clone() };
            let (dims, _) =
                measure(*ty, shape).map_err(|reason| WriteError::Shape { tensor: name.clone(), reason })?;
            let offset = end.checked_next_multiple_of(alignment.into()).ok_or_else(too_large)?;
            // Room for the header and its padding stays free below 63 bits.
            let limit = i64::MAX as u64 - 2 * MAX_HEADER_BYTES - u64::from(u32::MAX);
            end = offset.checked_add(*bytes).filter(|&end| end <= limit).ok_or_else(too_large)?;
            let n_dims = shape.len();
            tensors.push(TensorInfo {
                name: name.clone(),
                ty: *ty,
                dims,
                n_dims,
                offset,
                bytes: *bytes,
                part: 0,
            });
        }
        Ok(tensors)
    }
}

/// Takes the data of a file whose header is written.
#[derive(Debug)]
#[must_use = "the file is complete only after `finish`"]
pub struct DataWriter<W> {
    output: W,
    tensors: Vec<TensorInfo>,
    /// The tensor whose turn it is, and how many of its bytes are written.
    next: usize,
    given: u64,
    alignment: u64,
}

impl<W: Write> DataWriter<W> {
    /// The tensors with their places, as a reader will see them.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor whose data comes next, or goes on; `None` when all is written.
    pub fn next_tensor(&self) -> Option<&TensorInfo> {
        self.tensors.get(self.next)
    }

    /// Writes all data of a tensor, whose turn it must be.
    pub fn tensor(&mut self, name: &str, data: &[u8]) -> Result<(), WriteError> {
        let expected = match self.next_tensor() {
            Some(tensor) if tensor.name == name && self.given == 0 => tensor.bytes,
            other => {
                let expected = other.map(|tensor| tensor.name.clone());
                return Err(WriteError::TensorOrder { found: name.to_string(), expected });
            }
        };
        let found = data.len() as u64;
        if found != expected {
            return Err(WriteError::DataLength { tensor: name.to_string(), found, expected });
        }
        self.piece(data)
    }

    /// Writes the next bytes of the tensor whose turn it is, not more than it still wants.
    pub fn piece(&mut self, data: &[u8]) -> Result<(), WriteError> {
        let length = data.len() as u64;
        let Some(tensor) = self.tensors.get(self.next) else {
            return if length == 0 { Ok(()) } else { Err(WriteError::TooMuchData { found: length }) };
        };
        let (bytes, given) = (tensor.bytes, self.given + length);
        if given > bytes {
            return Err(WriteError::DataLength {
                tensor: tensor.name.clone(),
                found: given,
                expected: bytes,
            });
        }
        self.output.write_all(data)?;
        self.given = given;
        if given == bytes {
            (self.next, self.given) = (self.next + 1, 0);
            self.fill(bytes)?;
        }
        Ok(())
    }

    /// Ends the file and gives the output back, flushed.
    pub fn finish(mut self) -> Result<W, WriteError> {
        if let Some(tensor) = self.tensors.get(self.next) {
            let missing = self.tensors.len() - self.next;
            return Err(WriteError::DataMissing { missing, first: tensor.name.clone() });
        }
        self.output.flush()?;
        Ok(self.output)
    }

    /// Zeros after something of this length that began aligned. The last tensor gets them too: some readers want whole
    /// steps of the alignment.
    fn fill(&mut self, length: u64) -> io::Result<()> {
        let zeros = [0; 4096];
        let mut left = length.next_multiple_of(self.alignment) - length;
        while left > 0 {
            let piece = left.min(zeros.len() as u64);
            self.output.write_all(&zeros[..piece as usize])?;
            left -= piece;
        }
        Ok(())
    }
}

fn fits_depth(array: &Array, depth: usize) -> bool {
    match array {
        _ if depth == 0 => false,
        Array::Array(arrays) => arrays.iter().all(|inner| fits_depth(inner, depth - 1)),
        _ => true,
    }
}

fn string(header: &mut Vec<u8>, bytes: &[u8]) {
    header.extend((bytes.len() as u64).to_le_bytes());
    header.extend(bytes);
}

fn write_value(header: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(n) => header.push(*n),
        Value::I8(n) => header.extend(n.to_le_bytes()),
        Value::U16(n) => header.extend(n.to_le_bytes()),
        Value::I16(n) => header.extend(n.to_le_bytes()),
        Value::U32(n) => header.extend(n.to_le_bytes()),
        Value::I32(n) => header.extend(n.to_le_bytes()),
        Value::F32(x) => header.extend(x.to_le_bytes()),
        Value::Bool(yes) => header.push(u8::from(*yes)),
        Value::String(bytes) => string(header, bytes),
        Value::Array(array) => write_array(header, array),
        Value::U64(n) => header.extend(n.to_le_bytes()),
        Value::I64(n) => header.extend(n.to_le_bytes()),
        Value::F64(x) => header.extend(x.to_le_bytes()),
    }
}

fn write_array(header: &mut Vec<u8>, array: &Array) {
    header.extend(array.element_type().id().to_le_bytes());
    header.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(items) => header.extend(items),
        Array::I8(items) => header.extend(items.iter().flat_map(|n| n.to_le_bytes())),
        Array::U16(items) => header.extend(items.iter().flat_map(|n| n.to_le_bytes())),
        Array::I16(items) => header.extend(items.iter().flat_map(|n| n.to_le_bytes())),
        Array::U32(items) => header.extend(items.iter().flat_map(|n| n.to_le_bytes())),
        Array::I32(items) => header.extend(items.iter().flat_map(|n| n.to_le_bytes())),
        Array::F32(items) => header.extend(items.iter().flat_map(|x| x.to_le_bytes())),
        Array::Bool(items) => header.extend(items.iter().map(|&yes| u8::from(yes))),
        Array::String(strings) => strings.iter().for_each(|bytes| string(header, bytes)),
        Array::Array(arrays) => arrays.iter().for_each(|inner| write_array(header, inner)),
        Array::U64(items) => header.extend(items.iter().flat_map(|n| n.to_le_bytes())),
        Array::I64(items) => header.extend(items.iter().flat_map(|n| n.to_le_bytes())),
        Array::F64(items) => header.extend(items.iter().flat_map(|x| x.to_le_bytes())),
    }
}
