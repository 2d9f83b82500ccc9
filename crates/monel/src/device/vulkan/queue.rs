//! The queue: work is submitted as it is committed, numbered on one timeline semaphore, and a thread reports each piece
//! when the timeline has passed it.
//!
//! The thread sleeps until a piece is nearly done (see `forecast`), then polls for a moment, then
//! waits for the driver to wake it (contract A7). A piece that does not end within the limit counts as a lost device:
//! nothing behind it will run either.

use super::commands::{CommandBuffer, GpuCommands};
use super::forecast::Forecast;
use super::gpu::{Gpu, is_short_of_memory};
use super::memory::Block;
use super::record::Traced;
use super::times::Timebase;
use crate::device::Counts;
use crate::device::driver::{Done, Job, Sink};
use crate::error::{Error, Result, panic_message};
use crate::trace::Track;
use ash::vk;
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What runs on the device or waits there.
#[allow(dead_code, reason = "what is not reported is kept until the device has passed it")]
enum Work {
    /// The engine's: reported when done. With a timeline, what was recorded for it.
    Job(Job, Option<Arc<Traced>>),
    /// The driver's own: kept until it is done.
    Own(CommandBuffer, Arc<Block>),
    /// A brake's wait.
    Brake(Arc<BrakeSemaphore>),
}

struct Entry {
    /// The timeline's value when it is done.
    value: u64,
    work: Work,
    /// Why it never reached the device.
    refused: Option<Error>,
    submitted: Instant,
}

#[derive(Default)]
struct Inner {
    entries: VecDeque<Entry>,
    sink: Option<Weak<dyn Sink>>,
    /// The last value given out.
    last: u64,
    closed: bool,
}

/// A device's queue.
pub struct Queue {
    gpu: Arc<Gpu>,
    inner: Mutex<Inner>,
    ready: Condvar,
    limit: Duration,
    times: Mutex<Timebase>,
}

/// How long to poll before the driver is asked to wake us.
const POLL: Duration = Duration::from_micros(100);

