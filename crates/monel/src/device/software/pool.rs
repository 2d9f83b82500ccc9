//! The thread pool: entered once per chunk, spin then park, one counter per phase.
//!
//! The queue's thread is worker 0; the others wait at the [`Door`] for a chunk. Inside a chunk, a worker takes pieces
//! of the current phase from an atomic counter; a phase ends when its pieces are done, not when all threads have
//! arrived, so a thread that the system has not scheduled yet holds nobody up and joins wherever the work is by then.
//!
//! Memory order: a piece's results are published by the release increment of the phase's progress, and seen by everybody
//! who acquires its last value and goes on to the next phase. What concerns the chunk as a whole is the
//! door's.

use super::chunk::SoftChunk;
use super::door::Door;
use super::simd::Isa;
use crate::device::Counts;
use crate::kernel::Worker;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{JoinHandle, Thread};

/// The device's threads.
pub struct Pool {
    door: Arc<Door<SoftChunk>>,
    threads: Vec<Thread>,
    handles: Vec<JoinHandle<()>>,
    own: Worker,
}

impl Pool {
    /// A pool of `threads` in all, one of which is whoever calls [`Pool::run`]. If the system refuses threads, the
    /// pool is smaller.
    pub fn new(threads: usize, isa: Isa, counts: Arc<Counts>) -> Pool {
        let others = threads.saturating_sub(1);
        let door = Arc::new(Door::new(others));
        let mut handles = Vec::new();
        for i in 0..others {
            let (door, counts) = (door.clone(), counts.clone());
            counts.threads.fetch_add(1, Ordering::AcqRel);
            let started = std::thread::Builder::new().name(format!("monel cpu {}", i + 1)).spawn({
                let counts = counts.clone();
                move || {
                    let mut worker = Worker::new(isa);
                    door.serve(i, std::thread::park, |chunk: &SoftChunk| chunk.work(&mut worker, false));
                    counts.threads.fetch_sub(1, Ordering::AcqRel);
                }
            });
            match started {
                Ok(handle) => handles.push(handle),
                Err(_) => {
                    counts.threads.fetch_sub(1, Ordering::AcqRel);
                    break;
                }
            }
        }
        let threads = handles.iter().map(|h| h.thread().clone()).collect();
        Pool { door, threads, handles, own: Worker::new(isa) }
    }

    /// Runs a chunk with all threads; returns when nobody touches it any more.
    pub fn run(&mut self, chunk: &SoftChunk) {
        chunk.begin();
        if self.threads.is_empty() || chunk.is_small() {
            chunk.work(&mut self.own, true);
            return;
        }
        let (own, threads) = (&mut self.own, &self.threads);
        let unpark = |worker: usize| threads.get(worker).map_or((), Thread::unpark);
        self.door.run(chunk, unpark, || chunk.work(own, true));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.door.stop();
        self.threads.iter().for_each(Thread::unpark);
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
    }
}
