//! Command buffers and what is kept for them; what has to be done when the device has passed them.
//!
//! A buffer has a pool of its own, so that chunks are recorded on several threads at once; pools are used again. Every
//! buffer begins with a barrier against everything before it in the queue, so order in the queue is order in memory.

use super::forecast::Forecast;
use super::gpu::Gpu;
use super::memory::GpuMemory;
use super::pipeline::Pipelines;
use super::record::{Bound, Recipe, Tracing};
use crate::device::Counts;
use crate::device::driver::{Commands, HostMapping, Landing, Memory, StagedBytes};
use crate::device::mapped::check_mapping;
use crate::error::{Error, Result};
use crate::gpu::FaultText;
use ash::vk;
use std::any::Any;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// Recycles pools with their command buffer.
pub struct BufferPool {
    pub gpu: Arc<Gpu>,
    free: Mutex<Vec<(vk::CommandPool, vk::CommandBuffer)>>,
}

/// Pools kept for the next recordings.
const KEPT: usize = 64;

impl Drop for BufferPool {
    fn drop(&mut self) {
        if self.gpu.still_works() {
            return;
        }
        for (pool, _) in self.free.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // SAFETY: free pools have no work on the device, or not any more; destroying one frees its buffer.
            unsafe { self.gpu.raw.destroy_command_pool(pool, None) };
        }
    }
}

/// A recorded command buffer.
pub struct CommandBuffer {
    pool: vk::CommandPool,
    pub raw: vk::CommandBuffer,
    owner: Arc<BufferPool>,
}

impl Drop for CommandBuffer {
    fn drop(&mut self) {
        // Recording it anew would change what the device reads.
        if self.owner.gpu.still_works() {
            return;
        }
        let mut free = self.owner.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < KEPT {
            free.push((self.pool, self.raw));
        } else {
            // SAFETY: whoever committed the buffer kept it until the device had passed it.
            unsafe { self.owner.gpu.raw.destroy_command_pool(self.pool, None) };
        }
    }
}

/// What precedes the commands of a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// Kernels follow.
    Kernels,
    /// Copies follow.
    Copies,
}

impl BufferPool {
    pub fn new(gpu: Arc<Gpu>) -> Arc<BufferPool> {
        Arc::new(BufferPool { gpu, free: Mutex::default() })
    }

    /// A buffer with the commands that `record` adds after the barrier. It may be on the device several times at once.
    pub fn record(
        self: &Arc<Self>,
        before: Before,
        record: impl FnOnce(vk::CommandBuffer) -> Result<()>,
    ) -> Result<CommandBuffer> {
        let raw = &self.gpu.raw;
        let failed = |e| self.gpu.error("recording commands", e);
        let reused = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let (pool, buffer) = match reused {
            Some(reused) => reused,
            None => {
                let info =
                    vk::CommandPoolCreateInfo::default().queue_family_index(self.gpu.adapter.queue_family);
                // SAFETY: the structures live through the calls.
                unsafe {
                    let pool = raw.create_command_pool(&info, None).map_err(failed)?;
                    let info = vk::CommandBufferAllocateInfo::default()
                        .command_pool(pool)
                        .level(vk::CommandBufferLevel::PRIMARY)
                        .command_buffer_count(1);
                    match raw.allocate_command_buffers(&info) {
                        Ok(buffers) => (pool, buffers[0]),
                        Err(e) => {
                            raw.destroy_command_pool(pool, None);
                            return Err(failed(e));
                        }
                    }
                }
            }
        };
        let made = CommandBuffer { pool, raw: buffer, owner: self.clone() };
        let begin =
            vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::SIMULTANEOUS_USE);
        // SAFETY: this thread alone has the pool, whose buffer is not on the device.
        unsafe {
            raw.reset_command_pool(pool, vk::CommandPoolResetFlags::empty()).map_err(failed)?;
            raw.begin_command_buffer(buffer, &begin).map_err(failed)?;
            let to = match before {
                Before::Kernels => vk::PipelineStageFlags::COMPUTE_SHADER,
                Before::Copies => vk::PipelineStageFlags::TRANSFER,
            };
            let from = vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER;
            barrier(raw, buffer, from, to);
            record(buffer)?;
            raw.end_command_buffer(buffer).map_err(failed)?;
        }
        Ok(made)
    }
}

