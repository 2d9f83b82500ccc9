//! Streams: one client's lane into a device's queue.
//!
//! Everything handed over through a stream returns as soon as it is committed, or waits encoded for its turn. What waits
//! for the device: `synchronize`, `recover`, `run` and dropping a stream, for all that was handed over before; a
//! submission whose stream has used up its in-flight budget; a transfer behind [`MAX_OUTSTANDING`] unfinished
//! submissions, or with a full staging ring. Each goes on when the work fails, as well as when it is done.

use crate::buffer::Buffer;
use crate::cancel::{CancelToken, Poke};
use crate::device::Core;
use crate::device::driver::{Landing, Region, Transfer};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::queue::{Access, Gate, LaneId, Payload, Request, SubmissionId};
use crate::recording::{self, Recording};
use crate::submission::{Download, Submission};
use crate::tensor::Tensor;
use crate::trace::Track;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Unfinished submissions of one stream with which a transfer waits for the oldest: it bounds the memory that transfers
/// in flight hold, and is far more than a device needs to stay busy.
pub const MAX_OUTSTANDING: usize = 256;

/// A lane into a device's queue. Dropping it waits for its work.
pub struct Stream {
    pub(crate) core: Arc<Core>,
    pub(crate) lane: LaneId,
}

impl Stream {
    pub(crate) fn new(core: Arc<Core>) -> Stream {
        core.counts.streams.fetch_add(1, Ordering::AcqRel);
        let lane = core.queue.look(|s| s.add_lane());
        Stream { core, lane }
    }

    /// Submits a recording. Encodes the first chunk here if it is not encoded yet, and the rest on helper threads. Waits
    /// while as many graphs of the stream are unfinished as its in-flight budget allows.
    ///
    /// # Errors
    /// [`Error::Foreign`] for a recording of another device, [`Error::Poisoned`] after a failure of earlier work, and
    /// what keeps the first chunk from being encoded. Whatever fails later is the submission's own error.
    pub fn submit(&self, recording: &Recording) -> Result<Submission> {
        self.submit_with(recording, None)
    }

    /// As [`Stream::submit`], with a token that is checked between chunks.
    ///
    /// # Errors
    /// Those of [`Stream::submit`]; a cancel is the submission's own error, [`Error::Cancelled`].
    pub fn submit_with(&self, recording: &Recording, cancel: Option<&CancelToken>) -> Result<Submission> {
        if !Arc::ptr_eq(&recording.inner.core, &self.core) {
            return Err(Error::Foreign {
                what: format!("the recording of {}", recording.plan().name),
                expected: self.core.driver.info().name.clone(),
                found: recording.inner.core.driver.info().name.clone(),
            });
        }
        let (queue, lane) = (&self.core.queue, self.lane);
        if let Some(token) = cancel {
            let weak: std::sync::Weak<dyn Poke> = queue.weak();
            token.listen(&weak);
        }
        let budget = self.core.settings.in_flight.max(1);
        queue.wait_until("in-flight budget", |s| s.reserve(lane, budget).then_some(()));
        let inner = &recording.inner;
        let chunks = match self.encode_first(inner) {
            Ok(chunks) => chunks,
            Err(error) => {
                queue.with(|s| s.unreserve(lane));
                return Err(error);
            }
        };
        let missing: Vec<usize> = (0..chunks.len()).filter(|&c| chunks[c].is_none()).collect();
        let request = Request {
            lane,
            name: inner.plan.name.clone(),
            graph: true,
            chunks,
            long: inner.plan.long,
            access: inner.plan.access.clone(),
            cancel: cancel.cloned(),
        };
        let id = queue.with(|s| s.submit(request))?;
        for chunk in missing {
            let task = encode_task(inner.clone(), id, chunk);
            if self.core.encoders.any() { self.core.encoders.spawn(task) } else { task() }
        }
        Ok(Submission::new(self.core.clone(), vec![id]))
    }

