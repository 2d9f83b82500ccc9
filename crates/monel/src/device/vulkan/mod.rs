//! The Vulkan device: any GPU with a Vulkan 1.2 driver and 16-bit storage, and Mesa's software driver for tests.
//!
//! - `instance`: the loader, found at run time; `adapter`, `features`: what a device offers, and the verdict; `gpu`: the
//!   logical device; `validation`: the layers that watch over calls.
//! - `memory`, `ranges`: few large blocks, bound whole; buffers are pieces of them. `import`: files used in place.
//! - `shader`, `pipeline`: kernels from WGSL, compiled in the process, cached on disk.
//! - `encode`, `transfer`, `commands`: plans and transfers become command buffers, recorded once and submitted often.
//! - `queue`: one queue, one timeline semaphore, one thread that reports what is done.
//!
//! Which ops run here is up to the ops: whatever gives a [`shader`](crate::ops::Op::shader).

mod adapter;
mod commands;
mod cut;
mod encode;
mod features;
mod forecast;
mod gpu;
mod import;
mod instance;
mod memory;
mod pipeline;
mod queue;
mod record;
pub(crate) mod shader;
#[cfg(test)]
pub(crate) mod tests;
mod times;
mod transfer;
mod validation;

pub use queue::Brake;
pub use validation::messages as validation_messages;

use super::driver::{
    Commands, Driver, DriverBytes, HostMapping, Info, Job, Memory, MemoryInfo, Sink, Storage, Transfer,
};
use super::{Counts, Device, DeviceKind, Listing, Settings};
use crate::error::{Error, Result};
use crate::gpu::{GpuCall, Memory as Which, Operand};
use crate::graph::{Graph, Source, Value};
use crate::ops::matmul::many;
use crate::ops::{Op, mat_vec};
use crate::plan::{Plan, Rates, Uses};
use crate::tensor::{DType, Desc};
use adapter::Adapter;
pub use adapter::Forced;
use commands::{BufferPool, Faults};
use gpu::Gpu;
pub use gpu::Residency;
use memory::{Allocator, Use};
use pipeline::Pipelines;
use queue::Queue;
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// How a Vulkan device is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its number in the driver's order.
    pub index: usize,
    /// The longest that one chunk may take before the device counts as hung.
    pub timeout: Duration,
    /// Where compiled kernels are kept; `None` keeps none.
    pub cache: Option<PathBuf>,
    /// What happens to memory when the device runs out of it.
    pub residency: Residency,
    /// What counts as missing, for tests.
    pub forced: Forced,
    /// Everything that is not Vulkan's own.
    pub settings: Settings,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            index: 0,
            timeout: Duration::from_secs(60),
            cache: pipeline::default_directory(),
            residency: Residency::default(),
            forced: Forced::default(),
            settings: Settings::default(),
        }
    }
}

/// What encoding needs, on any thread.
struct Shared {
    gpu: Arc<Gpu>,
    queue: Arc<Queue>,
    allocator: Arc<Allocator>,
    buffers: Arc<BufferPool>,
    pipelines: Arc<Pipelines>,
    faults: Arc<Faults>,
    counts: Arc<Counts>,
}

