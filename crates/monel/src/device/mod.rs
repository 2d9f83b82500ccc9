//! Devices: one in-order queue each, opened once per process, released with the last thing that hangs on it.
//!
//! [`Device`] is a handle. Streams, buffers and recordings keep the device alive, in any order of dropping (contract
//! O1, E6). What differs between devices is behind [`driver::Driver`]; this folder holds one folder per device.

pub mod driver;
pub mod scripted;
pub mod software;
pub(crate) mod staging;
#[cfg(feature = "vulkan")]
pub mod vulkan;

pub(crate) mod addresses;
mod encoders;
mod lower;
mod mapped;
mod needs;
pub(crate) mod ranges;
mod select;

pub use driver::{DeviceKind, HostMapping, Info, MemoryInfo, Storage};
pub use mapped::Mapped;
pub use needs::{Need, Needs};
pub use select::{Listing, environment, list, open, problems};

use crate::buffer::{self, Buffer};
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::ops::Op;
use crate::plan::{self, Limits, Plan, Rates};
use crate::queue::Queue;
use crate::recording::Recording;
use crate::stream::Stream;
use crate::tensor::{DType, Desc, Tensor};
use crate::trace::Trace;
use driver::Driver;
use staging::Staging;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// How a device is opened.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The longest a chunk may keep the device busy (contract A5).
    pub chunk_budget: Duration,
    /// Graphs of one stream that may be unfinished (A3).
    pub in_flight: usize,
    /// Threads that encode beside the calling one (A2); 0 encodes everything on the calling thread.
    pub encode_helpers: usize,
    /// Bytes of staging memory (T1).
    pub staging: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            chunk_budget: Duration::from_millis(250),
            in_flight: 3,
            encode_helpers: 1,
            staging: 64 << 20,
        }
    }
}

/// Things that are alive on a device. After the last drop all are zero (contract E6).
#[derive(Default, Debug)]
pub struct Counts {
    /// Buffers.
    pub buffers: AtomicUsize,
    /// Streams.
    pub streams: AtomicUsize,
    /// Recordings.
    pub recordings: AtomicUsize,
    /// Threads of the device: workers, its queue's thread, encode helpers.
    pub threads: AtomicUsize,
    /// Encoded chunks and transfers that are not released.
    pub commands: AtomicUsize,
}

impl Counts {
    /// All counts as plain numbers: buffers, streams, recordings, threads, commands.
    pub fn snapshot(&self) -> [usize; 5] {
        [&self.buffers, &self.streams, &self.recordings, &self.threads, &self.commands]
            .map(|c| c.load(Ordering::Acquire))
    }
}

/// A handle to a device.
#[derive(Clone)]
pub struct Device {
    pub(crate) core: Arc<Core>,
}

/// What a device is behind its handles.
pub(crate) struct Core {
    pub id: u64,
    pub driver: Arc<dyn Driver>,
    pub queue: Arc<Queue>,
    pub rates: Arc<Rates>,
    pub staging: Arc<Staging>,
    pub settings: Settings,
    pub counts: Arc<Counts>,
    pub encoders: encoders::Encoders,
    buffers: Mutex<BTreeMap<u64, Weak<buffer::Inner>>>,
}

impl Drop for Core {
    fn drop(&mut self) {
        self.encoders.shut_down();
        self.driver.shut_down();
    }
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Device {
    /// A device over a driver. Public so that tests and other crates can bring drivers of their own.
    pub fn with_driver(
        driver: Arc<dyn Driver>,
        rates: Rates,
        settings: Settings,
        counts: Arc<Counts>,
    ) -> Device {
        let rates = Arc::new(rates);
        let queue = Queue::new(driver.clone(), rates.clone());
        let core = Core {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            driver,
            queue,
            rates,
            staging: Staging::new(settings.staging),
            encoders: encoders::Encoders::new(settings.encode_helpers, counts.clone()),
            settings,
            counts,
            buffers: Mutex::new(BTreeMap::new()),
        };
        Device { core: Arc::new(core) }
    }

    /// Name, kind and limits.
    pub fn info(&self) -> &Info {
        self.core.driver.info()
    }

    /// Memory in all and usable now (contract M7).
    pub fn memory(&self) -> MemoryInfo {
        let memory = self.core.driver.memory();
        MemoryInfo { total: memory.total, free: memory.free.min(memory.total) }
    }

    /// What is alive on the device; keep it to look after the last drop.
    pub fn counts(&self) -> Arc<Counts> {
        self.core.counts.clone()
    }

    /// What it can do (contract P1): derived from what the driver implements.
    pub fn capabilities(&self) -> Vec<&'static str> {
        // Queue, futures and events are the engine's, so every device has them.
        let mut list = vec!["async", "events", "timeline"];
        if self.info().kind == DeviceKind::Cpu || self.info().kind == DeviceKind::Integrated {
            list.push("shared-memory");
        }
        if self.can_map() {
            list.push("mapped-memory");
        }
        list
    }

    /// A lane into the device's queue.
    pub fn stream(&self) -> Stream {
        Stream::new(self.core.clone())
    }