/// What is written in stages `from` is seen in stages `to`, and what `to` writes comes after what `from` reads.
///
/// # Safety
/// The buffer is being recorded by this thread.
pub unsafe fn barrier(
    raw: &ash::Device,
    buffer: vk::CommandBuffer,
    from: vk::PipelineStageFlags,
    to: vk::PipelineStageFlags,
) {
    let written = |stages: vk::PipelineStageFlags| {
        let mut access = vk::AccessFlags::empty();
        if stages.contains(vk::PipelineStageFlags::COMPUTE_SHADER) {
            access |= vk::AccessFlags::SHADER_WRITE;
        }
        if stages.contains(vk::PipelineStageFlags::TRANSFER) {
            access |= vk::AccessFlags::TRANSFER_WRITE;
        }
        access
    };
    let mut seen = written(to);
    if to.contains(vk::PipelineStageFlags::COMPUTE_SHADER) {
        seen |= vk::AccessFlags::SHADER_READ;
    }
    if to.contains(vk::PipelineStageFlags::TRANSFER) {
        seen |= vk::AccessFlags::TRANSFER_READ;
    }
    if to.contains(vk::PipelineStageFlags::HOST) {
        seen |= vk::AccessFlags::HOST_READ;
    }
    let barriers = [vk::MemoryBarrier::default().src_access_mask(written(from)).dst_access_mask(seen)];
    let flags = vk::DependencyFlags::empty();
    // SAFETY: passed on to the caller.
    unsafe { raw.cmd_pipeline_barrier(buffer, from, to, flags, &barriers, &[], &[]) };
}

/// Words in which kernels report faults, one slot per chunk that can fail.
pub struct Faults {
    memory: GpuMemory,
    free: Mutex<Vec<u32>>,
}

/// Chunks with kernels that can fail, alive at once.
const SLOTS: usize = 4096;
/// Bytes of a slot: which op, and what it reports.
const SLOT: usize = 8;

impl Faults {
    /// Bytes that [`Faults::new`] needs, in memory that the host sees.
    pub const BYTES: usize = SLOTS * SLOT;

    pub fn new(memory: GpuMemory) -> Arc<Faults> {
        let _ = memory.put(0, &[0; Faults::BYTES]);
        Arc::new(Faults { memory, free: Mutex::new((0..SLOTS as u32).rev().collect()) })
    }

    /// The block that the slots lie in.
    pub fn bound(&self) -> Bound {
        self.memory.block.whole()
    }

    /// A slot for a chunk.
    pub fn take(self: &Arc<Self>) -> Result<FaultSlot> {
        let slot = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let number = slot.ok_or_else(|| Error::Kernel(format!("more than {SLOTS} chunks that can fail")))?;
        Ok(FaultSlot { number, owner: self.clone() })
    }
}

/// A chunk's place for faults.
pub struct FaultSlot {
    number: u32,
    owner: Arc<Faults>,
}

impl Drop for FaultSlot {
    fn drop(&mut self) {
        self.owner.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
    }
}

impl FaultSlot {
    /// The memory, and the index of the slot's first word from the memory's block on.
    pub fn place(&self) -> (&GpuMemory, u32) {
        let memory = &self.owner.memory;
        (memory, (memory.offset / 4) as u32 + self.number * (SLOT / 4) as u32)
    }

    /// What was reported (an op by its number from 1 and its value), if anything was; it is forgotten.
    fn read(&self) -> Option<(u32, u32)> {
        let at = self.number as usize * SLOT;
        let words = self.owner.memory.view()?.wrapping_add(at).cast::<u32>();
        // SAFETY: the slot lies inside the memory and is aligned; the device has passed the chunk. A replay of it that
        // is under way may write meanwhile, which volatile accesses allow.
        unsafe {
            let found = (words.read_volatile(), words.add(1).read_volatile());
            if found.0 == 0 {
                return None;
            }
            words.write_volatile(0);
            Some(found)
        }
    }
}

/// Timestamps of a command buffer.
pub struct Timestamps {
    gpu: Arc<Gpu>,
    pub pool: vk::QueryPool,
    pub count: u32,
    /// Queries that the pool has.
    size: u32,
}

impl Drop for Timestamps {
    fn drop(&mut self) {
        // The commands that use it are gone.
        self.gpu.queries.lock().unwrap_or_else(PoisonError::into_inner).push((self.pool, self.size));
    }
}

impl Timestamps {
    pub fn new(gpu: &Arc<Gpu>, count: usize) -> Result<Timestamps> {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let size = count.checked_next_power_of_two().unwrap_or(count);
        let free = {
            let mut queries = gpu.queries.lock().unwrap_or_else(PoisonError::into_inner);
            let found = queries.iter().position(|&(_, s)| s == size);
            found.map(|at| queries.swap_remove(at).0)
        };
        let pool = match free {
            Some(pool) => pool,
            None => {
                let info =
                    vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(size);
                // SAFETY: the structure lives through the call.
                let made = unsafe { gpu.raw.create_query_pool(&info, None) };
                made.map_err(|e| gpu.error("making a query pool", e))?
            }
        };
        Ok(Timestamps { gpu: gpu.clone(), pool, count, size })
    }

