//! What can be wrong with a file.
//!
//! A model file is downloaded, cut, half converted or made to hurt; whoever opens it wants to know what is wrong, where,
//! and what was expected instead. So each kind of damage has its own variant with the facts in it: byte offsets count
//! from the start of the file, names are those found. Text taken from a file is escaped and shortened when shown.
//! Messages are complete in themselves; no chain of sources has to be walked.

use crate::{GgmlType, LooksLike, MAX_ARRAY_DEPTH, MAX_HEADER_BYTES, MAX_NAME_BYTES, ShapeError};
use std::io;
use std::path::PathBuf;

/// Why a file could not be opened, or something in it not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another error, with the file it was found in.
    #[error("{}: {cause}", .path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it; never `InFile` itself.
        cause: Box<Error>,
    },
    /// The system refused something.
    #[error("cannot {action}: {error}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The system's answer.
        error: io::Error,
    },
    /// The path is a directory, a pipe, a device.
    #[error("this is {kind}, not a file: give the path of a .gguf file")]
    NotAFile {
        /// What it is.
        kind: &'static str,
    },
    /// A file of zero bytes.
    #[error("the file is empty: a download may have failed")]
    Empty,
    /// The first four bytes aren't those of GGUF.
    #[error("not a GGUF file (it must start with the bytes \"GGUF\"): {looks_like}")]
    NotGguf {
        /// What it seems to be.
        looks_like: LooksLike,
    },
    /// Written for a machine with the other byte order.
    #[error(
        "this GGUF file is big-endian (version {version} with its bytes reversed at byte 4): only little-endian files can be read; convert it again"
    )]
    BigEndian {
        /// The version, read in the file's own byte order.
        version: u32,
    },
    /// A version other than 2 and 3.
    #[error("GGUF version {version} at byte 4 is not supported: expected 2 or 3{}", if *.version == 1 { " (version 1 was used in August 2023 only; convert the model again)" } else { "" })]
    UnsupportedVersion {
        /// The version found.
        version: u32,
    },

    /// The file ends within something.
    #[error(
        "the file ends too early: {what} at byte {at} takes {wanted} bytes, {left} are left; the file may be incomplete"
    )]
    Truncated {
        /// What was being read.
        what: String,
        /// Where it starts.
        at: u64,
        /// Its size.
        wanted: u64,
        /// Bytes from `at` to the end.
        left: u64,
    },
    /// Metadata and tensor list together are larger than any real ones.
    #[error(
        "{what} at byte {at} takes {wanted} bytes, which goes over the limit of {MAX_HEADER_BYTES} bytes for metadata and tensor list"
    )]
    HeaderTooLarge {
        /// What was being read.
        what: String,
        /// Where it starts.
        at: u64,
        /// Its size.
        wanted: u64,
    },
    /// More metadata entries announced than the file has room for.
    #[error("{count} metadata entries announced at byte 16, but the file has room for at most {possible}")]
    MetadataCount {
        /// The number announced.
        count: u64,
        /// How many smallest entries fit in the rest of the file.
        possible: u64,
    },
    /// More tensors announced than the file has room for.
    #[error("{count} tensors announced at byte 8, but the file has room for at most {possible}")]
    TensorCount {
        /// The number announced.
        count: u64,
        /// How many smallest entries fit in the rest of the file.
        possible: u64,
    },
    /// A string longer than the rest of the file.
    #[error(
        "{what} at byte {at} is {length} bytes long, but only {left} bytes are left; the file may be incomplete"
    )]
    StringTooLong {
        /// Which string.
        what: String,
        /// Where its length stands.
        at: u64,
        /// The length found.
        length: u64,
        /// Bytes after the length.
        left: u64,
    },
    /// An array with more elements than the rest of the file has room for.
    #[error("the array of key {} at byte {at} has {count} elements of type {element}, but only {left} bytes are left; the file may be incomplete", quoted(.key))]
    ArrayTooLong {
        /// The metadata key.
        key: String,
        /// Where its count stands.
        at: u64,
        /// The count found.
        count: u64,
        /// Name of the element type.
        element: &'static str,
        /// Bytes after the count.
        left: u64,
    },
    /// There is no memory for an array that does fit the file.
    #[error("no memory for the array of key {}: {wanted} bytes wanted", quoted(.key))]
    OutOfMemory {
        /// The metadata key.
        key: String,
        /// Bytes asked for.
        wanted: u64,
    },
    /// A metadata type id outside 0 to 12.
    #[error("key {} has the unknown value type {id} at byte {at}: expected 0 (u8) to 12 (f64)", quoted(.key))]
    UnknownValueType {
        /// The metadata key.
        key: String,
        /// Where the id stands.
        at: u64,
        /// The id found.
        id: u32,
    },
    /// A bool that is neither 0 nor 1.
    #[error("key {} has the bool {found} at byte {at}: expected 0 or 1", quoted(.key))]
    InvalidBool {
        /// The metadata key.
        key: String,
        /// Where it stands.
        at: u64,
        /// The byte found.
        found: u8,
    },
    /// Arrays in arrays in arrays.
    #[error("key {} nests arrays over {MAX_ARRAY_DEPTH} deep at byte {at}", quoted(.key))]
    NestedTooDeep {
        /// The metadata key.
        key: String,
        /// Where the first array too deep stands.
        at: u64,
    },
    /// A metadata key that cannot be one.
    #[error("metadata key {index} at byte {at} {reason}")]
    Key {
        /// Its place in the list, from 0.
        index: u64,
        /// Where it stands.
        at: u64,
        /// What is wrong with it.
        reason: NameError,
    },
    /// The same metadata key twice.
    #[error("metadata key {} appears twice, the second time at byte {at}", quoted(.key))]
    DuplicateKey {
        /// The key.
        key: String,
        /// Where the second one stands.
        at: u64,
    },
    /// `general.alignment` is zero or no power of two.
    #[error("general.alignment is {found}: expected a power of two")]
    InvalidAlignment {
        /// The alignment found.
        found: u32,
    },

    /// A tensor name that cannot be one.
    #[error("the name of tensor {index} at byte {at} {reason}")]
    TensorName {
        /// Its place in the list, from 0.
        index: u64,
        /// Where it stands.
        at: u64,
        /// What is wrong with it.
        reason: NameError,
    },
    /// The same tensor name twice, in one file or in two parts of a split model.
    #[error("tensor {} appears twice, the second time at byte {at}", quoted(.tensor))]
    DuplicateTensor {
        /// The name.
        tensor: String,
        /// Where the second one stands.
        at: u64,
    },
    /// A type id that no known type has.
    #[error("tensor {} has the unknown type {id} at byte {at}: {}", quoted(.tensor), about_type_id(*.id))]
    UnknownTensorType {
        /// The tensor.
        tensor: String,
        /// Where the id stands.
        at: u64,
        /// The id found.
        id: u32,
    },
    /// Dimensions that no tensor of this type can have.
    #[error("tensor {} (described at byte {at}) {reason}", quoted(.tensor))]
    Shape {
        /// The tensor.
        tensor: String,
        /// Where its number of dimensions stands.
        at: u64,
        /// What is wrong with them.
        reason: ShapeError,
    },
    /// Data that doesn't start at a multiple of the alignment.
    #[error("the data of tensor {} is at offset {offset} (given at byte {at}): expected a multiple of the alignment {alignment}", quoted(.tensor))]
    MisalignedTensor {
        /// The tensor.
        tensor: String,
        /// Where the offset stands.
        at: u64,
        /// The offset found.
        offset: u64,
        /// What it must be a multiple of.
        alignment: u32,
    },
    /// Data that goes past the end of the file.
    #[error("the data of tensor {} is {bytes} bytes at offset {offset} of a data section that starts at byte {data_start}, but the file ends at byte {file_bytes}; it may be incomplete", quoted(.tensor))]
    TensorPastEnd {
        /// The tensor.
        tensor: String,
        /// Where its data starts, from the start of the data section.
        offset: u64,
        /// Size of its data.
        bytes: u64,
        /// Where the data section starts.
        data_start: u64,
        /// Length of the file.
        file_bytes: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors {} and {} overlap: the first ends at offset {end} of the data section, the second starts at {start}", quoted(.first), quoted(.second))]
    OverlappingTensors {
        /// The one that starts first.
        first: String,
        /// The other.
        second: String,
        /// Where the first ends, from the start of the data section.
        end: u64,
        /// Where the second starts.
        start: u64,
    },

    /// A split model's file whose name doesn't say where the other parts are.
    #[error("this is part {} of {count} of a split model, but its name isn't as expected: it must end in \"{expected}\" so that the other parts can be found", .number + 1)]
    SplitName {
        /// `split.no`, from 0.
        number: u32,
        /// `split.count`.
        count: u32,
        /// How the name must end.
        expected: String,
    },
    /// A part of a split model isn't where it should be.
    #[error("part {} of {count} of this split model cannot be opened: {}: {cause}", .number + 1, .part.display())]
    SplitPartMissing {
        /// The part, from 0.
        number: u32,
        /// How many there are.
        count: u32,
        /// The file looked for.
        part: PathBuf,
        /// Why it cannot be opened.
        cause: Box<Error>,
    },
    /// A part number past the last part.
    #[error("split.no is {number}, but split.count is {count}: expected a number from 0 to {}", .count.saturating_sub(1))]
    SplitNumber {
        /// `split.no`.
        number: u32,
        /// `split.count`.
        count: u32,
    },
    /// A file that says it is another part than its place says.
    #[error(
        "split.no is {found} and split.count {found_count}, expected {number} and {count}: the parts don't belong together"
    )]
    SplitMismatch {
        /// `split.no` found.
        found: u32,
        /// `split.count` found.
        found_count: u32,
        /// `split.no` expected.
        number: u32,
        /// `split.count` expected.
        count: u32,
    },
    /// All parts together have more or fewer tensors than announced.
    #[error(
        "the parts of this split model have {found} tensors together, but split.tensors.count is {expected}"
    )]
    SplitTensorCount {
        /// Tensors found.
        found: u64,
        /// Tensors announced.
        expected: u64,
    },
    /// One part of a split model alone, in memory.
    #[error("this is part {} of {count} of a split model: all parts are needed, in order", .number + 1)]
    SplitAlone {
        /// `split.no`, from 0.
        number: u32,
        /// `split.count`.
        count: u32,
    },

    /// A metadata key that was required.
    #[error("metadata key {} is missing: expected a value of type {wanted}", quoted(.key))]
    MissingKey {
        /// The key.
        key: String,
        /// The type it should have.
        wanted: &'static str,
    },
    /// A metadata value of a type that cannot be read as the one asked for.
    #[error("metadata key {} is of type {found}: expected {wanted}", quoted(.key))]
    WrongType {
        /// The key.
        key: String,
        /// The type asked for.
        wanted: &'static str,
        /// The type found.
        found: String,
    },
    /// A number that the type asked for cannot hold.
    #[error("metadata key {} holds {found}, which is no {wanted}", quoted(.key))]
    OutOfRange {
        /// The key.
        key: String,
        /// The type asked for.
        wanted: &'static str,
        /// The number found.
        found: String,
    },
    /// A string that should be text and isn't.
    #[error("metadata key {} is not UTF-8 from byte {valid_up_to} of its string", quoted(.key))]
    NotUtf8 {
        /// The key.
        key: String,
        /// Bytes of the string that are fine.
        valid_up_to: usize,
    },

    /// A tensor that was required.
    #[error("tensor {} is missing", quoted(.tensor))]
    MissingTensor {
        /// The name.
        tensor: String,
    },
    /// A description of a tensor that is none of this model's.
    #[error("tensor {} (part {part}, {bytes} bytes at offset {offset}) is not in this model", quoted(.tensor))]
    ForeignTensor {
        /// The name.
        tensor: String,
        /// Its part.
        part: usize,
        /// Its offset in the part's data section.
        offset: u64,
        /// Its size.
        bytes: u64,
    },
    /// A range outside a part.
    #[error("bytes {start} to {end} were asked for, but the file is {file_bytes} bytes long")]
    RangePastEnd {
        /// First byte.
        start: u64,
        /// Byte after the last.
        end: u64,
        /// Length of the file when it was opened.
        file_bytes: u64,
    },
    /// The file became shorter after it was opened.
    #[error(
        "the file was cut after it was opened: it had {was} bytes and now has {now}, but bytes up to {wanted} are needed"
    )]
    FileShrunk {
        /// Length when opened.
        was: u64,
        /// Length now.
        now: u64,
        /// End of the bytes asked for.
        wanted: u64,
    },
}

