//! Copies between devices (contract O4): the destination waits, not the host.
//!
//! The source's queue brings the bytes to the host, and an event tells the destination, whose queue holds the upload's
//! place in its order meanwhile. So the copy is ordered on both sides like any other transfer, and the result equals
//! that of a download, a wait and an upload. Host memory for the bytes is held while they are on the way.

use crate::device::driver::{Landing, Region, StagedBytes, Transfer};
use crate::error::{Error, Result};
use crate::queue::{Gate, Payload, Request, SubmissionId};
use crate::stream::{Stream, access, contiguous, pieces, writable};
use crate::submission::Submission;
use crate::tensor::Tensor;
use std::sync::{Arc, PoisonError};

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
        for (region, bytes) in pieces(&write, self.core.staging.piece()) {
            let part = Region::linear(from.offset() + bytes.start, bytes.len());
            let (landing, event) = source.fetch(from, part)?;
            submission.ids.push(self.put(to, region, landing, event)?);
        }
        Ok(submission)
    }

    /// Brings bytes to the host; the gate opens when they are there.
    fn fetch(&self, from: &Tensor, region: Region) -> Result<(Landing, Arc<Gate>)> {
        let landing = Landing::default();
        let memory = from.buffer().memory().clone();
        let transfer = Transfer::Download { memory, region, landing: landing.clone() };
        let id = self.transfer("copy", transfer, &[access(from.buffer(), &region, false)])?;
        let gate = Arc::new(Gate::default());
        self.core.queue.with(|s| {
            s.release(id);
            s.record(self.lane, gate.clone());
        });
        Ok((landing, gate))
    }

    /// Takes a place in this stream's order for bytes that are still to come.
    fn put(&self, to: &Tensor, region: Region, landing: Landing, gate: Arc<Gate>) -> Result<SubmissionId> {
        let request = Request {
            lane: self.lane,
            name: "copy".into(),
            graph: false,
            chunks: vec![None],
            long: false,
            access: [access(to.buffer(), &region, true)].into(),
            cancel: None,
        };
        let id = self.core.queue.with(|s| {
            s.wait_for(self.lane, gate.clone());
            s.submit(request)
        })?;
        let (core, memory) = (Arc::downgrade(&self.core), to.buffer().memory().clone());
        let opened = gate.clone();
        gate.on_open(move || {
            // The stream waits for its work before it goes, so its device is there as long as anybody asks.
            let Some(core) = core.upgrade() else { return };
            if !matches!(opened.get(), Some(Ok(()))) {
                return core.queue.with(|_| ());
            }
            let bytes = std::mem::take(&mut *landing.lock().unwrap_or_else(PoisonError::into_inner));
            let bytes = StagedBytes { bytes, room: None };
            let commands = core.driver.encode_transfer(Transfer::Upload { memory, region, bytes });
            core.queue.with(|s| match commands {
                Ok(commands) => {
                    s.encoded(id, 0, Payload { commands, name: "copy".into(), expected: Default::default() })
                }
                Err(error) => s.encode_failed(id, 0, error),
            });
        });
        Ok(id)
    }
}
