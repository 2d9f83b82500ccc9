//! Encoding: a plan's chunk becomes a command buffer.
//!
//! Within a phase (what lies between two barriers of the plan) steps are independent, so the first kernels of all of
//! them run together, then the second kernels, with a barrier between. Kernels see whole blocks of memory; a set of
//! descriptors serves all dispatches with the same blocks.

use super::Shared;
use super::commands::{After, Before, Counted, DescriptorPool, GpuCommands, Kept, Timestamps, barrier};
use super::memory::{GpuMemory, Use};
use crate::device::driver::Memory as DriverMemory;
use crate::error::{Error, Result};
use crate::gpu::fuse::{self, Member};
use crate::gpu::{Dispatch, FaultText, GpuCall, MAX_BINDINGS, Memory, Operand};
use crate::plan::{Place, Plan, PlannedOp};
use crate::tensor::{DType, Desc};
use ash::vk;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Buffers at the bindings of a dispatch.
type Buffers = Vec<vk::Buffer>;

/// A dispatch with its memory found.
struct Ready {
    dispatch: Dispatch,
    buffers: Buffers,
}

/// Everything that a chunk collects.
struct Chunk<'a> {
    shared: &'a Shared,
    scratch: Option<&'a Arc<dyn DriverMemory>>,
    keep: Vec<Arc<dyn DriverMemory>>,
    own: Vec<GpuMemory>,
    faults: Option<super::commands::FaultSlot>,
    texts: Vec<(String, FaultText)>,
}

impl Shared {
    /// Encodes one chunk.
    pub fn encode_chunk(
        self: &Arc<Self>,
        plan: &Plan,
        chunk: usize,
        scratch: Option<&Arc<dyn DriverMemory>>,
    ) -> Result<GpuCommands> {
        let mut collect = Chunk {
            shared: self,
            scratch,
            keep: scratch.into_iter().cloned().collect(),
            own: Vec::new(),
            faults: None,
            texts: Vec::new(),
        };
        // phases of levels of dispatches
        let mut levels: Vec<Vec<Ready>> = vec![Vec::new()];
        let mut phase = 0;
        for step in &plan.steps[plan.chunks[chunk].steps.clone()] {
            if step.barrier {
                levels.push(Vec::new());
                phase = levels.len() - 1;
            }
            let mut level = phase;
            for ready in collect.step(&step.ops)? {
                if levels.len() <= level {
                    levels.push(Vec::new());
                }
                levels[level].push(ready);
                level += 1;
            }
        }
        levels.retain(|level| !level.is_empty());
        let Chunk { keep, own, faults, texts, .. } = collect;
        self.pipelines.prepare(levels.iter().flatten().map(|r| &r.dispatch.source));
        let sets = Sets::new(self, levels.iter().flatten())?;
        let timestamps = Timestamps::new(&self.gpu)?;
        let buffer = self.buffers.record(Before::Kernels, |cb| {
            self.record(cb, &levels, sets.as_ref(), &timestamps, faults.is_some())
        })?;
        Ok(GpuCommands {
            buffer,
            after: After::Chunk { faults, texts, timestamps: Some(timestamps) },
            last: AtomicU64::new(0),
            kept: Kept {
                sets: sets.map(|s| s.pool),
                memory: keep,
                own,
                staged: None,
                pipelines: self.pipelines.clone(),
                counted: Counted::new(&self.counts),
            },
        })
    }

