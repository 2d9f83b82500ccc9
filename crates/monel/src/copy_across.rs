//! Copies between devices (contract O4): the destination waits, not the host.
//!
//! The source's queue brings the bytes to the host, and an event tells the destination, whose queue holds the upload's
//! place in its order meanwhile. So the copy is ordered on both sides like any other transfer, and the result equals
//! that of a download, a wait and an upload. The bytes pass in pieces through a ring: a piece leaves the source when
//! the piece [`RING`] before it has reached the destination, so the host never holds more than the ring.

use crate::device::Core;
use crate::device::driver::{Landing, Region, Transfer};
use crate::error::{Error, Result};
use crate::queue::{Access, Gate, LaneId, Payload, Request, SubmissionId};
use crate::stream::{Stream, access, contiguous, writable};
use crate::submission::Submission;
use crate::tensor::Tensor;
use crate::upload::pieces;
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, Weak};

/// Pieces on the way at once; a piece is a quarter of the destination's staging memory.
const RING: usize = 4;

impl Stream {
    /// Copies `from`, in `source`'s order, into `to`, in this stream's order; the streams may be of different devices.
    /// Both tensors are contiguous and have the same number of bytes. The submission is this stream's.
    pub fn copy_from(&self, source: &Stream, from: &Tensor, to: &Tensor) -> Result<Submission> {
        if Arc::ptr_eq(&self.core, &source.core) {
            return self.copy(from, to);
        }
        let (a, b) = (contiguous(from, "copy")?, contiguous(to, "copy")?);
        if a != b {
            return Err(Error::OutOfRange { what: "copy".into(), offset: 0, bytes: a, size: b });
        }
        let (read, write) = (Region::linear(from.offset(), a), Region::linear(to.offset(), b));
        source.check(from.buffer(), &read, "copy")?;
        self.check(to.buffer(), &write, "copy")?;
        writable(to.buffer())?;
        let mut submission = Submission::new(self.core.clone(), Vec::new());
        if a == 0 {
            return Ok(submission);
        }
        let mut arrived: VecDeque<Arc<Gate>> = VecDeque::new();
        for (region, bytes) in pieces(&write, self.core.staging.piece()) {
            let part = Region::linear(from.offset() + bytes.start, bytes.len());
            let room = if arrived.len() < RING { None } else { arrived.pop_front() };
            let (landing, event) = source.fetch(from, part, room)?;
            submission.ids.push(self.put(to, region, landing, event)?);
            let gate = Arc::new(Gate::default());
            self.core.queue.with(|s| s.record(self.lane, gate.clone()));
            arrived.push_back(gate);
        }
        Ok(submission)
    }

    /// Brings bytes to the host, once there is room for them; the gate opens when they are there.
    fn fetch(&self, from: &Tensor, region: Region, room: Option<Arc<Gate>>) -> Result<(Landing, Arc<Gate>)> {
        let landing = Landing::default();
        let memory = from.buffer().memory().clone();
        let transfer = Transfer::Download { memory, region, landing: landing.clone() };
        let reads = access(from.buffer(), &region, false);
        let id = match room {
            None => self.transfer("copy", transfer, &[reads])?,
            Some(room) => {
                let id = self.core.queue.with(|s| s.submit(place(self.lane, reads)))?;
                let core = Arc::downgrade(&self.core);
                // A piece that failed at the destination has left the ring as well.
                room.on_open(move || encode(&core, id, transfer));
                id
            }
        };
        let gate = Arc::new(Gate::default());
        self.core.queue.with(|s| {
            s.release(id);
            s.record(self.lane, gate.clone());
        });
        Ok((landing, gate))
    }

    /// Takes a place in this stream's order for bytes that are still to come.
    fn put(&self, to: &Tensor, region: Region, landing: Landing, gate: Arc<Gate>) -> Result<SubmissionId> {
        let id = self.core.queue.with(|s| {
            s.wait_for(self.lane, gate.clone());
            s.submit(place(self.lane, access(to.buffer(), &region, true)))
        })?;
        let (core, memory) = (Arc::downgrade(&self.core), to.buffer().memory().clone());
        let opened = gate.clone();
        gate.on_open(move || {
            if !matches!(opened.get(), Some(Ok(()))) {
                if let Some(core) = core.upgrade() {
                    core.queue.with(|_| ());
                }
                return;
            }
            let bytes = std::mem::take(&mut *landing.lock().unwrap_or_else(PoisonError::into_inner));
            encode(&core, id, Transfer::Upload { memory, region, bytes: bytes.into() });
        });
        Ok(id)
    }
}

/// A place in a lane's order for a transfer that is encoded later.
fn place(lane: LaneId, access: Access) -> Request<Payload> {
    Request {
        lane,
        name: "copy".into(),
        graph: false,
        chunks: vec![None],
        long: false,
        access: [access].into(),
        cancel: None,
    }
}

/// Encodes a transfer that has its place.
fn encode(core: &Weak<Core>, id: SubmissionId, transfer: Transfer) {
    // A stream waits for its work before it goes, so its device is there as long as anybody asks.
    let Some(core) = core.upgrade() else { return };
    let commands = core.driver.encode_transfer(transfer);
    core.queue.with(|s| match commands {
        Ok(commands) => {
            s.encoded(id, 0, Payload { commands, name: "copy".into(), expected: Default::default() })
        }
        Err(error) => s.encode_failed(id, 0, error),
    });
}
