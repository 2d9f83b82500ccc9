//! Uploads: bytes of the host into device memory, in the queue's order (contract T1).
//!
//! [`Stream::upload_with`] is the whole of it: the caller writes straight into staging memory, from which the device
//! reads, or into shared memory that nobody uses; [`Stream::upload`] is the same with a slice to copy from. So what is
//! read from a file is touched once on the host, and several threads with a stream each fill staging memory at once.

use crate::buffer::Buffer;
use crate::device::Core;
use crate::device::driver::{Region, Storage, Transfer};
use crate::error::{Error, Result};
use crate::queue::SubmissionId;
use crate::stream::{Stream, access, contiguous, writable};
use crate::submission::Submission;
use crate::tensor::Tensor;
use std::ops::Range;
use std::sync::Arc;

impl Stream {
    /// Copies `bytes` into a contiguous tensor. The caller's bytes are free when this returns (contract T1).
    pub fn upload(&self, tensor: &Tensor, bytes: &[u8]) -> Result<Submission> {
        let span = contiguous(tensor, "upload")?;
        self.upload_region(tensor.buffer(), Region::linear(tensor.offset(), span), bytes)
    }

    /// Copies `bytes` into a range of a buffer.
    pub fn upload_bytes(&self, buffer: &Buffer, offset: usize, bytes: &[u8]) -> Result<Submission> {
        self.upload_region(buffer, Region::linear(offset, bytes.len()), bytes)
    }

    /// Copies runs of bytes into a buffer: `bytes` holds them one after the other, the buffer at `region`'s stride.
    pub fn upload_region(&self, buffer: &Buffer, region: Region, bytes: &[u8]) -> Result<Submission> {
        self.check(buffer, &region, "upload")?;
        if bytes.len() != region.bytes() {
            let size = region.bytes();
            return Err(Error::OutOfRange { what: "upload".into(), offset: 0, bytes: bytes.len(), size });
        }
        writable(buffer)?;
        if let Some(turn) = self.turn(buffer, &region)? {
            turn.copy(buffer, &region, bytes)?;
            return Ok(turn.done());
        }
        self.staged(buffer, &region, |at, out| {
            out.copy_from_slice(&bytes[at..at + out.len()]);
            Ok(())
        })
    }

    /// Uploads what `fill` writes: it is called with each piece of a contiguous tensor, the piece's first byte counted
    /// from the tensor's, in order, before this returns. A piece is at most a quarter of the staging memory and has any
    /// content before; `fill` writes all of it, and starts no upload of its own. Once it fails, this returns its error;
    /// what the tensor then holds is not said, and the stream stays usable.
    pub fn upload_with<E: From<Error>>(
        &self,
        tensor: &Tensor,
        fill: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<Submission, E> {
        let span = contiguous(tensor, "upload")?;
        let region = Region::linear(tensor.offset(), span);
        self.check(tensor.buffer(), &region, "upload")?;
        writable(tensor.buffer())?;
        if let Some(turn) = self.turn(tensor.buffer(), &region)? {
            turn.fill(tensor.buffer(), &region, fill)?;
            return Ok(turn.done());
        }
        self.staged(tensor.buffer(), &region, fill)
    }

    /// Through staging memory, for regions that were checked.
    fn staged<E: From<Error>>(
        &self,
        buffer: &Buffer,
        region: &Region,
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<Submission, E> {
        let mut submission = Submission::new(self.core.clone(), Vec::new());
        if region.bytes() == 0 {
            return Ok(submission);
        }
        for (part, range) in pieces(region, self.core.staging.piece()) {
            let mut staged = self.core.staging.stage(self.core.driver.as_ref(), range.len())?;
            fill(range.start, &mut staged.bytes)?;
            let memory = buffer.memory().clone();
            let access = [access(buffer, &part, true)];
            let transfer = Transfer::Upload { memory, region: part, bytes: staged };
            submission.ids.push(self.transfer("upload", transfer, &access)?);
        }
        Ok(submission)
    }

    /// Shared memory that nobody uses is written by this thread, in its turn: later work on it waits. `None` where it
    /// is used, or the stream waits for an event.
    fn turn(&self, buffer: &Buffer, region: &Region) -> Result<Option<Turn>> {
        if buffer.storage() != Storage::Shared || region.bytes() == 0 {
            return Ok(None);
        }
        let access = access(buffer, region, true);
        let id = self.core.queue.with(|s| s.begin_on_host(self.lane, "upload", access))?;
        Ok(id.map(|id| Turn {
            id,
            submission: Submission::new(self.core.clone(), vec![id]),
            core: self.core.clone(),
        }))
    }
}

/// A place in the queue's order that this thread uses itself. It ends with this value, also when the caller's code fails
/// or panics.
struct Turn {
    core: Arc<Core>,
    id: SubmissionId,
    submission: Submission,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.core.queue.with(|s| s.finish_on_host(self.id));
    }
}

impl Turn {
    /// Copies the runs of the region, which follow each other in `bytes`.
    fn copy(&self, buffer: &Buffer, region: &Region, bytes: &[u8]) -> Result<()> {
        for (r, run) in bytes.chunks_exact(region.row.max(1)).enumerate() {
            let written = buffer.memory().write(region.offset + r * region.stride, run);
            written.ok_or_else(|| Error::shape("upload", "memory that the host can write"))?;
        }
        Ok(())
    }

    /// Writes the whole of a dense region, where it lies if the host sees it there.
    fn fill<E: From<Error>>(
        &self,
        buffer: &Buffer,
        region: &Region,
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut own = Vec::new();
        for (part, range) in pieces(region, self.core.staging.piece()) {
            if let Some(start) = buffer.memory().host(part.range()) {
                // SAFETY: the driver gives the address of the range, which is checked to lie in the memory; the queue
                // gave this thread its turn on it, which only the end of this value ends, so nothing else touches the
                // bytes.
                fill(range.start, unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), range.len()) })?;
                continue;
            }
            own.resize(range.len(), 0);
            fill(range.start, &mut own)?;
            self.copy(buffer, &part, &own)?;
        }
        Ok(())
    }

    /// The turn's submission, which is finished when the turn is.
    fn done(mut self) -> Submission {
        let none = Submission::new(self.core.clone(), Vec::new());
        std::mem::replace(&mut self.submission, none)
    }
}

/// Cuts a region into pieces of at most `limit` bytes, with the range of host bytes that belongs to each.
pub(crate) fn pieces(region: &Region, limit: usize) -> Vec<(Region, Range<usize>)> {
    let flat = if region.is_dense() { Region::linear(region.offset, region.bytes()) } else { *region };
    let mut list = Vec::new();
    if flat.row > limit {
        for r in 0..flat.rows {
            for at in (0..flat.row).step_by(limit) {
                let bytes = limit.min(flat.row - at);
                let host = r * flat.row + at;
                list.push((Region::linear(flat.offset + r * flat.stride + at, bytes), host..host + bytes));
            }
        }
        return list;
    }
    let rows = limit / flat.row;
    for r in (0..flat.rows).step_by(rows) {
        let count = rows.min(flat.rows - r);
        let part = Region { offset: flat.offset + r * flat.stride, rows: count, ..flat };
        list.push((part, r * flat.row..(r + count) * flat.row));
    }
    list
}