    fn record(
        &self,
        cb: vk::CommandBuffer,
        levels: &[Vec<Ready>],
        sets: Option<&Sets>,
        timestamps: &Timestamps,
        faults: bool,
    ) -> Result<()> {
        let raw = &self.gpu.raw;
        let compute = vk::PipelineStageFlags::COMPUTE_SHADER;
        // SAFETY: the buffer is being recorded by this thread; pipelines, sets, memory and queries are kept with it.
        unsafe {
            raw.cmd_reset_query_pool(cb, timestamps.pool, 0, 2);
            raw.cmd_write_timestamp(cb, compute, timestamps.pool, 0);
            let (mut bound, mut pipeline) = (vk::DescriptorSet::null(), vk::Pipeline::null());
            for (i, level) in levels.iter().enumerate() {
                if i > 0 {
                    barrier(raw, cb, compute, compute);
                }
                for Ready { dispatch, buffers } in level {
                    let wanted = self.pipelines.get(&dispatch.source)?;
                    if wanted != pipeline {
                        raw.cmd_bind_pipeline(cb, vk::PipelineBindPoint::COMPUTE, wanted);
                        pipeline = wanted;
                    }
                    if let Some(set) = sets.and_then(|s| s.by_buffers.get(buffers))
                        && *set != bound
                    {
                        let point = vk::PipelineBindPoint::COMPUTE;
                        raw.cmd_bind_descriptor_sets(cb, point, self.gpu.layout, 0, &[*set], &[]);
                        bound = *set;
                    }
                    if !dispatch.immediates.is_empty() {
                        let bytes: Vec<u8> =
                            dispatch.immediates.iter().flat_map(|w| w.to_ne_bytes()).collect();
                        let stage = vk::ShaderStageFlags::COMPUTE;
                        raw.cmd_push_constants(cb, self.gpu.layout, stage, 0, &bytes);
                    }
                    let [x, y, z] = dispatch.groups;
                    raw.cmd_dispatch(cb, x, y, z);
                }
            }
            raw.cmd_write_timestamp(cb, compute, timestamps.pool, 1);
            if faults {
                barrier(raw, cb, compute, vk::PipelineStageFlags::HOST);
            }
        }
        Ok(())
    }
}

impl Chunk<'_> {
    /// The dispatches of a step that have something to do, with their memory.
    fn step(&mut self, ops: &[PlannedOp]) -> Result<Vec<Ready>> {
        // The same bytes seen in the same way are one operand, so that fused kernels know what passes between ops.
        let mut places: Vec<&Place> = Vec::new();
        let mut found = Vec::new();
        let mut members = Vec::new();
        for op in ops {
            let mut operand = |place| {
                let number = places.iter().position(|p| same(p, place)).unwrap_or(places.len());
                let (operand, buffer) = self.operand(place, Memory::Input(number))?;
                if number == places.len() {
                    places.push(place);
                    found.push((Memory::Input(number), buffer));
                }
                Ok::<_, Error>(operand)
            };
            let inputs = op.inputs.iter().map(&mut operand).collect::<Result<Vec<_>>>()?;
            let output = operand(&op.output)?;
            let desc = Desc::new(DType::I32, &[op.temporary.len() / 4])?;
            let temporary = Place { buffer: None, offset: op.temporary.start, desc };
            let (scratch, buffer) = self.operand(&temporary, Memory::Scratch)?;
            if buffer.is_some() {
                found.push((Memory::Scratch, buffer));
            }
            members.push(Member { op: op.op.as_ref(), inputs, output, scratch, kept: op.kept });
        }
        let limits = self.shared.gpu.limits();
        let made = match members.as_slice() {
            [Member { op, inputs, output, scratch, .. }] => {
                op.shader(&GpuCall { inputs, output: *output, scratch: *scratch, limits })
            }
            members => fuse::shader(members, &limits),
        };
        let names: Vec<String> = ops
            .iter()
            .map(|op| match op.name.as_str() {
                "" => op.op.name().to_string(),
                name => format!("{} {name}", op.op.name()),
            })
            .collect();
        let dispatches = made.map_err(|reason| Error::Unsupported {
            device: self.shared.gpu.adapter.name.clone(),
            op: ops.iter().map(|op| format!("{:?}", op.op)).collect::<Vec<_>>().join(", "),
            reason,
        })?;
        let label = names.join(" + ");
        let mut list = Vec::new();
        for dispatch in dispatches.into_iter().filter(|d| !d.groups.contains(&0)) {
            list.push(self.ready(dispatch, &found, &label)?);
        }
        Ok(list)
    }

    /// Where a tensor lies. What has no bytes lies nowhere: kernels do not touch it.
    fn operand(&mut self, place: &Place, memory: Memory) -> Result<(Operand, Option<vk::Buffer>)> {
        let nowhere = Operand { desc: place.desc, offset: 0, memory };
        if place.desc.span() == 0 {
            return Ok((nowhere, None));
        }
        let found = match &place.buffer {
            Some(buffer) => {
                if !self.keep.iter().any(|k| Arc::ptr_eq(k, buffer.memory())) {
                    self.keep.push(buffer.memory().clone());
                }
                buffer.memory()
            }
            None => self.scratch.ok_or_else(|| Error::Kernel("a plan without scratch memory".into()))?,
        };
        let found = GpuMemory::of(found, &self.shared.gpu)?;
        let offset = found.at(place.offset..place.offset + place.desc.span())?;
        Ok((Operand { offset, ..nowhere }, Some(found.block.buffer)))
    }

    fn ready(
        &mut self,
        mut dispatch: Dispatch,
        found: &[(Memory, Option<vk::Buffer>)],
        label: &str,
    ) -> Result<Ready> {
        let mut buffers = Vec::with_capacity(dispatch.bindings.len());
        for memory in &dispatch.bindings {
            let buffer = match memory {
                Memory::Table => {
                    let bytes: Vec<u8> = dispatch.table.iter().flat_map(|w| w.to_ne_bytes()).collect();
                    let piece = self.shared.allocator.piece(Use::Shared, "a kernel's table", bytes.len())?;
                    let _ = piece.put(0, &bytes);
                    // The table's accessor begins at the block, so its place is the last immediate of its kind.
                    if let Some(at) = dispatch.table_at {
                        dispatch.immediates[at] = (piece.offset / 4) as u32;
                    }
                    let buffer = piece.block.buffer;
                    self.own.push(piece);
                    Some(buffer)
                }
                Memory::Faults => {
                    if self.faults.is_none() {
                        self.faults = Some(self.shared.faults.take()?);
                    }
                    if let Some(text) = &dispatch.fault {
                        self.texts.push((label.to_string(), text.clone()));
                    }
                    let id = self.texts.len() as u32;
                    let slot = self.faults.as_ref().map(|s| s.place());
                    slot.map(|(memory, at)| {
                        if let [.., place, number] = dispatch.immediates.as_mut_slice() {
                            (*place, *number) = (at, id);
                        }
                        memory.block.buffer
                    })
                }
                other => found.iter().find(|(m, _)| m == other).and_then(|(_, b)| *b),
            };
            // An operand without bytes: any buffer will do, as nothing of it is touched.
            buffers.push(buffer.unwrap_or(self.shared.faults.buffer()));
        }
        Ok(Ready { dispatch, buffers })
    }
}

