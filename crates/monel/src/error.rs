//! Errors: what was expected, what was found, where.
//!
//! One enum for the crate. It is `Clone`, because one failure is told to several waiters: the submission, the stream's
//! latch, everything refused later. Kinds are variants and facts are fields, so callers match instead of parsing text.

use std::sync::Arc;

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A shape, stride or type does not fit the operation.
    #[error("{op}: expected {expected}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// What was expected and what was found.
        expected: String,
    },
    /// The device cannot compute this; nothing of the graph ran (contract E4, P2).
    #[error("{device} does not support {op}: {reason}")]
    Unsupported {
        /// The device.
        device: String,
        /// The operation with its operands.
        op: String,
        /// Why.
        reason: String,
    },
    /// A tensor of another device, or a value of another graph.
    #[error("{what} belongs to {found}, expected {expected}")]
    Foreign {
        /// Which tensor or value.
        what: String,
        /// Where it should be.
        expected: String,
        /// Where it is.
        found: String,
    },
    /// A range that does not lie inside its buffer.
    #[error("{what}: {bytes} bytes at {offset} do not fit in {size} bytes")]
    OutOfRange {
        /// What was placed or transferred.
        what: String,
        /// Byte offset.
        offset: usize,
        /// Bytes.
        bytes: usize,
        /// Bytes there are.
        size: usize,
    },
    /// An address that no buffer of the device owns (contract M5).
    #[error("no buffer of {device} owns the address {address:#x}")]
    UnknownAddress {
        /// The device.
        device: String,
        /// The address.
        address: u64,
    },
    /// No memory; everything allocated for the request was released (contract M8).
    #[error("out of memory on {device}: {what} needs {wanted} bytes, {free} are free")]
    OutOfMemory {
        /// The device.
        device: String,
        /// What the memory was for.
        what: String,
        /// Bytes wanted.
        wanted: u64,
        /// Bytes free at that time.
        free: u64,
    },
    /// A buffer larger than the device's largest, or mapped memory that no set of views can cover (contract M4).
    #[error("{what} needs {wanted} bytes in one buffer, the largest of {device} is {largest}")]
    TooLarge {
        /// The device.
        device: String,
        /// What it was.
        what: String,
        /// Bytes wanted.
        wanted: u64,
        /// Largest buffer.
        largest: u64,
    },
    /// The device is gone. Its streams are poisoned; open it again to go on (contract E3).
    #[error("{device} was lost: {reason}")]
    DeviceLost {
        /// The device.
        device: String,
        /// What the driver said.
        reason: String,
    },
    /// A chunk did not finish in the time the device allows.
    #[error("{device} did not finish within {limit_ms} ms")]
    Timeout {
        /// The device.
        device: String,
        /// The limit.
        limit_ms: u64,
    },
    /// A kernel found its input wrong, for example a row index past the table.
    #[error("{0}")]
    Kernel(String),
    /// A mapped file became shorter than when it was mapped.
    #[error(
        "{what} shrank to {found} bytes while in use, expected {expected}: reload the model from an intact file"
    )]
    MappingShrank {
        /// The file.
        what: String,
        /// Bytes when mapped.
        expected: u64,
        /// Bytes now.
        found: u64,
    },
    /// A submission failed; the cause is inside.
    #[error("{place}: {cause}")]
    Failed {
        /// Graph, chunk and op.
        place: Place,
        /// Why.
        cause: Arc<Error>,
    },
    /// The stream is poisoned by an earlier failure; `Stream::recover` clears it (contract E2, E3).
    #[error("refused because earlier work failed: {first}")]
    Poisoned {
        /// The first failure.
        first: Arc<Error>,
    },
    /// The submission was cancelled by its token (contract E5).
    #[error("cancelled")]
    Cancelled,
    /// No device of that name.
    #[error("no device '{wanted}'; this machine has {known}{}", missing(.problems))]
    NoDevice {
        /// What was asked for.
        wanted: String,
        /// What there is.
        known: String,
        /// What may keep others from being there.
        problems: Vec<String>,
    },
    /// The instruction set that the environment asks for.
    #[error(transparent)]
    Features(crate::device::software::simd::IsaError),
    /// An environment variable of ours with a value that it cannot have.
    #[error("{name} is '{found}', expected {expected}: set it so, or unset it")]
    Environment {
        /// The variable.
        name: &'static str,
        /// Its value.
        found: String,
        /// What it can be.
        expected: String,
    },
    /// A system call failed.
    #[error("{what}: {reason}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        reason: String,
    },
}

/// Where a submission failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The graph's or transfer's name.
    pub graph: String,
    /// The chunk, from 0.
    pub chunk: usize,
    /// The op, where it is known.
    pub op: Option<String>,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (chunk {})", self.graph, self.chunk)?;
        match &self.op {
            Some(op) => write!(f, ", {op}"),
            None => Ok(()),
        }
    }
}

impl Error {
    pub(crate) fn shape(op: &'static str, expected: impl Into<String>) -> Error {
        Error::Shape { op, expected: expected.into() }
    }

    /// The host has no memory for `bytes` bytes.
    pub(crate) fn host_memory(what: &str, bytes: usize) -> Error {
        Error::OutOfMemory { device: "host".into(), what: what.into(), wanted: bytes as u64, free: 0 }
    }

    /// The failure at the bottom: what poisoned a stream, what made a submission fail.
    pub fn root(&self) -> &Error {
        match self {
            Error::Failed { cause: inner, .. } | Error::Poisoned { first: inner } => inner.root(),
            other => other,
        }
    }
}

/// The end of a message about devices.
fn missing(problems: &[String]) -> String {
    if problems.is_empty() {
        String::new()
    } else {
        format!("; others may be missing: {}", problems.join("; "))
    }
}

/// What a caught panic said.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
