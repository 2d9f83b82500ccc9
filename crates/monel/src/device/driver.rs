//! What a device has to implement: everything below the queue's state machine.
//!
//! A driver allocates memory, encodes chunks and transfers into commands, and runs commands in the order in which they
//! are committed, telling its [`Sink`] about each. It knows nothing of streams, budgets, errors that travel or program
//! order: that is the engine's, once, for all devices. Adding a device means a folder beside `software/` with this
//! trait in it, and how it is listed and opened in `device/select.rs`.

pub use super::staging::{DriverBytes, HostBytes, StagedBytes};

use crate::error::{Error, Result};
use crate::graph::{Graph, Value};
use crate::ops::Op;
use crate::plan::{Plan, Uses};
use crate::tensor::{DType, Desc};
use crate::trace::Trace;
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// The kind of memory a buffer lies in (contract.md, "Words").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Storage {
    /// Only the device sees it.
    Private,
    /// Host and device see the same bytes.
    Shared,
    /// Somebody else's host memory, used in place and never written.
    Mapped,
}

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The software device.
    Cpu,
    /// A GPU that shares the host's memory.
    Integrated,
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU interface computed by the CPU (llvmpipe and the like).
    Software,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Integrated => "integrated",
            DeviceKind::Discrete => "discrete",
            DeviceKind::Software => "software",
        })
    }
}

/// Name and limits of a device.
#[derive(Clone, Debug)]
pub struct Info {
    /// What `--device` takes: `cpu`, `vulkan:0`.
    pub id: String,
    /// The hardware's name.
    pub name: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Bytes in its largest buffer.
    pub max_buffer: usize,
    /// A power of two; mapped memory is cut at multiples of it.
    pub page: usize,
    /// Features for display, such as instruction sets.
    pub features: Vec<String>,
    /// What its user should hear of: the device works, but not as it could.
    pub warnings: Vec<String>,
}

/// Bytes of device memory in all and usable now; free is never more than total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// In all.
    pub total: u64,
    /// Usable now.
    pub free: u64,
}

/// A device's memory behind a buffer, released on drop.
pub trait Memory: Any + Send + Sync {
    /// The address the device hands out: virtual for private memory (contract M1).
    fn address(&self) -> u64;
    /// For shared memory: copies host bytes in at `offset`. `None` where the host cannot see it.
    fn write(&self, offset: usize, bytes: &[u8]) -> Option<()>;

    /// Where the host sees these bytes of shared memory. `None` where it cannot, or the driver wants [`Memory::write`].
    /// Whoever uses the address has waited for his turn on the bytes.
    fn host(&self, _range: Range<usize>) -> Option<NonNull<u8>> {
        None
    }
}

/// Host memory that belongs to somebody else, such as a mapped file.
pub trait HostMapping: Send + Sync {
    /// The bytes.
    fn bytes(&self) -> &[u8];
    /// A name for errors.
    fn name(&self) -> String;
    /// The length that is really there now; shorter than `bytes` when a file was cut.
    fn current_len(&self) -> Option<u64> {
        None
    }
}

/// Encoded work: made once, committed any number of times.
pub trait Commands: Any + Send + Sync {}

/// Bytes of a transfer on the device: `rows` runs of `row` bytes, `stride` apart, from `offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub offset: usize,
    /// Bytes in a run.
    pub row: usize,
    /// Runs.
    pub rows: usize,
    /// Bytes from one run to the next.
    pub stride: usize,
}

impl Region {
    /// One run.
    pub fn linear(offset: usize, bytes: usize) -> Region {
        Region { offset, row: bytes, rows: 1, stride: bytes }
    }

    /// Bytes moved.
    pub fn bytes(&self) -> usize {
        self.row * self.rows
    }

    /// From the first to past the last byte.
    pub fn range(&self) -> Range<usize> {
        let span = if self.bytes() == 0 { 0 } else { self.stride * (self.rows - 1) + self.row };
        self.offset..self.offset + span
    }

    /// Whether runs follow each other.
    pub fn is_dense(&self) -> bool {
        self.rows <= 1 || self.stride == self.row
    }
}

/// Where a download lands.
pub type Landing = Arc<std::sync::Mutex<Vec<u8>>>;