    /// In ticks; `None` where a replay that is under way has them.
    pub fn ticks(&self) -> Option<Vec<u64>> {
        let mut ticks = vec![0u64; self.count as usize];
        // SAFETY: the pool has as many queries.
        let read = unsafe {
            self.gpu.raw.get_query_pool_results(self.pool, 0, &mut ticks, vk::QueryResultFlags::TYPE_64)
        };
        read.ok().map(|()| ticks)
    }
}

/// What follows when the device has passed the commands.
pub enum After {
    /// Nothing.
    Nothing,
    /// The bytes go to the host.
    Download { staging: GpuMemory, landing: Landing, bytes: usize },
    /// Faults of kernels, in the order of their numbers: op and what its value means.
    Chunk { faults: Option<FaultSlot>, texts: Vec<(String, FaultText)>, timestamps: Option<Timestamps> },
}

/// What the device keeps for a command buffer, in the order in which it is dropped.
pub struct GpuCommands {
    pub buffer: CommandBuffer,
    pub after: After,
    /// How long it will take, for waiting.
    pub forecast: Forecast,
    /// How to record a chunk for a timeline, and what was recorded so far.
    pub recipe: Option<(Recipe, Tracing)>,
    pub kept: Kept,
}

/// What commands use while they are on the device, in the order in which it is let go.
#[allow(dead_code, reason = "kept, not read")]
pub struct Kept {
    pub sets: Option<DescriptorPool>,
    pub memory: Vec<Arc<dyn Memory>>,
    pub own: Vec<GpuMemory>,
    pub staged: Option<StagedBytes>,
    pub pipelines: Arc<Pipelines>,
    pub counted: Counted,
}

impl Commands for GpuCommands {}

impl Kept {
    /// That files which are used in place are still as long as is needed: behind a file's end the device faults.
    pub fn check_mappings(&self) -> Result<()> {
        let mut needed: Vec<(&Arc<dyn HostMapping>, usize)> = Vec::new();
        for memory in &self.memory {
            let any: &dyn Any = memory.as_ref();
            let Some((mapping, end)) = any.downcast_ref::<GpuMemory>().and_then(GpuMemory::mapping) else {
                continue;
            };
            match needed.iter_mut().find(|(known, _)| Arc::ptr_eq(known, mapping)) {
                Some((_, most)) => *most = (*most).max(*end),
                None => needed.push((mapping, *end)),
            }
        }
        needed.into_iter().try_for_each(|(mapping, end)| check_mapping(mapping, end))
    }
}

/// Counts commands that are alive (contract E6).
pub struct Counted(Arc<Counts>);

impl Counted {
    pub fn new(counts: &Arc<Counts>) -> Counted {
        counts.commands.fetch_add(1, Ordering::AcqRel);
        Counted(counts.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.commands.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Descriptor sets of a chunk.
pub struct DescriptorPool {
    pub gpu: Arc<Gpu>,
    pub raw: vk::DescriptorPool,
}

impl Drop for DescriptorPool {
    fn drop(&mut self) {
        if self.gpu.still_works() {
            return;
        }
        // SAFETY: the commands that use the sets are gone, and the device has passed them.
        unsafe { self.gpu.raw.destroy_descriptor_pool(self.raw, None) };
    }
}

impl GpuCommands {
    /// What the host does once the device has passed the commands. Gives the ticks at which it began and ended where
    /// they are known.
    pub fn finish(&self) -> Result<Option<Vec<u64>>, (Option<String>, Error)> {
        match &self.after {
            After::Nothing => Ok(None),
            After::Download { staging, landing, bytes } => {
                let mut landing = landing.lock().unwrap_or_else(PoisonError::into_inner);
                let wanted = bytes.saturating_sub(landing.len());
                landing
                    .try_reserve_exact(wanted)
                    .map_err(|_| (None, Error::host_memory("a download", *bytes)))?;
                landing.resize(*bytes, 0);
                let copied = staging.get(&mut landing);
                copied
                    .ok_or_else(|| (None, Error::Kernel("staging memory that the host cannot see".into())))?;
                Ok(None)
            }
            After::Chunk { faults, texts, timestamps } => {
                if let Some((op, value)) = faults.as_ref().and_then(FaultSlot::read) {
                    let known = texts.get((op as usize).wrapping_sub(1));
                    return Err(match known {
                        Some((name, text)) => (Some(name.clone()), Error::Kernel(text(value))),
                        None => (None, Error::Kernel(format!("a kernel reported {value}"))),
                    });
                }
                Ok(timestamps.as_ref().and_then(Timestamps::ticks))
            }
        }
    }
}