impl Queue {
    pub fn new(gpu: Arc<Gpu>, limit: Duration) -> Arc<Queue> {
        Arc::new(Queue {
            gpu,
            inner: Mutex::default(),
            ready: Condvar::new(),
            limit,
            times: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn attach(&self, sink: Weak<dyn Sink>) {
        self.lock().sink = Some(sink);
    }

    pub fn close(&self) {
        self.lock().closed = true;
        self.ready.notify_one();
    }

    /// Submits a job's commands. What the driver refuses is reported like everything else, in order, by the thread.
    pub fn push(&self, job: Job) {
        let any: &dyn Any = job.commands.as_ref();
        let Some(commands) = any.downcast_ref::<GpuCommands>() else {
            let foreign = Error::Kernel("commands of another device".into());
            return self.add(0, Work::Job(job, None), Some(foreign));
        };
        // The mapping is somebody else's code.
        let checked =
            catch_unwind(AssertUnwindSafe(|| commands.kept.check_mappings())).unwrap_or_else(|panic| {
                let reason = panic_message(panic.as_ref());
                Err(Error::Kernel(format!(
                    "a mapping's length could not be asked for: it panicked: {reason}"
                )))
            });
        if let Err(shrank) = checked {
            return self.add(0, Work::Job(job, None), Some(shrank));
        }
        // What cannot be recorded for a timeline runs without.
        let wanted = job.trace.is_some() && self.gpu.used.timestamps;
        let recipe = commands.recipe.as_ref().filter(|_| wanted);
        let traced = recipe.and_then(|(recipe, tracing)| tracing.take(recipe).ok());
        let buffer = traced.as_ref().map_or(commands.buffer.raw, |t| t.buffer.raw);
        drop(self.submit(&[buffer], None, Work::Job(job, traced)));
    }

    /// Submits commands of the driver's own, which `block`'s memory is for.
    pub fn submit_own(&self, buffer: CommandBuffer, block: Arc<Block>) -> Result<()> {
        let raw = buffer.raw;
        self.submit(&[raw], None, Work::Own(buffer, block))
    }

    fn submit(
        &self,
        buffers: &[vk::CommandBuffer],
        wait: Option<(vk::Semaphore, u64)>,
        work: Work,
    ) -> Result<()> {
        // The lock is held over the submission, so the timeline's order is the entries' order.
        let mut inner = self.lock();
        let value = inner.last + 1;
        let (waits, wait_values): (Vec<_>, Vec<_>) = wait.into_iter().unzip();
        let stages = vec![vk::PipelineStageFlags::ALL_COMMANDS; waits.len()];
        let (signals, signal_values) = ([self.gpu.timeline], [value]);
        let mut values = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&wait_values)
            .signal_semaphore_values(&signal_values);
        let info = [vk::SubmitInfo::default()
            .command_buffers(buffers)
            .wait_semaphores(&waits)
            .wait_dst_stage_mask(&stages)
            .signal_semaphores(&signals)
            .push_next(&mut values)];
        let refused = if self.gpu.is_lost() {
            Some(self.gpu.gone("it was lost before".into()))
        } else {
            // SAFETY: the buffers are recorded and kept by the entry until the timeline has passed them; the queue is
            // used under this lock only.
            let result = unsafe { self.gpu.raw.queue_submit(self.gpu.queue, &info, vk::Fence::null()) };
            result.err().map(|e| self.gpu.error("submitting work", e))
        };
        if refused.is_none() {
            inner.last = value;
            self.gpu.submitted.store(value, Ordering::Release);
        }
        let outcome = refused.clone().map_or(Ok(()), Err);
        inner.entries.push_back(Entry { value, work, refused, submitted: Instant::now() });
        drop(inner);
        self.ready.notify_one();
        outcome
    }

    fn add(&self, value: u64, work: Work, refused: Option<Error>) {
        let entry = Entry { value, work, refused, submitted: Instant::now() };
        self.lock().entries.push_back(entry);
        self.ready.notify_one();
    }

    fn next(&self) -> Option<(Entry, Option<Weak<dyn Sink>>)> {
        let mut inner = self.lock();
        loop {
            if let Some(entry) = inner.entries.pop_front() {
                return Some((entry, inner.sink.clone()));
            }
            if inner.closed {
                return None;
            }
            inner = self.ready.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Starts the thread that reports.
    pub fn start(self: &Arc<Self>, counts: Arc<Counts>) -> Result<JoinHandle<()>> {
        counts.threads.fetch_add(1, Ordering::AcqRel);
        let (queue, counted) = (self.clone(), counts.clone());
        let body = move || {
            let mut before = Instant::now();
            while let Some((entry, sink)) = queue.next() {
                before = queue.pass(entry, sink, before);
            }
            // The thread's own share of the device goes before anybody hears that it ended.
            drop(queue);
            counted.threads.fetch_sub(1, Ordering::AcqRel);
        };
        std::thread::Builder::new().name("monel vulkan queue".into()).spawn(body).map_err(|e| {
            counts.threads.fetch_sub(1, Ordering::AcqRel);
            Error::System { what: "starting the Vulkan queue's thread".into(), reason: e.to_string() }
        })
    }

    /// Waits for an entry, finishes it on the host and reports it. Gives the time at which that was.
    fn pass(&self, entry: Entry, sink: Option<Weak<dyn Sink>>, before: Instant) -> Instant {
        let Entry { value, work, refused, submitted } = entry;
        let commands = match &work {
            Work::Job(job, _) => {
                let any: &dyn Any = job.commands.as_ref();
                any.downcast_ref::<GpuCommands>()
            }
            _ => None,
        };
        let began = submitted.max(before);
        let forecast = commands.map(|c| &c.forecast);
        let waited = match refused {
            Some(error) => Err(error),
            // A brake holds for as long as its owner likes.
            None if matches!(work, Work::Brake(_)) => self.wait(value, began, forecast, None),
            None => self.wait(value, began, forecast, Some(self.limit)),
        };
        let noticed = Instant::now();
        let mut result = waited.map_err(|e| (None, e));
        let mut ticks = None;
        if let (Some(commands), Ok(())) = (commands, &result) {
            let finish = catch_unwind(AssertUnwindSafe(|| commands.finish())).unwrap_or_else(|panic| {
                let reason = panic_message(panic.as_ref());
                Err((None, Error::Kernel(format!("the device's thread panicked: {reason}"))))
            });
            match finish {
                Ok(found) => ticks = found,
                Err(error) => result = Err(error),
            }
        }
        if let Work::Job(job, traced) = work {
            if let (Some(traced), Ok(())) = (&traced, &result) {
                ticks = traced.ticks();
            }
            let times = self.times.lock().unwrap_or_else(PoisonError::into_inner).place(
                &self.gpu,
                ticks.as_deref().unwrap_or_default(),
                submitted,
                (began, noticed),
            );
            let (began, ended) =
                times.first().copied().zip(times.last().copied()).unwrap_or((began, noticed));
            if let Some(trace) = &job.trace {
                let track = Track::Queue(self.gpu.id.clone());
                let name = format!("execute {} #{}", job.label.0, job.label.1);
                trace.add(track.clone(), "execute", name, began, ended);
                let any: &dyn Any = job.commands.as_ref();
                let recipe = any.downcast_ref::<GpuCommands>().and_then(|c| c.recipe.as_ref());
                if let (Some((recipe, _)), Some(_)) = (recipe, &traced) {
                    for (label, time) in recipe.labels().zip(times.windows(2)) {
                        trace.add(track.clone(), "op", label.to_string(), time[0], time[1]);
                    }
                }
            }
            let seq = job.seq;
            // Memory that only the job kept alive is free before anybody hears that it is done.
            drop((job, traced));
            if let Some(sink) = sink.and_then(|s| s.upgrade()) {
                sink.completed(Done { seq, result, began, ended });
            }
        }
        noticed
    }

    /// Waits until the timeline has reached a value.
    fn wait(
        &self,
        value: u64,
        began: Instant,
        forecast: Option<&Forecast>,
        limit: Option<Duration>,
    ) -> Result<()> {
        let reached = || {
            // SAFETY: the semaphore lives as long as the device it belongs to.
            match unsafe { self.gpu.raw.get_semaphore_counter_value(self.gpu.timeline) } {
                Ok(now) => Ok(now >= value),
                // No answer yet: the slices below ask again.
                Err(e) if is_short_of_memory(e) => Ok(false),
                Err(e) => Err(self.gpu.unheard(e)),
            }
        };
        if reached()? {
            return Ok(());
        }
        let learn = |overslept| {
            if let Some(forecast) = forecast {
                forecast.learn(began.elapsed(), overslept);
            }
        };
        // A software driver computes on the cores that polling would take.
        if self.gpu.adapter.kind != crate::device::DeviceKind::Software {
            if let Some(nap) = forecast.and_then(|f| f.nap(began.elapsed())) {
                std::thread::sleep(nap);
                if reached()? {
                    learn(true);
                    return Ok(());
                }
            }
            let until = Instant::now() + POLL;
            while Instant::now() < until {
                if reached()? {
                    learn(false);
                    return Ok(());
                }
                std::hint::spin_loop();
            }
        }
        let (semaphores, values) = ([self.gpu.timeline], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        let slice = Duration::from_millis(500).min(limit.unwrap_or(Duration::MAX));
        // Slices, not the clock's time: while the process is stopped (Ctrl-Z), nobody waits.
        let mut waited = Duration::ZERO;
        loop {
            // SAFETY: as above.
            match unsafe { self.gpu.raw.wait_semaphores(&info, slice.as_nanos() as u64) } {
                Ok(()) => {
                    learn(false);
                    return Ok(());
                }
                Err(e) if e == vk::Result::TIMEOUT || is_short_of_memory(e) => {
                    if e != vk::Result::TIMEOUT {
                        std::thread::sleep(slice);
                    }
                    waited += slice;
                    if let Some(limit) = limit.filter(|&limit| waited >= limit) {
                        self.gpu.give_up(limit);
                        let device = self.gpu.adapter.name.clone();
                        return Err(Error::Timeout { device, limit_ms: limit.as_millis() as u64 });
                    }
                }
                Err(e) => return Err(self.gpu.unheard(e)),
            }
            if self.gpu.is_lost() {
                return Err(self.gpu.gone("it was lost before".into()));
            }
        }
    }

    /// Keeps the device from running anything that is committed from now on, until the brake is dropped.
    pub fn brake(&self) -> Result<Brake> {
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: the structures live through the call.
        let raw = unsafe { self.gpu.raw.create_semaphore(&info, None) }
            .map_err(|e| self.gpu.error("making a brake", e))?;
        let semaphore = Arc::new(BrakeSemaphore { gpu: self.gpu.clone(), raw });
        self.submit(&[], Some((raw, 1)), Work::Brake(semaphore.clone()))?;
        Ok(Brake(semaphore))
    }
}

struct BrakeSemaphore {
    gpu: Arc<Gpu>,
    raw: vk::Semaphore,
}

impl Drop for BrakeSemaphore {
    fn drop(&mut self) {
        if self.gpu.still_works() {
            return;
        }
        // SAFETY: the queue's entry, which kept it while the device waited on it, is gone.
        unsafe { self.gpu.raw.destroy_semaphore(self.raw, None) };
    }
}

/// Holds a device's queue until it is dropped.
pub struct Brake(Arc<BrakeSemaphore>);

impl Drop for Brake {
    fn drop(&mut self) {
        let info = vk::SemaphoreSignalInfo::default().semaphore(self.0.raw).value(1);
        // SAFETY: a semaphore of this device that nothing else signals. A lost device does not wait any more.
        let _ = unsafe { self.0.gpu.raw.signal_semaphore(&info) };
    }
}
