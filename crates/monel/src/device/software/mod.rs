//! The software device: the CPU, the default that is always there.
//!
//! One thread owns the queue and is the first worker of a small pool ([`pool`]); committed chunks are lists of kernel
//! calls ([`chunk`]), run phase by phase between barriers. Private memory exists here too ([`memory`]), so that no code
//! grows used to host access.

pub mod ceiling;
mod chunk;
#[cfg(loom)]
pub mod door;
#[cfg(not(loom))]
mod door;
mod encode;
pub(crate) mod lower;
pub(crate) mod memory;
mod pages;
mod pool;
mod queue_thread;
pub mod simd;
mod transfer;

pub(crate) use encode::Encoder;
pub(crate) use memory::Allocator;
pub(crate) use pool::Pool;
pub(crate) use queue_thread::execute;

use super::driver::{
    Commands, DeviceKind, Driver, HostMapping, Info, Job, Memory, MemoryInfo, Sink, Storage, Transfer,
};
use super::{Counts, Device, Settings};
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::ops::Op;
use crate::plan::{Plan, Rates};
use crate::tensor::{DType, Desc};
use simd::Isa;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// How the software device is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Threads that compute; 0 means one per core.
    pub threads: usize,
    /// The instruction set; `None` takes the best one that the machine has and [`simd::VARIABLE`] allows.
    pub isa: Option<Isa>,
    /// Bytes in its largest buffer (contract M4: a setting here).
    pub max_buffer: usize,
    /// Bytes it may allocate in all; `None` leaves it to the system.
    pub memory_limit: Option<u64>,
    /// Everything that is not the CPU's own.
    pub settings: Settings,
}

impl Default for Options {
    fn default() -> Self {
        let settings = Settings::default();
        Options { threads: 0, isa: None, max_buffer: isize::MAX as usize / 4, memory_limit: None, settings }
    }
}

/// What every thread of the device can reach: memory and encoding, no threads.
pub(crate) struct Base {
    pub info: Info,
    pub isa: Isa,
    pub threads: usize,
    pub allocator: Arc<Allocator>,
    pub encoder: Encoder,
}

impl Base {
    pub fn new(options: &Options, isa: Isa, counts: &Arc<Counts>) -> Base {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if options.threads == 0 { cores } else { options.threads };
        let name = memory::processor_name();
        let info = Info {
            id: "cpu".into(),
            name: name.clone(),
            kind: DeviceKind::Cpu,
            max_buffer: options.max_buffer,
            page: crate::device::addresses::PAGE,
            features: vec![isa.name().to_string(), format!("{threads} threads")],
            warnings: Vec::new(),
        };
        let allocator = Arc::new(Allocator::new(name, options.memory_limit));
        Base { info, isa, threads, allocator, encoder: Encoder { isa, threads, counts: counts.clone() } }
    }

    /// Rates to start with: a core's share of the integer and memory throughput of common desktop processors.
    pub fn rates(&self) -> Rates {
        Rates::new(50.0 * self.threads as f64, 10.0 * (self.threads as f64).min(2.0))
    }
}

struct Software {
    base: Base,
    jobs: Arc<queue_thread::Jobs>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// Opens the device with default options; again gives the same device and queue.
pub fn open_default() -> Result<Device> {
    open(&Options::default())
}

/// Opens the process's software device. If it is open already, its number of threads has to be the one asked for.
pub fn open(options: &Options) -> Result<Device> {
    static OPEN: Mutex<Option<(usize, Weak<super::Core>)>> = Mutex::new(None);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((threads, weak)) = &*open
        && let Some(core) = weak.upgrade()
    {
        if options.threads != 0 && options.threads != *threads {
            return Err(Error::System {
                what: format!("opening the software device with {} threads", options.threads),
                reason: format!(
                    "it is open in this process with {threads}; drop that device first, or ask for {threads}"
                ),
            });
        }
        return Ok(Device { core });
    }
    let device = create(options)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if options.threads == 0 { cores } else { options.threads };
    *open = Some((threads, Arc::downgrade(&device.core)));
    Ok(device)
}

/// A software device of its own, beside the process's: for tests and for splitting cores between models.
pub fn create(options: &Options) -> Result<Device> {
    let counts = Arc::new(Counts::default());
    let isa = options.isa.map_or_else(Isa::from_env, Ok).map_err(Error::Features)?;
    let base = Base::new(options, isa, &counts);
    let rates = base.rates();
    let pool = Pool::new(base.threads, base.isa, counts.clone());
    let jobs = Arc::new(queue_thread::Jobs::default());
    let thread = queue_thread::start(jobs.clone(), pool, base.info.id.clone(), counts.clone())?;
    let driver = Software { base, jobs, thread: Mutex::new(Some(thread)) };
    Ok(Device::with_driver(Arc::new(driver), rates, options.settings.clone(), counts))
}

/// Everything of [`Driver`] that needs no thread, shared with the scripted device, which puts faults into two of them.
macro_rules! base_driver {
    ($base:ident) => {
        $crate::device::software::base_driver!(
            $base,
            allocate = |this: &Self, storage, bytes| this.$base.allocator.allocate(storage, bytes),
            encode = |this: &Self, plan, chunk, scratch| this.$base.encoder.chunk(plan, chunk, scratch)
        );
    };
    ($base:ident, allocate = $allocate:expr, encode = $encode:expr) => {
        fn info(&self) -> &Info {
            &self.$base.info
        }

        fn memory(&self) -> MemoryInfo {
            self.$base.allocator.info()
        }

        fn supports(&self, op: &dyn Op, inputs: &[Desc], output: &Desc) -> Result<(), String> {
            op.supports(inputs, output)
        }

        fn weight_type(&self, dtype: DType, ne: [usize; 4]) -> DType {
            $crate::device::software::lower::weight_type(dtype, ne)
        }

        fn lower(&self, graph: &Graph) -> Result<Option<Graph>> {
            $crate::device::software::lower::lower(graph)
        }

        fn allocate(&self, storage: Storage, bytes: usize) -> Result<Arc<dyn Memory>> {
            let allocate: fn(&Self, Storage, usize) -> Result<Arc<dyn Memory>> = $allocate;
            allocate(self, storage, bytes)
        }

        fn can_import(&self) -> bool {
            true
        }

        fn import(&self, mapping: &Arc<dyn HostMapping>, range: Range<usize>) -> Result<Arc<dyn Memory>> {
            $crate::device::software::memory::import(mapping, range)
        }

        fn encode(
            &self,
            plan: &Plan,
            chunk: usize,
            scratch: Option<&Arc<dyn Memory>>,
        ) -> Result<Arc<dyn Commands>> {
            type Scratch<'a> = Option<&'a Arc<dyn Memory>>;
            let encode: fn(&Self, &Plan, usize, Scratch<'_>) -> Result<Arc<dyn Commands>> = $encode;
            encode(self, plan, chunk, scratch)
        }

        fn encode_transfer(&self, transfer: Transfer) -> Result<Arc<dyn Commands>> {
            self.$base.encoder.transfer(transfer)
        }
    };
}
pub(crate) use base_driver;

impl Driver for Software {
    base_driver!(base);

    fn attach(&self, sink: Weak<dyn Sink>) {
        self.jobs.attach(sink);
    }

    fn commit(&self, job: Job) {
        self.jobs.push(job);
    }

    fn shut_down(&self) {
        self.jobs.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}
