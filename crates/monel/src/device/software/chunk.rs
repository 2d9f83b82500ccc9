//! An encoded chunk: phases of kernel calls with resolved addresses.
//!
//! Between two barriers of the plan lies one phase; the pieces of all its kernels are numbered through and handed out
//! by one counter. A chunk runs on one queue, so its counters can live in it and are reset at its start.

use super::door::relax;
use crate::device::Counts;
use crate::device::driver::{HostMapping, Memory};
use crate::error::{Error, panic_message};
use crate::kernel::{Kernel, Worker};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// How far a phase is: pieces handed out in the upper half, pieces done in the lower. One word, so that a thread that
/// has finished a piece says so and takes the next one in a single exchange of the cache line, and the last one to
/// finish knows that it is. The line is the phase's own.
#[repr(align(128))]
#[derive(Default)]
struct Progress(AtomicU64);

const CLAIM: u64 = 1 << 32;
const DONE: u64 = 1;
const DONE_MASK: u64 = CLAIM - 1;

/// Kernels that one thread runs one after the other on each range of items (a chain of row-local ops has several).
pub struct Part {
    pub kernels: Vec<Kernel>,
    /// Ops for errors and timelines: one per kernel.
    pub names: Vec<String>,
    pub items: usize,
    pub grain: usize,
}

/// Work between two barriers.
#[derive(Default)]
pub struct Phase {
    parts: Vec<Part>,
    pieces: usize,
    progress: Progress,
}

impl Phase {
    /// Adds a part with at least one item.
    pub fn push(&mut self, part: Part) {
        self.pieces += part.items.div_ceil(part.grain);
        self.parts.push(part);
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Ops of the phase, for timelines.
    fn label(&self) -> String {
        let mut names: Vec<&str> = self.parts.iter().flat_map(|p| &p.names).map(String::as_str).collect();
        names.dedup();
        names.join(" + ")
    }
}

/// A chunk of a recording.
pub struct SoftChunk {
    pub phases: Vec<Phase>,
    /// The memory behind the addresses, and mapped files with the length they need.
    _keep: Vec<Arc<dyn Memory>>,
    pub mappings: Vec<(Arc<dyn HostMapping>, usize)>,
    pub counts: Arc<Counts>,
    failed: AtomicBool,
    failure: Mutex<Option<(String, Error)>>,
    spans: Mutex<Option<Vec<(Instant, Instant)>>>,
}

impl Drop for SoftChunk {
    fn drop(&mut self) {
        self.counts.commands.fetch_sub(1, Ordering::AcqRel);
    }
}

impl SoftChunk {
    pub fn new(
        phases: Vec<Phase>,
        keep: Vec<Arc<dyn Memory>>,
        mappings: Vec<(Arc<dyn HostMapping>, usize)>,
        counts: Arc<Counts>,
    ) -> SoftChunk {
        counts.commands.fetch_add(1, Ordering::AcqRel);
        let (failed, failure, spans) = Default::default();
        SoftChunk { phases, _keep: keep, mappings, counts, failed, failure, spans }
    }

    /// Whether waking other threads is not worth it.
    pub fn is_small(&self) -> bool {
        self.phases.iter().all(|p| p.pieces <= 1)
    }

    /// Resets the counters; nobody works on the chunk.
    pub fn begin(&self) {
        for phase in &self.phases {
            phase.progress.0.store(0, Ordering::Relaxed);
        }
        self.failed.store(false, Ordering::Relaxed);
    }

    /// Asks for the times of the phases of the next run.
    pub fn record_spans(&self) {
        *self.spans.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Vec::with_capacity(self.phases.len()));
    }

    /// The times asked for, with the names of the ops.
    pub fn take_spans(&self) -> Vec<(String, Instant, Instant)> {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
        self.phases.iter().map(Phase::label).zip(spans).map(|(name, (a, b))| (name, a, b)).collect()
    }

    /// The op that failed, and why.
    pub fn take_failure(&self) -> Option<(String, Error)> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Works on the chunk until all phases are done. The leader also notes the times, where asked for.
    pub fn work(&self, worker: &mut Worker, leader: bool) {
        let mut spans =
            if leader { self.spans.lock().unwrap_or_else(PoisonError::into_inner).take() } else { None };
        let mut late = !leader;
        for phase in &self.phases {
            let began = spans.as_ref().map(|_| Instant::now());
            late = self.work_on(phase, worker, late);
            if let (Some(list), Some(began)) = (&mut spans, began) {
                list.push((began, Instant::now()));
            }
        }
        if spans.is_some() {
            *self.spans.lock().unwrap_or_else(PoisonError::into_inner) = spans;
        }
    }

    /// Takes pieces of a phase until none is left, then waits for the others. A thread that is `late` looks before it
    /// takes, which leaves the lines of finished phases alone; gives back whether it still is.
    fn work_on(&self, phase: &Phase, worker: &mut Worker, late: bool) -> bool {
        let (progress, pieces) = (&phase.progress.0, phase.pieces as u64);
        let complete = |state: u64| state & DONE_MASK == pieces;
        if late && complete(progress.load(Ordering::Acquire)) {
            return true;
        }
        let mut state = progress.fetch_add(CLAIM, Ordering::AcqRel);
        while state / CLAIM < pieces {
            if !self.failed.load(Ordering::Relaxed) {
                self.piece(phase, (state / CLAIM) as usize, worker);
            }
            state = progress.fetch_add(CLAIM | DONE, Ordering::AcqRel) + DONE;
        }
        let mut spins = 0;
        while !complete(state) {
            relax(&mut spins);
            state = progress.load(Ordering::Acquire);
        }
        false
    }

    fn piece(&self, phase: &Phase, mut piece: usize, worker: &mut Worker) {
        let part = phase.parts.iter().find(|p| {
            let pieces = p.items.div_ceil(p.grain);
            let mine = piece < pieces;
            piece -= if mine { 0 } else { pieces };
            mine
        });
        let Some(part) = part else { return };
        let range = piece * part.grain..((piece + 1) * part.grain).min(part.items);
        for (kernel, name) in part.kernels.iter().zip(&part.names) {
            // A kernel must not panic; if one does, it is that submission's error and nobody else's (contract E1).
            let result = catch_unwind(AssertUnwindSafe(|| (kernel.run)(range.clone(), worker)));
            let error = match result {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error,
                Err(panic) => {
                    Error::Kernel(format!("the kernel panicked: {}", panic_message(panic.as_ref())))
                }
            };
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((name.clone(), error));
            self.failed.store(true, Ordering::Relaxed);
            return;
        }
    }
}