impl Error {
    /// The error itself, without the file it was found in.
    pub fn cause(&self) -> &Error {
        match self {
            Error::InFile { cause, .. } => cause.cause(),
            other => other,
        }
    }

    /// Adds the file, once.
    pub(crate) fn in_file(self, path: &std::path::Path) -> Error {
        match self {
            Error::InFile { .. } => self,
            cause => Error::InFile { path: path.to_path_buf(), cause: Box::new(cause) },
        }
    }
}

/// What is wrong with a metadata key or a tensor name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No bytes.
    #[error("is empty")]
    Empty,
    /// Too many bytes.
    #[error("is {length} bytes long: expected at most {MAX_NAME_BYTES}")]
    TooLong {
        /// The length found.
        length: u64,
    },
    /// Not text.
    #[error("is not UTF-8 (wrong from its byte {valid_up_to} on): {start:?}")]
    NotUtf8 {
        /// Bytes of the name that are fine.
        valid_up_to: usize,
        /// The first characters, wrong bytes replaced.
        start: String,
    },
}

/// Text out of a file, made fit to be shown: escaped, and cut after 80 characters.
pub(crate) fn quoted(text: &str) -> String {
    let mut shown: String = text.chars().take(80).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("{shown:?}")
}

fn about_type_id(id: u32) -> String {
    match id {
        4 | 5 | 31..=33 | 36..=38 => "this type was withdrawn; convert the model again".to_string(),
        _ => {
            let last = GgmlType::ALL.last().map_or(0, |ty| ty.id());
            format!("expected one of the {} known types, up to {last}", GgmlType::ALL.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_names_are_short_and_escaped() {
        assert_eq!(quoted("a\u{1b}[31m\n"), r#""a\u{1b}[31m\n""#);
        let long = "ü".repeat(1000);
        assert_eq!(quoted(&long).chars().count(), 83);
    }

    #[test]
    fn the_file_is_named_once() {
        let error = Error::Empty.in_file("a.gguf".as_ref()).in_file("b.gguf".as_ref());
        assert_eq!(error.to_string(), "a.gguf: the file is empty: a download may have failed");
        assert!(matches!(error.cause(), Error::Empty));
    }

    #[test]
    fn errors_stay_small() {
        assert!(size_of::<Error>() <= 120, "{}", size_of::<Error>());
    }
}