struct Vulkan {
    info: Info,
    shared: Arc<Shared>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// Checks the environment variables that change how devices are opened.
pub fn environment() -> Result<()> {
    Forced::default().check()?;
    validation::wanted().map(|_| ())
}

/// The adapters that can run our kernels; empty where there is no Vulkan, or none that works.
pub fn list() -> Vec<Listing> {
    let adapters = instance::get().and_then(|i| i.adapters(&Forced::default())).unwrap_or_default();
    let usable = adapters.into_iter().filter(|a| a.used.is_ok());
    usable
        .map(|a| Listing { id: format!("vulkan:{}", a.index), name: a.name, kind: a.kind, memory: a.heap })
        .collect()
}

/// Why [`list`] has fewer entries than the machine has GPUs: the loader's or a driver's error, or what each adapter that
/// is left out lacks.
pub fn problems() -> Vec<String> {
    match instance::get().and_then(|i| i.adapters(&Forced::default())) {
        Err(e) => vec![e.to_string()],
        Ok(adapters) if adapters.is_empty() => vec!["Vulkan is there and has no device".into()],
        Ok(adapters) => {
            let lacking = adapters.iter().filter(|a| a.used.is_err());
            lacking.map(|a| format!("{} has no support for {}", a.name, a.lacks())).collect()
        }
    }
}

/// Opens a device. Opening it again gives the same device and queue, unless it was lost meanwhile.
pub fn open(options: &Options) -> Result<Device> {
    type Opened = HashMap<usize, (Weak<super::Core>, Weak<Gpu>)>;
    static OPEN: Mutex<Option<Opened>> = Mutex::new(None);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let open = open.get_or_insert_default();
    if let Some((core, gpu)) = open.get(&options.index)
        && let (Some(core), Some(gpu)) = (core.upgrade(), gpu.upgrade())
        && !gpu.is_lost()
    {
        return Ok(Device { core });
    }
    let (device, shared) = make(options)?;
    open.insert(options.index, (Arc::downgrade(&device.core), Arc::downgrade(&shared.gpu)));
    Ok(device)
}

/// A device of its own, beside the process's, with a way to hold its queue: for tests.
pub fn create(options: &Options) -> Result<(Device, Holder)> {
    let (device, shared) = make(options)?;
    Ok((device, Holder(Arc::downgrade(&shared))))
}

/// Holds a device's queue at the tests' wish.
pub struct Holder(Weak<Shared>);

impl Holder {
    /// Keeps the device from running anything that is committed from now on, until the brake is dropped.
    pub fn hold(&self) -> Result<Brake> {
        let gone = || Error::System { what: "holding the queue".into(), reason: "the device is gone".into() };
        self.0.upgrade().ok_or_else(gone)?.queue.brake()
    }
}

fn make(options: &Options) -> Result<(Device, Arc<Shared>)> {
    let instance = instance::get()?;
    let adapters = instance.adapters(&options.forced)?;
    let known: Vec<String> = adapters.iter().map(|a| format!("vulkan:{} ({})", a.index, a.name)).collect();
    let adapter = adapters.into_iter().find(|a| a.index == options.index).ok_or_else(|| Error::NoDevice {
        wanted: format!("vulkan:{}", options.index),
        known: if known.is_empty() { "none of Vulkan".into() } else { known.join(", ") },
        problems: Vec::new(),
    })?;
    let rates = rates(&adapter);
    let counts = Arc::new(Counts::default());
    let gpu = Gpu::new(instance, adapter, options.residency)?;
    let allocator = Allocator::new(gpu.clone());
    let faults = allocator.piece(Use::Shared, "words for faults", Faults::BYTES)?;
    let queue = Queue::new(gpu.clone(), options.timeout);
    let thread = queue.start(counts.clone())?;
    let pipelines = match Pipelines::new(gpu.clone(), options.cache.clone()) {
        Ok(pipelines) => Arc::new(pipelines),
        Err(e) => {
            queue.close();
            let _ = thread.join();
            return Err(e);
        }
    };
    let shared = Arc::new(Shared {
        queue,
        allocator,
        buffers: BufferPool::new(gpu.clone()),
        pipelines,
        faults: Faults::new(faults),
        counts: counts.clone(),
        gpu: gpu.clone(),
    });
    let (major, minor) = (vk_major(gpu.adapter.api), vk_minor(gpu.adapter.api));
    let info = Info {
        id: gpu.id.clone(),
        name: gpu.adapter.name.clone(),
        kind: gpu.adapter.kind,
        max_buffer: usize::try_from(gpu.max_buffer()).unwrap_or(usize::MAX),
        page: if gpu.host.is_some() { gpu.import_alignment() } else { crate::device::addresses::PAGE },
        features: [
            format!("vulkan {major}.{minor}"),
            gpu.adapter.driver.clone(),
            format!("subgroup {}", gpu.adapter.subgroup),
        ]
        .into_iter()
        .chain(gpu.used.names().iter().map(ToString::to_string))
        .collect(),
        warnings: shared.pipelines.warning().map(str::to_string).into_iter().collect(),
    };
    let driver = Vulkan { info, shared: shared.clone(), thread: Mutex::new(Some(thread)) };
    Ok((Device::with_driver(Arc::new(driver), rates, options.settings.clone(), counts), shared))
}

fn vk_major(version: u32) -> u32 {
    ash::vk::api_version_major(version)
}

fn vk_minor(version: u32) -> u32 {
    ash::vk::api_version_minor(version)
}

/// Rates to start with, in operations and bytes per nanosecond: what the simple kernels reach on a kind of device.
fn rates(adapter: &Adapter) -> Rates {
    match adapter.kind {
        DeviceKind::Discrete => Rates::new(5_000.0, 300.0),
        DeviceKind::Integrated => Rates::new(500.0, 30.0),
        DeviceKind::Cpu | DeviceKind::Software => Rates::new(2.0, 1.0),
    }
}

impl Driver for Vulkan {
    fn info(&self) -> &Info {
        &self.info
    }