    /// The chunks' commands as far as they are encoded: the first one always, all of them in a replay.
    fn encode_first(&self, inner: &Arc<recording::Inner>) -> Result<Vec<Option<Payload>>> {
        let encoded = |c| if c == 0 { encode(inner, c).map(Some) } else { Ok(inner.encoded(c)) };
        (0..inner.plan.chunks.len()).map(encoded).collect()
    }

    /// The bytes of a contiguous tensor, once everything before is finished (contract T2).
    ///
    /// # Errors
    /// [`Error::Shape`] for a tensor that is not contiguous, and those of [`Stream::download_region`].
    pub fn download(&self, tensor: &Tensor) -> Result<Download> {
        let span = contiguous(tensor, "download")?;
        self.download_region(tensor.buffer(), Region::linear(tensor.offset(), span))
    }

    /// `bytes` bytes of a buffer from `offset` on.
    ///
    /// # Errors
    /// Those of [`Stream::download_region`].
    pub fn download_bytes(&self, buffer: &Buffer, offset: usize, bytes: usize) -> Result<Download> {
        self.download_region(buffer, Region::linear(offset, bytes))
    }

    /// Runs of bytes of a buffer, one after the other in the result.
    ///
    /// # Errors
    /// [`Error::Foreign`] for a buffer of another device, [`Error::OutOfRange`] for bytes outside of it,
    /// [`Error::Shape`] for runs that overlap, [`Error::Poisoned`] after a failure of earlier work, and the driver's
    /// where it cannot encode the transfer. Whatever fails later is the download's own error.
    pub fn download_region(&self, buffer: &Buffer, region: Region) -> Result<Download> {
        self.check(buffer, &region, "download")?;
        let landing = Landing::default();
        let mut submission = Submission::new(self.core.clone(), Vec::new());
        if region.bytes() > 0 {
            let memory = buffer.memory().clone();
            let access = [access(buffer, &region, false)];
            let transfer = Transfer::Download { memory, region, landing: landing.clone() };
            submission.ids.push(self.transfer("download", transfer, &access)?);
        }
        Ok(Download { submission, landing })
    }

    /// Sets every byte of a range to `value`.
    ///
    /// # Errors
    /// Those of [`Stream::fill_region`].
    pub fn fill(&self, buffer: &Buffer, offset: usize, bytes: usize, value: u8) -> Result<Submission> {
        self.fill_region(buffer, Region::linear(offset, bytes), value)
    }

    /// Sets every byte of a buffer to `value`, whatever views lie in it.
    ///
    /// # Errors
    /// Those of [`Stream::fill_region`].
    pub fn clear(&self, buffer: &Buffer, value: u8) -> Result<Submission> {
        self.fill(buffer, 0, buffer.size(), value)
    }

    /// Sets every byte of the runs of `region` to `value`; what lies between them stays.
    ///
    /// # Errors
    /// Those of [`Stream::download_region`], and [`Error::Shape`] for mapped memory, which nobody writes.
    pub fn fill_region(&self, buffer: &Buffer, region: Region, value: u8) -> Result<Submission> {
        self.check(buffer, &region, "fill")?;
        writable(buffer)?;
        let mut submission = Submission::new(self.core.clone(), Vec::new());
        if region.bytes() > 0 {
            let memory = buffer.memory().clone();
            let access = [access(buffer, &region, true)];
            submission.ids.push(self.transfer("fill", Transfer::Fill { memory, region, value }, &access)?);
        }
        Ok(submission)
    }

    /// Copies the bytes of `from` into `to`, both contiguous, of one size and on this device; between devices it is
    /// [`Stream::copy_from`].
    ///
    /// # Errors
    /// [`Error::Shape`] for a tensor that is not contiguous, [`Error::OutOfRange`] for different sizes, and those of
    /// [`Stream::copy_region`].
    pub fn copy(&self, from: &Tensor, to: &Tensor) -> Result<Submission> {
        let (a, b) = (contiguous(from, "copy")?, contiguous(to, "copy")?);
        if a != b {
            return Err(Error::OutOfRange { what: "copy".into(), offset: 0, bytes: a, size: b });
        }
        let source = Region::linear(from.offset(), a);
        let target = Region::linear(to.offset(), b);
        self.copy_region((from.buffer(), source), (to.buffer(), target))
    }