    /// A buffer of `bytes` (at least 1), zeroed. Fails with wanted and free bytes (contract M8).
    pub fn allocate(&self, storage: Storage, bytes: usize) -> Result<Buffer> {
        let bytes = bytes.max(1);
        if bytes > self.info().max_buffer {
            return Err(Error::TooLarge {
                device: self.info().name.clone(),
                what: "a buffer".into(),
                wanted: bytes as u64,
                largest: self.info().max_buffer as u64,
            });
        }
        let memory = self.core.driver.allocate(storage, bytes)?;
        Ok(self.core.adopt(memory, storage, bytes))
    }

    /// A tensor in a buffer of its own, private on discrete devices and shared where memory is unified (contract M3).
    pub fn tensor(&self, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        let desc = Desc::new(dtype, dims)?;
        Tensor::new(&self.allocate(self.default_storage(), desc.span())?, 0, desc)
    }

    /// The kind of memory this device is fastest with (contract M3).
    pub fn default_storage(&self) -> Storage {
        match self.info().kind {
            DeviceKind::Cpu | DeviceKind::Integrated => Storage::Shared,
            DeviceKind::Discrete | DeviceKind::Software => Storage::Private,
        }
    }

    /// The type in which weights of this type and shape are best kept on this device.
    pub fn weight_type(&self, dtype: DType, ne: [usize; 4]) -> DType {
        self.core.driver.weight_type(dtype, ne)
    }

    /// Whether an op with these operands computes the right values here, or why not (contract P2).
    pub fn supports(&self, op: &dyn Op, inputs: &[Desc], output: &Desc) -> Result<(), String> {
        self.core.driver.supports(op, inputs, output)
    }

    /// The plan for a graph: what would run, without running it.
    pub fn plan(&self, graph: &Graph) -> Result<Plan> {
        let lowered = self.core.driver.lower(graph)?;
        let supports =
            |op: &dyn Op, inputs: &[Desc], output: &Desc| self.core.driver.supports(op, inputs, output);
        let fuse = |graph: &Graph, uses: &plan::Uses, value| self.core.driver.fuse(graph, uses, value);
        let limits = Limits {
            fuse: &fuse,
            device: &self.info().name,
            device_id: self.core.id,
            rates: &self.core.rates,
            chunk_budget_ns: self.core.settings.chunk_budget.as_nanos() as f64,
            supports: &supports,
        };
        plan::plan(lowered.as_ref().unwrap_or(graph), &limits)
    }

    /// Plans a graph and reserves its scratch memory. Submitting the recording again costs next to nothing (A6).
    pub fn record(&self, graph: &Graph) -> Result<Recording> {
        let trace = self.core.queue.trace();
        let _span = trace.as_ref().map(|t| t.span(crate::trace::Track::thread(), "plan", graph.name(), 0));
        Recording::new(self, self.plan(graph)?)
    }

    /// Begins to write a timeline of everything on this device (contract P5); `None` ends it.
    pub fn set_trace(&self, trace: Option<Arc<Trace>>) {
        self.core.queue.set_trace(trace);
    }

    /// The buffer that owns an address, and the offset in it (contract M5).
    pub fn find(&self, address: u64) -> Result<(Buffer, usize)> {
        let below = {
            let buffers = self.core.buffers.lock().unwrap_or_else(PoisonError::into_inner);
            buffers.range(..=address).next_back().map(|(&start, weak)| (start, weak.clone()))
        };
        // Upgraded without the lock: this may turn out to be the last handle, whose drop takes the lock.
        if let Some((start, weak)) = below
            && let Some(inner) = weak.upgrade()
            && address - start < inner.size as u64
        {
            return Ok((Buffer { inner }, (address - start) as usize));
        }
        Err(Error::UnknownAddress { device: self.info().name.clone(), address })
    }

    /// Bytes waiting in the staging ring now, and the most there ever were (contract T4).
    pub fn staging_usage(&self) -> (usize, usize) {
        self.core.staging.usage()
    }

    /// Whether both are handles of one device.
    pub fn is_same(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({}: {})", self.info().id, self.info().name)
    }
}

impl Core {
    pub(crate) fn adopt(
        self: &Arc<Self>,
        memory: Arc<dyn driver::Memory>,
        storage: Storage,
        size: usize,
    ) -> Buffer {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let address = memory.address();
        self.counts.buffers.fetch_add(1, Ordering::AcqRel);
        let inner = Arc::new(buffer::Inner { id, size, storage, memory: Some(memory), core: self.clone() });
        if storage != Storage::Mapped {
            let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
            buffers.insert(address, Arc::downgrade(&inner));
        }
        Buffer { inner }
    }

    pub(crate) fn forget_buffer(&self, id: u64, address: u64, storage: Storage) {
        self.queue.look(|s| s.forget_buffer(id));
        if storage != Storage::Mapped {
            self.buffers.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
        }
        self.counts.buffers.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Opens the software device: the CPU, always there. Opening it again gives the same device and queue.
pub fn open_cpu() -> Result<Device> {
    software::open_default()
}
