//! The GGUF file format: reading without copying, and writing. There is no engine in here.
//!
//! A GGUF file is a header (magic, version, metadata, a list of tensors) and a data section. This crate reads versions 2
//! and 3, little-endian, every metadata type and every tensor type in use, and models split over several files.
//!
//! - **In place.** A file is memory-mapped; [`Gguf::data`] is a slice of the mapping, [`Gguf::locate`] the [`Part`] and
//!   byte range for engines that keep it, and [`Gguf::advise`] gives pages back that aren't needed any more.
//! - **Cheap.** Opening reads the header only. A tokenizer's quarter of a million strings are two allocations
//!   ([`StringArray`]).
//! - **Hardened.** No length or count from a file is believed before it was compared with the file's size; memory for
//!   the header is at most a small multiple of the header's bytes, and a header has a limit ([`MAX_HEADER_BYTES`]).
//!   After opening, every tensor is known to lie in its file, aligned, overlapping no other, with a size that fits 63
//!   bits. Every kind of damage has its own [`Error`] that says where it is and what was expected.
//! - **What remains.** A mapped file that is cut *while* its bytes are in use faults. [`Gguf::data`] looks at the current
//!   length and answers with [`Error::FileShrunk`] if it can still be told. Metadata is copied and not affected.
//!
//! Dimensions stand innermost first, as in the file: `dims[0]` is the row length.
//!
//! ```
//! use monel_gguf::{GgmlType, Gguf, GgufWriter};
//!
//! // Write a model of one tensor ...
//! let mut header = GgufWriter::new();
//! header.set("general.architecture", "example")?.set("example.block_count", 1u32)?;
//! header.tensor("output.weight", GgmlType::F32, &[2, 3])?;
//! let mut data = header.start(Vec::new())?;
//! data.tensor("output.weight", &[0; 24])?;
//! let file = data.finish()?;
//!
//! // ... and read it. `Gguf::open(path)` does the same with a file.
//! let model = Gguf::from_bytes(file)?;
//! assert_eq!(model.metadata().require_str("general.architecture")?, "example");
//! assert_eq!(model.metadata().get_u64("example.block_count")?, Some(1));
//! assert_eq!(model.metadata().get_f32("example.rope.freq_base")?, None);
//! let tensor = model.require_tensor("output.weight")?;
//! assert_eq!((tensor.ty, tensor.shape()), (GgmlType::F32, &[2, 3][..]));
//! assert_eq!(model.data(tensor)?, [0; 24]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cursor;
mod error;
mod gguf;
mod looks_like;
mod metadata;
mod parse;
mod part;
mod split;
mod string_array;
mod tensor;
mod types;
mod value;
mod write;

pub use error::{Error, NameError};
pub use gguf::Gguf;
pub use looks_like::LooksLike;
pub use metadata::Metadata;
pub use part::{Advice, Part};
pub use string_array::StringArray;
pub use tensor::{MAX_DIMS, ShapeError, TensorInfo};
pub use types::GgmlType;
pub use value::{Array, MAX_ARRAY_DEPTH, Value, ValueType};
pub use write::{DataWriter, GgufWriter, WriteError};

/// The first four bytes of every GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";

/// What tensor data is aligned to when the metadata doesn't say, in bytes.
pub const DEFAULT_ALIGNMENT: u32 = 32;

/// The longest metadata key or tensor name that is read, in bytes.
pub const MAX_NAME_BYTES: usize = 65_535;

/// The most bytes that metadata and tensor list of one file may take. The largest real ones take some 30 MB.
pub const MAX_HEADER_BYTES: u64 = 1 << 28;