    /// Copies runs of bytes between buffers of this device; the runs may have different strides, not overlap.
    ///
    /// # Errors
    /// Those of [`Stream::fill_region`], [`Error::OutOfRange`] for different numbers of bytes, and [`Error::Shape`] for
    /// a source and a destination that overlap.
    pub fn copy_region(&self, from: (&Buffer, Region), to: (&Buffer, Region)) -> Result<Submission> {
        self.check(from.0, &from.1, "copy")?;
        self.check(to.0, &to.1, "copy")?;
        writable(to.0)?;
        if from.1.bytes() != to.1.bytes() {
            let (bytes, size) = (from.1.bytes(), to.1.bytes());
            return Err(Error::OutOfRange { what: "copy".into(), offset: 0, bytes, size });
        }
        let access = [access(from.0, &from.1, false), access(to.0, &to.1, true)];
        if access[0].conflicts(&access[1]) {
            return Err(Error::shape("copy", "source and destination that do not overlap"));
        }
        let mut submission = Submission::new(self.core.clone(), Vec::new());
        if from.1.bytes() > 0 {
            let transfer =
                Transfer::Copy { from: (from.0.memory().clone(), from.1), to: (to.0.memory().clone(), to.1) };
            submission.ids.push(self.transfer("copy", transfer, &access)?);
        }
        Ok(submission)
    }

    /// A point in this stream's order that another stream, also of another device, can wait for.
    pub fn record_event(&self) -> Event {
        let gate = Arc::new(Gate::default());
        self.core.queue.with(|s| s.record(self.lane, gate.clone()));
        Event { gate }
    }

    /// Later work of this stream runs after the event; the host does not wait. If what came before the event failed,
    /// that work fails with the same error.
    pub fn wait_event(&self, event: &Event) {
        self.core.queue.with(|s| s.wait_for(self.lane, event.gate.clone()));
        let weak = self.core.queue.weak();
        event.gate.on_open(move || {
            if let Some(queue) = weak.upgrade() {
                queue.with(|_| ());
            }
        });
    }

    /// Waits until everything of the stream is finished, and reports what failed since the last call (A4, E3).
    ///
    /// # Errors
    /// The first failure since the last call, once.
    pub fn synchronize(&self) -> Result<()> {
        let lane = self.lane;
        self.core.queue.wait_until("synchronize", |s| (s.outstanding(lane) == 0).then_some(()));
        self.core.queue.look(|s| s.report(lane))
    }

    /// Waits for the stream's work, then clears its poison: the stream takes work again (E3).
    ///
    /// # Errors
    /// [`Error::DeviceLost`]: a lost device stays lost, and has to be opened again.
    pub fn recover(&self) -> Result<()> {
        let lane = self.lane;
        self.core.queue.wait_until("recover", |s| (s.outstanding(lane) == 0).then_some(()));
        self.core.queue.look(|s| s.recover(lane))
    }

    /// Whether the stream refuses work because of an earlier failure.
    pub fn is_poisoned(&self) -> bool {
        self.core.queue.look(|s| s.is_poisoned(self.lane))
    }

    /// Runs `graph` once: records, submits, waits. For tests and one-off work.
    ///
    /// # Errors
    /// Those of [`Device::record`](crate::Device::record) and of [`Stream::submit`], and the submission's own.
    pub fn run(&self, graph: &crate::graph::Graph) -> Result<()> {
        let device = self.device();
        self.submit(&device.record(graph)?)?.wait()
    }

    /// The stream's device.
    pub fn device(&self) -> crate::device::Device {
        crate::device::Device { core: self.core.clone() }
    }

