//! Encoding: a plan's chunk becomes a command buffer.
//!
//! Within a phase (what lies between two barriers of the plan) steps are independent, so the first kernels of all of
//! them run together, then the second kernels, with a barrier between. Kernels see whole blocks of memory; a set of
//! descriptors serves all dispatches with the same blocks.

use super::Shared;
use super::commands::{After, Counted, GpuCommands, Kept, Timestamps};
use super::cut::{self, Piece};
use super::forecast::Forecast;
use super::memory::{GpuMemory, Use};
use super::record::{Bound, Recipe, Sets, Step, Tracing};
use crate::device::driver::Memory as DriverMemory;
use crate::error::{Error, Result};
use crate::gpu::fuse::{self, Member};
use crate::gpu::{Dispatch, FaultText, GpuCall, Memory, Operand};
use crate::plan::{Place, Plan, PlannedOp};
use crate::tensor::{DType, Desc};
use std::sync::Arc;

/// Words for counters that a chunk takes at once.
const COUNTERS: usize = 4096;

/// A dispatch with its memory found.
struct Ready {
    dispatch: Dispatch,
    bindings: Vec<Bound>,
    label: Arc<str>,
}

/// Everything that a chunk collects.
struct Chunk<'a> {
    shared: &'a Arc<Shared>,
    scratch: Option<&'a Arc<dyn DriverMemory>>,
    keep: Vec<Arc<dyn DriverMemory>>,
    own: Vec<GpuMemory>,
    /// Zeros for counters, and how many of their words are taken.
    counters: Option<(Bound, u64, usize)>,
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
            counters: None,
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
            for (i, ready) in collect.step(&step.ops)?.into_iter().enumerate() {
                level += usize::from(i > 0 && !ready.dispatch.beside);
                if levels.len() <= level {
                    levels.push(Vec::new());
                }
                levels[level].push(ready);
            }
        }
        levels.retain(|level| !level.is_empty());
        let Chunk { keep, own, faults, texts, .. } = collect;
        self.pipelines.prepare(levels.iter().flatten().map(|r| &r.dispatch.source));
        let sets = Sets::new(&self.gpu, levels.iter().flatten().map(|r| &r.bindings))?;
        let step = |ready: Ready| {
            let Ready { dispatch, bindings, label } = ready;
            Ok(Step {
                pipeline: self.pipelines.get(&dispatch.source)?,
                set: sets.as_ref().and_then(|s| s.by_bindings.get(&bindings)).copied(),
                immediates: dispatch.immediates,
                groups: dispatch.groups,
                label,
            })
        };
        let level = |level: Vec<Ready>| level.into_iter().map(step).collect::<Result<Vec<Step>>>();
        let levels = levels.into_iter().map(level).collect::<Result<Vec<_>>>()?;
        let recipe = Recipe { levels, to_host: faults.is_some() };
        // Of work that the host itself does, the host's times are as good, and asking for timestamps may hang (see
        // `record`).
        let software = self.gpu.adapter.kind == crate::device::DeviceKind::Software;
        let timestamps = match self.gpu.used.timestamps && !software {
            true => Some(Timestamps::new(&self.gpu, 2)?),
            false => None,
        };
        let buffer = recipe.record(&self.buffers, timestamps.as_ref())?;
        Ok(GpuCommands {
            buffer,
            after: After::Chunk { faults, texts, timestamps },
            forecast: Forecast::default(),
            recipe: Some((recipe, Tracing::new(&self.buffers, &self.allocator))),
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
}

impl Chunk<'_> {
    /// The dispatches of a step that have something to do, with their memory.
    fn step(&mut self, ops: &[PlannedOp]) -> Result<Vec<Ready>> {
        let names = ops.iter().map(|op| match op.name.as_str() {
            "" => op.op.name().to_string(),
            name => format!("{} {name}", op.op.name()),
        });
        let label = names.collect::<Vec<_>>().join(" + ");
        match ops {
            [op] => self.op(op, &label),
            ops => self.fused(ops, &label),
        }
    }

    /// Ops in one kernel.
    fn fused(&mut self, ops: &[PlannedOp], label: &str) -> Result<Vec<Ready>> {
        // The same bytes seen in the same way are one operand, so that fused kernels know what passes between ops.
        let mut places: Vec<&Place> = Vec::new();
        let mut found = Vec::new();
        let mut members = Vec::new();
        for op in ops {
            let mut operand = |place| {
                let number = places.iter().position(|p| same(p, place)).unwrap_or(places.len());
                let (operand, bound) = self.operand(place, &whole(place), Memory::Input(number))?;
                if number == places.len() {
                    places.push(place);
                    found.push((Memory::Input(number), bound));
                }
                Ok::<_, Error>(operand)
            };
            let inputs = op.inputs.iter().map(&mut operand).collect::<Result<Vec<_>>>()?;
            let output = operand(&op.output)?;
            let temporary = temporary(op)?;
            let (scratch, bound) = self.operand(&temporary, &whole(&temporary), Memory::Scratch)?;
            if bound.is_some() {
                found.push((Memory::Scratch, bound));
            }
            members.push(Member { op: op.op.as_ref(), inputs, output, scratch, kept: op.kept });
        }
        let made = fuse::shader(&members, &self.shared.gpu.limits());
        self.all_ready(made.map_err(|reason| self.unsupported(ops, reason))?, &found, label)
    }

    /// An op by itself, in parts where its operands are too large to be bound.
    fn op(&mut self, op: &PlannedOp, label: &str) -> Result<Vec<Ready>> {
        let refused = |this: &Self, reason| this.unsupported(std::slice::from_ref(op), reason);
        let descs: Vec<Desc> = op.inputs.iter().map(|place| place.desc).collect();
        let parts = cut::parts(op.op.as_ref(), &descs, &op.output.desc, self.shared.gpu.reach())
            .map_err(|reason| refused(self, reason))?;
        let temporary = temporary(op)?;
        let mut list = Vec::new();
        for part in parts {
            let mut found = Vec::new();
            let mut inputs = Vec::new();
            for (i, (place, piece)) in op.inputs.iter().zip(&part.inputs).enumerate() {
                let (operand, bound) = self.operand(place, piece, Memory::Input(i))?;
                inputs.push(operand);
                found.push((Memory::Input(i), bound));
            }
            let (output, bound) = self.operand(&op.output, &part.output, Memory::Output)?;
            found.push((Memory::Output, bound));
            let (scratch, bound) = self.operand(&temporary, &whole(&temporary), Memory::Scratch)?;
            found.push((Memory::Scratch, bound));
            let limits = self.shared.gpu.limits();
            let call = GpuCall { inputs: &inputs, output, scratch, limits, window: part.window };
            let made = op.op.shader(&call).map_err(|reason| refused(self, reason))?;
            list.extend(self.all_ready(made, &found, label)?);
        }
        Ok(list)
    }

    fn unsupported(&self, ops: &[PlannedOp], reason: String) -> Error {
        let op = ops.iter().map(|op| format!("{:?}", op.op)).collect::<Vec<_>>().join(", ");
        Error::Unsupported { device: self.shared.gpu.adapter.name.clone(), op, reason }
    }

    fn all_ready(
        &mut self,
        dispatches: Vec<Dispatch>,
        found: &[(Memory, Option<Bound>)],
        label: &str,
    ) -> Result<Vec<Ready>> {
        let some = dispatches.into_iter().filter(|d| !d.groups.contains(&0));
        some.map(|dispatch| self.ready(dispatch, found, label)).collect()
    }

    /// Where a part of a tensor lies. What has no bytes lies nowhere: kernels do not touch it.
    fn operand(&mut self, place: &Place, piece: &Piece, memory: Memory) -> Result<(Operand, Option<Bound>)> {
        let nowhere = Operand { desc: piece.desc, offset: 0, memory };
        if piece.desc.span() == 0 {
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
        let start = place.offset + piece.offset;
        let at = found.at(start..start + piece.desc.span())?;
        let (bound, offset) = found.block.window(at);
        Ok((Operand { offset, ..nowhere }, Some(bound)))
    }

    /// So many words for counters, and the index of the first. They are zeroed once: every dispatch leaves zeros, and a
    /// submitted chunk runs to its end, as nothing but the loss of the device stops one.
    fn counters(&mut self, words: usize) -> Result<(Bound, u32)> {
        let (bound, start, taken) = match self.counters {
            Some(found) if found.2 + words <= COUNTERS => found,
            _ => {
                let bytes = 4 * words.max(COUNTERS);
                let piece = self.shared.allocator.piece(Use::Private, "counters of kernels", bytes)?;
                self.shared.zero(&piece)?;
                let (bound, offset) = piece.block.window(piece.offset);
                self.own.push(piece);
                (bound, offset / 4, 0)
            }
        };
        self.counters = Some((bound, start, taken + words));
        Ok((bound, (start as usize + taken) as u32))
    }

    fn ready(
        &mut self,
        mut dispatch: Dispatch,
        found: &[(Memory, Option<Bound>)],
        label: &str,
    ) -> Result<Ready> {
        let mut bindings = Vec::with_capacity(dispatch.bindings.len());
        for memory in &dispatch.bindings {
            let bound = match memory {
                Memory::Table => {
                    let bytes: Vec<u8> = dispatch.table.iter().flat_map(|w| w.to_ne_bytes()).collect();
                    let piece = self.shared.allocator.piece(Use::Shared, "a kernel's table", bytes.len())?;
                    let _ = piece.put(0, &bytes);
                    let (bound, offset) = piece.block.window(piece.offset);
                    if let Some(at) = dispatch.table_at {
                        dispatch.immediates[at] = (offset / 4) as u32;
                    }
                    self.own.push(piece);
                    Some(bound)
                }
                Memory::Counters => {
                    let (bound, first) = self.counters(dispatch.counters)?;
                    if let Some(at) = dispatch.counters_at {
                        dispatch.immediates[at] = first;
                    }
                    Some(bound)
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
                        memory.block.whole()
                    })
                }
                other => found.iter().find(|(m, _)| m == other).and_then(|(_, b)| *b),
            };
            // An operand without bytes: any buffer will do, as nothing of it is touched.
            bindings.push(bound.unwrap_or(self.shared.faults.bound()));
        }
        Ok(Ready { dispatch, bindings, label: label.into() })
    }
}

fn whole(place: &Place) -> Piece {
    Piece { desc: place.desc, offset: 0 }
}

/// An op's temporary memory.
fn temporary(op: &PlannedOp) -> Result<Place> {
    let desc = Desc::new(DType::I32, &[op.temporary.len() / 4])?;
    Ok(Place { buffer: None, offset: op.temporary.start, desc })
}

fn same(a: &Place, b: &Place) -> bool {
    let memory = |p: &Place| p.buffer.as_ref().map_or(0, crate::buffer::Buffer::id);
    memory(a) == memory(b) && a.offset == b.offset && a.desc == b.desc
}
