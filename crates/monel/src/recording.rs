//! Recordings: a planned graph with its scratch memory and its encoded chunks.
//!
//! A recording is encoded by its first submission and committed again by every later one. Replays share the scratch
//! memory, because the queue is in order; different recordings share nothing (contract A3).

use crate::buffer::Buffer;
use crate::device::driver::{Commands, Storage};
use crate::device::{Core, Device};
use crate::error::{Error, Result, panic_message};
use crate::plan::Plan;
use crate::queue::{Access, Payload};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// A graph that can be submitted any number of times. Cheap to clone.
#[derive(Clone)]
pub struct Recording {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub plan: Plan,
    pub scratch: Option<Buffer>,
    pub chunks: Vec<OnceLock<Arc<dyn Commands>>>,
    pub core: Arc<Core>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.core.counts.recordings.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Recording {
    pub(crate) fn new(device: &Device, mut plan: Plan) -> Result<Recording> {
        let scratch = match plan.scratch {
            0 => None,
            bytes => Some(device.allocate(scratch_storage(device), bytes)?),
        };
        if let Some(scratch) = &scratch {
            // Replays on several streams take turns also where nothing else keeps their chunks apart.
            let range = 0..plan.scratch;
            let own = Access { buffer: scratch.id(), range, write: true, whole: true };
            plan.access = plan.access.iter().cloned().chain([own]).collect();
        }
        let chunks = plan.chunks.iter().map(|_| OnceLock::new()).collect();
        device.core.counts.recordings.fetch_add(1, Ordering::AcqRel);
        Ok(Recording { inner: Arc::new(Inner { plan, scratch, chunks, core: device.core.clone() }) })
    }

    /// What will run.
    pub fn plan(&self) -> &Plan {
        &self.inner.plan
    }

    /// Bytes of scratch memory it holds.
    pub fn scratch_bytes(&self) -> usize {
        self.inner.plan.scratch
    }

    /// Whether all chunks are encoded, so that submitting is a replay.
    pub fn is_encoded(&self) -> bool {
        self.inner.chunks.iter().all(|c| c.get().is_some())
    }
}

impl Inner {
    /// The chunk as it is committed, if it is encoded.
    pub fn encoded(&self, chunk: usize) -> Option<Payload> {
        let commands = self.chunks[chunk].get()?.clone();
        let expected = self.plan.chunks[chunk].estimate;
        Some(Payload { commands, name: self.plan.name.clone(), expected })
    }

    /// Encodes a chunk. An encoder that panics is an error of this submission, not the end of a helper (contract E1).
    pub fn encode(&self, chunk: usize) -> Result<Payload> {
        let scratch = self.scratch.as_ref().map(Buffer::memory);
        let encode = || self.core.driver.encode(&self.plan, chunk, scratch);
        let commands = catch_unwind(AssertUnwindSafe(encode)).unwrap_or_else(|panic| {
            Err(Error::Kernel(format!("encoding panicked: {}", panic_message(panic.as_ref()))))
        })?;
        let commands = self.chunks[chunk].get_or_init(|| commands).clone();
        let expected = self.plan.chunks[chunk].estimate;
        Ok(Payload { commands, name: self.plan.name.clone(), expected })
    }
}

/// Scratch is never seen by the host, but the software device has nothing to gain from hiding it.
fn scratch_storage(device: &Device) -> Storage {
    device.default_storage()
}