    pub(crate) fn transfer(
        &self,
        name: &'static str,
        transfer: Transfer,
        access: &[Access],
    ) -> Result<SubmissionId> {
        // A caller that never waits runs ahead by this much (contract T4).
        let (queue, lane) = (&self.core.queue, self.lane);
        queue.wait_until("transfers in flight", |s| {
            (s.outstanding(lane) < MAX_OUTSTANDING || s.is_poisoned(lane)).then_some(())
        });
        let commands = self.core.driver.encode_transfer(transfer)?;
        let payload = Payload { commands, name: name.into(), expected: Default::default() };
        self.core.queue.with(|s| s.submit(Request::transfer(lane, name, Some(payload), access)))
    }

    pub(crate) fn check(&self, buffer: &Buffer, region: &Region, what: &'static str) -> Result<()> {
        if !Arc::ptr_eq(&buffer.inner.core, &self.core) {
            return Err(Error::Foreign {
                what: format!("the buffer of {what}"),
                expected: self.core.driver.info().name.clone(),
                found: buffer.device_name().to_string(),
            });
        }
        if region.rows > 1 && region.stride < region.row {
            return Err(Error::shape(what, format!("runs that do not overlap, found {region:?}")));
        }
        let span = match region.rows {
            0 => Some(0),
            _ if region.row == 0 => Some(0),
            rows => (rows - 1).checked_mul(region.stride).and_then(|n| n.checked_add(region.row)),
        };
        if span.and_then(|n| n.checked_add(region.offset)).is_none_or(|end| end > buffer.size()) {
            let (offset, bytes, size) = (region.offset, span.unwrap_or(usize::MAX), buffer.size());
            return Err(Error::OutOfRange { what: what.into(), offset, bytes, size });
        }
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let lane = self.lane;
        self.core.queue.wait_until("drop", |s| (s.outstanding(lane) == 0).then_some(()));
        self.core.queue.look(|s| s.remove_lane(lane));
        self.core.counts.streams.fetch_sub(1, Ordering::AcqRel);
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({} on {})", self.lane, self.core.driver.info().id)
    }
}

fn encode(inner: &Arc<recording::Inner>, chunk: usize) -> Result<Payload> {
    if let Some(payload) = inner.encoded(chunk) {
        return Ok(payload);
    }
    let trace = inner.core.queue.trace();
    let _span = trace.as_ref().map(|t| t.span(Track::thread(), "encode", &inner.plan.name, chunk));
    inner.encode(chunk)
}

/// Encodes a chunk and hands it to the queue; runs on a helper, or on the caller when there are none. The recording is
/// let go before the queue hears of it, so that a helper is not the last one to hold a device.
fn encode_task(inner: Arc<recording::Inner>, id: SubmissionId, chunk: usize) -> Box<dyn FnOnce() + Send> {
    Box::new(move || {
        let queue = inner.core.queue.clone();
        // A cancelled prompt does not keep helpers from the next one.
        if !queue.look(|s| s.wants_chunks(id)) {
            return;
        }
        let result = encode(&inner, chunk);
        drop(inner);
        match result {
            Ok(payload) => queue.with(|s| s.encoded(id, chunk, payload)),
            Err(error) => queue.with(|s| s.encode_failed(id, chunk, error)),
        }
    })
}

pub(crate) fn contiguous(tensor: &Tensor, what: &'static str) -> Result<usize> {
    if !tensor.desc().is_contiguous() {
        return Err(Error::shape(what, format!("a contiguous tensor, found {}", tensor.desc())));
    }
    Ok(tensor.desc().span())
}

pub(crate) fn writable(buffer: &Buffer) -> Result<()> {
    if buffer.is_writable() {
        return Ok(());
    }
    Err(Error::shape("transfer", "memory that may be written; mapped memory is read-only"))
}

pub(crate) fn access(buffer: &Buffer, region: &Region, write: bool) -> Access {
    Access { buffer: buffer.id(), range: region.range(), write, whole: write && region.is_dense() }
}
