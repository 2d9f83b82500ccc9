//! The thread that owns the queue: takes jobs in order, runs them with the pool, reports each.

use super::chunk::SoftChunk;
use super::encode::SoftCommands;
use super::pool::Pool;
use crate::device::Counts;
use crate::device::driver::{Done, Job, Sink};
use crate::device::mapped::check_mapping;
use crate::error::{Error, Result, panic_message};
use crate::trace::Track;
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

#[derive(Default)]
struct Inner {
    jobs: VecDeque<Job>,
    sink: Option<Weak<dyn Sink>>,
    closed: bool,
    /// Whether the thread sleeps: waking costs a system call, and while it works it needs none.
    asleep: bool,
}

/// Jobs on their way to the queue's thread.
#[derive(Default)]
pub struct Jobs {
    inner: Mutex<Inner>,
    ready: Condvar,
}

impl Jobs {
    pub fn attach(&self, sink: Weak<dyn Sink>) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).sink = Some(sink);
    }

    pub fn push(&self, job: Job) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.jobs.push_back(job);
        if std::mem::take(&mut inner.asleep) {
            drop(inner);
            self.ready.notify_one();
        }
    }

    pub fn close(&self) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.ready.notify_one();
    }

    fn next(&self) -> Option<(Job, Option<Weak<dyn Sink>>)> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(job) = inner.jobs.pop_front() {
                return Some((job, inner.sink.clone()));
            }
            if inner.closed {
                return None;
            }
            inner.asleep = true;
            inner = self.ready.wait(inner).unwrap_or_else(PoisonError::into_inner);
            inner.asleep = false;
        }
    }
}

/// Starts the queue's thread.
pub fn start(jobs: Arc<Jobs>, mut pool: Pool, device: String, counts: Arc<Counts>) -> Result<JoinHandle<()>> {
    counts.threads.fetch_add(1, Ordering::AcqRel);
    let on_error = counts.clone();
    let body = move || {
        while let Some((job, sink)) = jobs.next() {
            let done = execute(job, &mut pool, &device);
            if let Some(sink) = sink.and_then(|s| s.upgrade()) {
                sink.completed(done);
            }
        }
        drop(pool);
        counts.threads.fetch_sub(1, Ordering::AcqRel);
    };
    std::thread::Builder::new().name("monel cpu queue".into()).spawn(body).map_err(|e| {
        on_error.threads.fetch_sub(1, Ordering::AcqRel);
        Error::System { what: "starting the software device's thread".into(), reason: e.to_string() }
    })
}

/// Runs one job on this thread and the pool. What panics outside of a kernel (a mapping that cannot say its length) fails
/// its submission, and the queue's thread goes on (contract E1).
pub(crate) fn execute(job: Job, pool: &mut Pool, device: &str) -> Done {
    let (seq, began) = (job.seq, Instant::now());
    let result = catch_unwind(AssertUnwindSafe(|| run(job, pool, device, began))).unwrap_or_else(|panic| {
        let reason = panic_message(panic.as_ref());
        Err((None, Error::Kernel(format!("the device's thread panicked: {reason}"))))
    });
    Done { seq, result, began, ended: Instant::now() }
}

/// Nothing of the job is held when it returns, so memory that only the job kept alive is free before anybody hears that
/// it is done.
fn run(job: Job, pool: &mut Pool, device: &str, began: Instant) -> Result<(), (Option<String>, Error)> {
    let commands: &dyn Any = job.commands.as_ref();
    match commands.downcast_ref::<SoftCommands>() {
        Some(SoftCommands::Chunk(chunk)) => run_chunk(chunk, &job, pool, device, began),
        Some(SoftCommands::Transfer(transfer)) => {
            let result = transfer.run().map_err(|e| (None, e));
            if let Some(trace) = &job.trace {
                let name = format!("execute {}", job.label.0);
                trace.add(track(device), "execute", name, began, Instant::now());
            }
            result
        }
        None => Err((None, Error::Kernel("commands of another device".into()))),
    }
}

fn run_chunk(
    chunk: &SoftChunk,
    job: &Job,
    pool: &mut Pool,
    device: &str,
    began: Instant,
) -> Result<(), (Option<String>, Error)> {
    for (mapping, end) in &chunk.mappings {
        check_mapping(mapping, *end).map_err(|e| (None, e))?;
    }
    if job.trace.is_some() {
        chunk.record_spans();
    }
    pool.run(chunk);
    if let Some(trace) = &job.trace {
        let name = format!("execute {} #{}", job.label.0, job.label.1);
        trace.add(track(device), "execute", name, began, Instant::now());
        for (name, start, end) in chunk.take_spans() {
            trace.add(track(device), "op", name, start, end);
        }
    }
    match chunk.take_failure() {
        Some((op, error)) => Err((Some(op), error)),
        None => Ok(()),
    }
}

fn track(device: &str) -> Track {
    Track::Queue(device.to_string())
}
