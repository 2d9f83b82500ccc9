//! What a chunk does, resolved to handles: recorded once for replay, and once more with a timestamp after every dispatch
//! when a timeline is on.

use super::commands::{Before, BufferPool, CommandBuffer, DescriptorPool, Timestamps, barrier};
use super::gpu::Gpu;
use super::memory::{Allocator, GpuMemory, Use};
use crate::error::Result;
use crate::gpu::MAX_BINDINGS;
use ash::vk;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What a binding sees: a buffer from an offset on, so many bytes.
pub type Bound = (vk::Buffer, u64, u64);

/// A dispatch with handles. The handles are kept by the commands that the recipe belongs to.
pub struct Step {
    pub pipeline: vk::Pipeline,
    pub set: Option<vk::DescriptorSet>,
    pub immediates: Vec<u32>,
    pub groups: [u32; 3],
    /// For timelines.
    pub label: Arc<str>,
}

/// Dispatches in levels; what is in one level may run together.
pub struct Recipe {
    pub levels: Vec<Vec<Step>>,
    /// The host reads what kernels leave: faults, or a download.
    pub to_host: bool,
}

/// A chunk recorded with a timestamp after every dispatch. The device copies them to memory that the host sees: Mesa's
/// software driver may hang when the host asks for them while its queue works.
pub struct Traced {
    pub buffer: CommandBuffer,
    stamps: Timestamps,
    memory: GpuMemory,
}

impl Traced {
    /// The ticks, once the device has passed the commands.
    pub fn ticks(&self) -> Option<Vec<u64>> {
        let mut bytes = vec![0; 8 * self.stamps.count as usize];
        self.memory.get(&mut bytes)?;
        Some(bytes.as_chunks::<8>().0.iter().map(|&b| u64::from_ne_bytes(b)).collect())
    }
}

/// Where timestamps go.
#[derive(Clone, Copy)]
enum Stamps<'a> {
    None,
    Ends(&'a Timestamps),
    Each(&'a Timestamps, &'a GpuMemory),
}

impl Recipe {
    /// The command buffer for replays, with a timestamp at both ends where the device has such.
    pub fn record(&self, pool: &Arc<BufferPool>, ends: Option<&Timestamps>) -> Result<CommandBuffer> {
        let stamps = ends.map_or(Stamps::None, Stamps::Ends);
        pool.record(Before::Kernels, |cb| self.commands(&pool.gpu, cb, stamps))
    }

    /// The names of the dispatches, in the order of their timestamps.
    pub fn labels(&self) -> impl Iterator<Item = &Arc<str>> {
        self.levels.iter().flatten().map(|step| &step.label)
    }

    fn trace(&self, pool: &Arc<BufferPool>, allocator: &Arc<Allocator>) -> Result<Traced> {
        let stamps = Timestamps::new(&pool.gpu, self.labels().count() + 1)?;
        let memory = allocator.piece(Use::Staging, "timestamps", 8 * stamps.count as usize)?;
        let each = Stamps::Each(&stamps, &memory);
        let buffer = pool.record(Before::Kernels, |cb| self.commands(&pool.gpu, cb, each))?;
        Ok(Traced { buffer, stamps, memory })
    }