fn same(a: &Place, b: &Place) -> bool {
    let memory = |p: &Place| p.buffer.as_ref().map_or(0, crate::buffer::Buffer::id);
    memory(a) == memory(b) && a.offset == b.offset && a.desc == b.desc
}

/// Descriptor sets of a chunk.
struct Sets {
    pool: DescriptorPool,
    by_buffers: HashMap<Buffers, vk::DescriptorSet>,
}

impl Sets {
    fn new<'a>(shared: &Shared, dispatches: impl Iterator<Item = &'a Ready>) -> Result<Option<Sets>> {
        let mut wanted: Vec<&Buffers> = dispatches.map(|r| &r.buffers).collect();
        wanted.sort();
        wanted.dedup();
        if wanted.is_empty() {
            return Ok(None);
        }
        let gpu = &shared.gpu;
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
        for (buffers, set) in wanted.iter().zip(&sets) {
            let infos: Vec<vk::DescriptorBufferInfo> = buffers
                .iter()
                .map(|&b| vk::DescriptorBufferInfo::default().buffer(b).range(vk::WHOLE_SIZE))
                .collect();
            let write = [vk::WriteDescriptorSet::default()
                .dst_set(*set)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .buffer_info(&infos)];
            // SAFETY: the set is new; consecutive bindings of one kind are written as one run.
            unsafe { gpu.raw.update_descriptor_sets(&write, &[]) };
        }
        let by_buffers = wanted.into_iter().cloned().zip(sets).collect();
        Ok(Some(Sets { pool, by_buffers }))
    }
}