    fn memory(&self) -> MemoryInfo {
        self.shared.gpu.memory()
    }

    fn supports(&self, op: &dyn Op, inputs: &[Desc], output: &Desc) -> Result<(), String> {
        op.supports(inputs, output)?;
        let words = op.scratch(inputs, output) / 4;
        let scratch = Desc::new(DType::I32, &[words]).map_err(|e| e.to_string())?;
        let reach = self.shared.gpu.reach();
        for part in cut::parts(op, inputs, output, reach)? {
            let operand = |desc: &Desc, memory| Operand { desc: *desc, offset: 0, memory };
            let inputs = part.inputs.iter().enumerate();
            let operands: Vec<Operand> = inputs.map(|(i, p)| operand(&p.desc, Which::Input(i))).collect();
            let call = GpuCall {
                inputs: &operands,
                output: operand(&part.output.desc, Which::Output),
                scratch: operand(&scratch, Which::Scratch),
                limits: self.shared.gpu.limits(),
                window: part.window,
            };
            let dispatches = op.shader(&call)?;
            // Ops ask for what some device needs; here it counts only if it is used.
            if scratch.span() > reach && dispatches.iter().any(|d| d.bindings.contains(&Which::Scratch)) {
                return Err(format!(
                    "scratch memory of at most {reach} bytes, which is what a kernel can bind"
                ));
            }
        }
        Ok(())
    }

    fn weight_type(&self, dtype: DType, ne: [usize; 4]) -> DType {
        match dtype.block() {
            Some(block) if dtype.is_quantized() && ne[2] == 1 && ne[3] == 1 => DType::Planar(block),
            _ => dtype,
        }
    }

    fn lower(&self, graph: &Graph) -> Result<Option<Graph>> {
        let limits = self.shared.gpu.limits();
        super::lower::lower(graph, |w, x| {
            if x.dtype != DType::F32 || !x.has_dense_rows() {
                None
            } else if x.rows() <= mat_vec::MAX_COLUMNS {
                mat_vec::takes(w).filter(|&t| t != DType::F32)
            } else {
                (x.is_contiguous() && many::takes(&limits, w)).then_some(DType::F16)
            }
        })
    }

    fn fuse(&self, graph: &Graph, uses: &Uses, first: Value) -> Option<Vec<Value>> {
        // What has to be cut is computed by itself.
        let reach = self.shared.gpu.reach();
        let large = |value: Value| {
            let inputs = match &graph.entry(value).source {
                Source::Node(node) => node.inputs.as_slice(),
                _ => &[],
            };
            inputs.iter().chain([&value]).any(|&v| graph.desc(v).span() > reach)
        };
        Some(crate::gpu::fuse::find(graph, uses, first, &self.shared.gpu.limits(), large))
    }

    fn allocate(&self, storage: Storage, bytes: usize) -> Result<Arc<dyn Memory>> {
        let what = if storage == Storage::Private { "a private buffer" } else { "a shared buffer" };
        let memory = self.shared.allocator.piece(memory::used_for(storage), what, bytes)?;
        self.shared.zero(&memory)?;
        Ok(Arc::new(memory))
    }

    fn can_import(&self) -> bool {
        self.shared.gpu.host.is_some()
    }

    fn import(&self, mapping: &Arc<dyn HostMapping>, range: Range<usize>) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(self.shared.allocator.import(mapping, range)?))
    }

    fn encode(
        &self,
        plan: &Plan,
        chunk: usize,
        scratch: Option<&Arc<dyn Memory>>,
    ) -> Result<Arc<dyn Commands>> {
        Ok(Arc::new(self.shared.encode_chunk(plan, chunk, scratch)?))
    }

    fn stage(&self, bytes: usize) -> Result<Option<Box<dyn DriverBytes>>> {
        Ok(Some(Box::new(self.shared.stage(bytes)?)))
    }

    fn encode_transfer(&self, transfer: Transfer) -> Result<Arc<dyn Commands>> {
        Ok(Arc::new(self.shared.encode_transfer(transfer)?))
    }

    fn attach(&self, sink: Weak<dyn Sink>) {
        self.shared.queue.attach(sink);
    }

    fn commit(&self, job: Job) {
        self.shared.queue.push(job);
    }

    fn shut_down(&self) {
        self.shared.queue.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}