    fn commands(&self, gpu: &Gpu, cb: vk::CommandBuffer, stamps: Stamps<'_>) -> Result<()> {
        let raw = &gpu.raw;
        let compute = vk::PipelineStageFlags::COMPUTE_SHADER;
        let mut next = 0;
        // SAFETY: the buffer is being recorded by this thread; pipelines, sets, memory and queries are kept with it.
        unsafe {
            if let Stamps::Ends(t) | Stamps::Each(t, _) = stamps {
                raw.cmd_reset_query_pool(cb, t.pool, 0, t.count);
                raw.cmd_write_timestamp(cb, compute, t.pool, next);
                next += 1;
            }
            let (mut bound, mut pipeline) = (vk::DescriptorSet::null(), vk::Pipeline::null());
            for (i, level) in self.levels.iter().enumerate() {
                if i > 0 {
                    barrier(raw, cb, compute, compute);
                }
                for step in level {
                    if step.pipeline != pipeline {
                        raw.cmd_bind_pipeline(cb, vk::PipelineBindPoint::COMPUTE, step.pipeline);
                        pipeline = step.pipeline;
                    }
                    if let Some(set) = step.set.filter(|set| *set != bound) {
                        let point = vk::PipelineBindPoint::COMPUTE;
                        raw.cmd_bind_descriptor_sets(cb, point, gpu.layout, 0, &[set], &[]);
                        bound = set;
                    }
                    if !step.immediates.is_empty() {
                        let bytes: Vec<u8> = step.immediates.iter().flat_map(|w| w.to_ne_bytes()).collect();
                        raw.cmd_push_constants(cb, gpu.layout, vk::ShaderStageFlags::COMPUTE, 0, &bytes);
                    }
                    let [x, y, z] = step.groups;
                    raw.cmd_dispatch(cb, x, y, z);
                    if let Stamps::Each(t, _) = stamps {
                        raw.cmd_write_timestamp(cb, compute, t.pool, next);
                        next += 1;
                    }
                }
            }
            if let Stamps::Ends(t) = stamps {
                raw.cmd_write_timestamp(cb, compute, t.pool, next);
            }
            if let Stamps::Each(t, memory) = stamps {
                let flags = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
                let (buffer, at) = (memory.block.buffer, memory.offset);
                raw.cmd_copy_query_pool_results(cb, t.pool, 0, t.count, buffer, at, 8, flags);
                barrier(raw, cb, vk::PipelineStageFlags::TRANSFER, vk::PipelineStageFlags::HOST);
            }
            if self.to_host {
                barrier(raw, cb, compute, vk::PipelineStageFlags::HOST);
            }
        }
        Ok(())
    }
}

/// Traced recordings of a chunk: one for each replay that is on the device at once.
pub struct Tracing {
    pool: Arc<BufferPool>,
    allocator: Arc<Allocator>,
    made: Mutex<Vec<Arc<Traced>>>,
}

impl Tracing {
    pub fn new(pool: &Arc<BufferPool>, allocator: &Arc<Allocator>) -> Tracing {
        Tracing { pool: pool.clone(), allocator: allocator.clone(), made: Mutex::default() }
    }

    /// One that is not on the device.
    pub fn take(&self, recipe: &Recipe) -> Result<Arc<Traced>> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(free) = made.iter().find(|t| Arc::strong_count(t) == 1) {
            return Ok(free.clone());
        }
        let new = Arc::new(recipe.trace(&self.pool, &self.allocator)?);
        made.push(new.clone());
        Ok(new)
    }
}

/// Descriptor sets of a chunk.
pub struct Sets {
    pub pool: DescriptorPool,
    pub by_bindings: HashMap<Vec<Bound>, vk::DescriptorSet>,
}

impl Sets {
    pub fn new<'a>(gpu: &Arc<Gpu>, bindings: impl Iterator<Item = &'a Vec<Bound>>) -> Result<Option<Sets>> {
        let mut wanted: Vec<&Vec<Bound>> = bindings.collect();
        wanted.sort();
        wanted.dedup();
        if wanted.is_empty() {
            return Ok(None);
        }
        let failed = |e| gpu.error("making descriptors", e);
        let sizes = [vk::DescriptorPoolSize::default()
            .ty(vk::DescriptorType::STORAGE_BUFFER)
            .descriptor_count((wanted.len() * MAX_BINDINGS) as u32)];
        let info = vk::DescriptorPoolCreateInfo::default().max_sets(wanted.len() as u32).pool_sizes(&sizes);
        // SAFETY: the structure lives through the call.
        let raw = unsafe { gpu.raw.create_descriptor_pool(&info, None) }.map_err(failed)?;
        let pool = DescriptorPool { gpu: gpu.clone(), raw };
        let layouts = vec![gpu.set_layout; wanted.len()];
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(raw).set_layouts(&layouts);
        // SAFETY: the pool has room for these sets.
        let sets = unsafe { gpu.raw.allocate_descriptor_sets(&info) }.map_err(failed)?;
        for (bindings, set) in wanted.iter().zip(&sets) {
            let info = |&(buffer, offset, range): &Bound| {
                vk::DescriptorBufferInfo::default().buffer(buffer).offset(offset).range(range)
            };
            let infos: Vec<vk::DescriptorBufferInfo> = bindings.iter().map(info).collect();
            let write = [vk::WriteDescriptorSet::default()
                .dst_set(*set)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .buffer_info(&infos)];
            // SAFETY: the set is new; consecutive bindings of one kind are written as one run.
            unsafe { gpu.raw.update_descriptor_sets(&write, &[]) };
        }
        let by_bindings = wanted.into_iter().cloned().zip(sets).collect();
        Ok(Some(Sets { pool, by_bindings }))
    }
}