/// A transfer to encode.
pub enum Transfer {
    /// Host bytes (runs one after the other) to the device.
    Upload {
        /// Destination.
        memory: Arc<dyn Memory>,
        /// Which bytes.
        region: Region,
        /// What.
        bytes: StagedBytes,
    },
    /// Device bytes to the host.
    Download {
        /// Source.
        memory: Arc<dyn Memory>,
        /// Which bytes.
        region: Region,
        /// Destination, resized by the driver.
        landing: Landing,
    },
    /// One value in every byte of the region.
    Fill {
        /// Destination.
        memory: Arc<dyn Memory>,
        /// Which bytes.
        region: Region,
        /// The value.
        value: u8,
    },
    /// Device bytes to device bytes, which do not overlap.
    Copy {
        /// Source.
        from: (Arc<dyn Memory>, Region),
        /// Destination, with as many bytes.
        to: (Arc<dyn Memory>, Region),
    },
}

/// A committed piece of work.
pub struct Job {
    /// Its place in the order.
    pub seq: u64,
    /// What to run.
    pub commands: Arc<dyn Commands>,
    /// For timelines: graph and chunk.
    pub label: (Arc<str>, usize),
    /// Where to write spans, when a timeline is on.
    pub trace: Option<Arc<Trace>>,
}

/// What a finished job reports.
pub struct Done {
    /// The job's place in the order.
    pub seq: u64,
    /// Ok, or the op (where known) and the cause.
    pub result: Result<(), (Option<String>, Error)>,
    /// When the device began and ended, for estimates.
    pub began: Instant,
    /// As above.
    pub ended: Instant,
}

/// Who hears about finished jobs.
pub trait Sink: Send + Sync {
    /// Called in the order of commits, from a thread of the driver that holds none of its locks.
    fn completed(&self, done: Done);
}

/// A device below the queue.
pub trait Driver: Send + Sync {
    /// Name and limits.
    fn info(&self) -> &Info;

    /// Memory in all and usable.
    fn memory(&self) -> MemoryInfo;

    /// Whether this op with these operands computes the right values, or why not (contract P2).
    fn supports(&self, op: &dyn Op, inputs: &[Desc], output: &Desc) -> Result<(), String>;

    /// The type in which weights of this type and shape are best kept (repacked once at load).
    fn weight_type(&self, dtype: DType, _ne: [usize; 4]) -> DType {
        dtype
    }

    /// Rewrites a graph into the ops this device runs best, or `None` where nothing changes.
    fn lower(&self, _graph: &Graph) -> Result<Option<Graph>> {
        Ok(None)
    }

    /// The nodes that are best computed together with a node, in order and the node included; `None` for a device that
    /// chains row-local ops instead. Called for each node that no earlier group holds.
    fn fuse(&self, _graph: &Graph, _uses: &Uses, _first: Value) -> Option<Vec<Value>> {
        None
    }

    /// Memory of a kind, zeroed. Fails with wanted and free bytes.
    fn allocate(&self, storage: Storage, bytes: usize) -> Result<Arc<dyn Memory>>;

    /// Whether [`Driver::import`] does something.
    fn can_import(&self) -> bool {
        false
    }

    /// Host memory used in place: `range` is not empty, and starts at a page and ends at one or with the mapping.
    fn import(&self, mapping: &Arc<dyn HostMapping>, _range: Range<usize>) -> Result<Arc<dyn Memory>> {
        Err(Error::Unsupported {
            device: self.info().name.clone(),
            op: format!("using {} in place", mapping.name()),
            reason: "it reads memory of its own only".into(),
        })
    }

    /// Encodes a chunk of a plan, whose scratch memory is `scratch`. May run on any thread. Reads no tensor data.
    fn encode(
        &self,
        plan: &Plan,
        chunk: usize,
        scratch: Option<&Arc<dyn Memory>>,
    ) -> Result<Arc<dyn Commands>>;

    /// Memory that uploads of `bytes` are staged in, with any content, where the driver has a kind that the device reads
    /// faster than the host's usual one. Whatever comes back in [`Transfer::Upload`] may be this or plain memory.
    fn stage(&self, _bytes: usize) -> Result<Option<Box<dyn DriverBytes>>> {
        Ok(None)
    }

    /// Encodes a transfer.
    fn encode_transfer(&self, transfer: Transfer) -> Result<Arc<dyn Commands>>;

    /// Where completions go; called once, before the first commit.
    fn attach(&self, sink: Weak<dyn Sink>);

    /// Takes over work, in order; returns at once and never calls the sink from inside.
    fn commit(&self, job: Job);

    /// Ends the driver's threads after what was committed; called once, when the last handle is gone.
    fn shut_down(&self) {}
}
