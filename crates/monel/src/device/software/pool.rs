//! The thread pool: entered once per chunk, spin then park, one counter per phase.
//!
//! The queue's thread is worker 0; the others wait for a chunk to open. Inside a chunk, a worker takes pieces of the
//! current phase from an atomic counter; a phase ends when its pieces are done, not when all threads have arrived, so
//! a thread that the system has not scheduled yet holds nobody up and joins wherever the work is by then.
//!
//! Memory order: a piece's results are published by the release increment of the phase's `done` counter, and seen
//! through its acquire load by everybody who goes on to the next phase. The door is one atomic word (number of the
//! chunk, open bit, workers inside), so closing it and knowing who is inside cannot race; a chunk is only reused or
//! freed after the door is closed and nobody is inside.
//!
//! Parking: a worker raises its flag, looks at the door again, then parks; who opens the door looks at the flags after
//! it. Both sides are sequentially consistent there, so one of them sees the other.

use super::chunk::SoftChunk;
use super::simd::Isa;
use crate::device::Counts;
use crate::kernel::Worker;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::thread::{JoinHandle, Thread};

const OPEN: u64 = 1 << 16;
const EPOCH: u64 = 1 << 17;
/// How often an idle worker looks at the door before it parks: about 50 µs.
const SPINS: usize = 4_000;

struct Door {
    /// Chunk number << 17 | open << 16 | workers inside.
    state: AtomicU64,
    chunk: AtomicPtr<SoftChunk>,
    stop: AtomicBool,
    parked: Vec<AtomicBool>,
}

/// The device's threads.
pub struct Pool {
    door: Arc<Door>,
    threads: Vec<Thread>,
    handles: Vec<JoinHandle<()>>,
    own: Worker,
}

impl Pool {
    /// A pool of `threads` in all, one of which is whoever calls [`Pool::run`]. If the system refuses threads, the
    /// pool is smaller.
    pub fn new(threads: usize, isa: Isa, counts: Arc<Counts>) -> Pool {
        let others = threads.saturating_sub(1);
        let door = Arc::new(Door {
            state: AtomicU64::new(0),
            chunk: AtomicPtr::new(std::ptr::null_mut()),
            stop: AtomicBool::new(false),
            parked: (0..others).map(|_| AtomicBool::new(false)).collect(),
        });
        let mut handles = Vec::new();
        for i in 0..others {
            let (door, counts) = (door.clone(), counts.clone());
            counts.threads.fetch_add(1, Ordering::AcqRel);
            let started = std::thread::Builder::new().name(format!("monel cpu {}", i + 1)).spawn({
                let counts = counts.clone();
                move || {
                    wait_for_chunks(&door, i, Worker::new(isa));
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
        self.door.chunk.store(std::ptr::from_ref(chunk).cast_mut(), Ordering::Relaxed);
        self.door.state.fetch_add(EPOCH | OPEN, Ordering::SeqCst);
        for (flag, thread) in self.door.parked.iter().zip(&self.threads) {
            if flag.swap(false, Ordering::SeqCst) {
                thread.unpark();
            }
        }
        chunk.work(&mut self.own, true);
        self.door.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while self.door.state.load(Ordering::Acquire) & (OPEN - 1) != 0 {
            relax(&mut spins);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.door.stop.store(true, Ordering::SeqCst);
        self.threads.iter().for_each(Thread::unpark);
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
    }
}

fn wait_for_chunks(door: &Door, me: usize, mut worker: Worker) {
    let (mut last, mut spins) = (0, 0);
    while !door.stop.load(Ordering::Acquire) {
        let state = door.state.load(Ordering::Acquire);
        let fresh = state & OPEN != 0 && state / EPOCH != last;
        if fresh {
            if door.state.compare_exchange_weak(state, state + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                last = state / EPOCH;
                // SAFETY: the door was open and counts us inside, so the chunk is alive until we leave.
                let chunk = unsafe { &*door.chunk.load(Ordering::Relaxed) };
                chunk.work(&mut worker, false);
                door.state.fetch_sub(1, Ordering::AcqRel);
                spins = 0;
            }
            continue;
        }
        spins += 1;
        if spins < SPINS {
            std::hint::spin_loop();
            continue;
        }
        door.parked[me].store(true, Ordering::SeqCst);
        let state = door.state.load(Ordering::SeqCst);
        let missed = state & OPEN != 0 && state / EPOCH != last;
        if !missed && !door.stop.load(Ordering::SeqCst) {
            std::thread::park();
        }
        door.parked[me].store(false, Ordering::SeqCst);
        spins = 0;
    }
}

/// One turn of a short wait: spin first, then give the core to somebody who may be holding us up.
pub fn relax(spins: &mut u32) {
    *spins += 1;
    if *spins < 2_000 { std::hint::spin_loop() } else { std::thread::yield_now() }
}
