//! Encoding: a plan's chunk becomes phases of kernels; addresses are resolved, data is not touched (contract P4).

use super::chunk::{Part, Phase, SoftChunk};
use super::memory::HostMemory;
use super::simd::Isa;
use super::transfer::SoftTransfer;
use crate::device::Counts;
use crate::device::driver::{Commands, Memory, Transfer};
use crate::error::{Error, Result};
use crate::kernel::{Call, Input, Output};
use crate::plan::{Place, Plan, PlannedOp};
use crate::tensor::{DType, Desc};
use std::sync::Arc;

/// What the software device commits.
pub enum SoftCommands {
    Chunk(SoftChunk),
    Transfer(SoftTransfer),
}

impl Commands for SoftCommands {}

/// Turns plans and transfers into commands.
pub struct Encoder {
    pub isa: Isa,
    pub threads: usize,
    pub counts: Arc<Counts>,
}

impl Encoder {
    /// Encodes one chunk.
    pub fn chunk(
        &self,
        plan: &Plan,
        chunk: usize,
        scratch: Option<&Arc<dyn Memory>>,
    ) -> Result<Arc<dyn Commands>> {
        let mut keep: Vec<Arc<dyn Memory>> = scratch.into_iter().cloned().collect();
        let mut phases: Vec<Phase> = vec![Phase::default()];
        for step in &plan.steps[plan.chunks[chunk].steps.clone()] {
            if step.barrier {
                phases.push(Phase::default());
            }
            let mut stages: Vec<Part> = Vec::new();
            for op in &step.ops {
                let kernels = self.kernels(op, scratch, &mut keep)?;
                let name = label(op);
                for (i, kernel) in kernels.into_iter().enumerate() {
                    // A chain has one kernel per op and one item per row; they run as one part.
                    let chained = step.ops.len() > 1 && i == 0;
                    match stages.last_mut() {
                        Some(part) if chained && part.items == kernel.items => {
                            part.grain = part.grain.min(kernel.grain);
                            part.kernels.push(kernel);
                            part.names.push(name.clone());
                        }
                        Some(_) if chained => {
                            let reason =
                                format!("{} has {} items in a chain of rows", op.op.name(), kernel.items);
                            return Err(Error::Kernel(reason));
                        }
                        _ => {
                            let (items, grain) = (kernel.items, kernel.grain);
                            let grain = grain.max(items.div_ceil(1 << 16));
                            stages.push(Part {
                                kernels: vec![kernel],
                                names: vec![name.clone()],
                                items,
                                grain,
                            });
                        }
                    }
                }
            }
            for (i, part) in stages.into_iter().enumerate() {
                if i > 0 {
                    phases.push(Phase::default());
                }
                if part.items > 0
                    && let Some(phase) = phases.last_mut()
                {
                    phase.push(part);
                }
            }
        }
        keep.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let mut mappings = Vec::new();
        for memory in &keep {
            if let Some((mapping, end)) = HostMemory::of(memory)?.mapping() {
                mappings.push((mapping.clone(), end));
            }
        }
        phases.retain(|p| !p.is_empty());
        Ok(Arc::new(SoftCommands::Chunk(SoftChunk::new(phases, keep, mappings, self.counts.clone()))))
    }

    /// Encodes a transfer.
    pub fn transfer(&self, transfer: Transfer) -> Result<Arc<dyn Commands>> {
        Ok(Arc::new(SoftCommands::Transfer(SoftTransfer::new(transfer, self.counts.clone())?)))
    }

    fn kernels(
        &self,
        op: &PlannedOp,
        scratch: Option<&Arc<dyn Memory>>,
        keep: &mut Vec<Arc<dyn Memory>>,
    ) -> Result<Vec<crate::kernel::Kernel>> {
        let mut resolve = |place: &Place| -> Result<*mut u8> {
            if place.desc.span() == 0 {
                return Ok(nowhere());
            }
            let memory = match &place.buffer {
                Some(buffer) => {
                    if !keep.iter().any(|k| Arc::ptr_eq(k, buffer.memory())) {
                        keep.push(buffer.memory().clone());
                    }
                    buffer.memory()
                }
                None => scratch.ok_or_else(|| Error::Kernel("a plan without scratch memory".into()))?,
            };
            HostMemory::of(memory)?.at(place.offset..place.offset + place.desc.span())
        };
        let mut inputs = Vec::with_capacity(op.inputs.len());
        for place in &op.inputs {
            // SAFETY: the range was checked, `keep` holds the memory for as long as the chunk, and the plan's barriers
            // and placement keep other steps from writing it meanwhile.
            inputs.push(unsafe { Input::new(resolve(place)?, place.desc) });
        }
        // SAFETY: as above; the planner gives results bytes that no operand of the same phase uses.
        let output = unsafe { Output::new(resolve(&op.output)?, op.output.desc) };
        let temporary = Place {
            buffer: None,
            offset: op.temporary.start,
            desc: Desc::new(DType::I32, &[op.temporary.len() / 4])?,
        };
        let scratch = if op.temporary.is_empty() { nowhere() } else { resolve(&temporary)? };
        // SAFETY: as above.
        let scratch = unsafe { Output::new(scratch, temporary.desc) };
        Ok(op.op.kernels(&Call { inputs: &inputs, output, scratch, isa: self.isa, threads: self.threads }))
    }
}

/// An aligned address for operands without bytes.
fn nowhere() -> *mut u8 {
    std::ptr::without_provenance_mut(crate::plan::SCRATCH_ALIGN)
}

fn label(op: &PlannedOp) -> String {
    if op.name.is_empty() { op.op.name().to_string() } else { format!("{} {}", op.op.name(), op.name) }
}
