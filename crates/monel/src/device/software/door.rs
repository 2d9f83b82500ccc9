//! The pool's door: how threads get into a chunk, and how its owner knows that all have left it.
//!
//! The door is one atomic word (number of the chunk, open bit, workers inside), so closing it and knowing who is inside
//! cannot race: a worker enters by a compare-and-swap that fails once the door is closed. The work is only reused or
//! freed after the door is closed and nobody is inside. Entering acquires what opening released, leaving releases what
//! the owner's wait acquires.
//!
//! Parking: a worker raises its flag, then looks at the door again, then parks; who opens the door looks at the flags
//! afterwards. A sequentially consistent fence stands between the two accesses on either side, so one of them sees the
//! other. Stopping leaves an unpark token behind, which a worker on its way to park finds.
//!
//! Threads stand outside: parking and unparking are the caller's, so that loom runs this file (`tests/loom.rs`).

use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};

const OPEN: u64 = 1 << 16;
const EPOCH: u64 = 1 << 17;
/// How often an idle worker looks at the door before it parks: about 50 µs.
const SPINS: usize = if cfg!(loom) { 1 } else { 4_000 };

/// A door to work of type `T` for a fixed number of workers (fewer than 65,536).
pub struct Door<T> {
    /// Chunk number << 17 | open << 16 | workers inside.
    state: AtomicU64,
    work: AtomicPtr<T>,
    stop: AtomicBool,
    parked: Vec<AtomicBool>,
}

impl<T: Sync> Door<T> {
    /// A closed door.
    pub fn new(workers: usize) -> Door<T> {
        Door {
            state: AtomicU64::new(0),
            work: AtomicPtr::new(std::ptr::null_mut()),
            stop: AtomicBool::new(false),
            parked: (0..workers).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// Lets workers into `work` while `own` runs; returns when nobody is inside any more. `unpark` wakes a worker by
    /// its number. One owner at a time.
    pub fn run(&self, work: &T, unpark: impl Fn(usize), own: impl FnOnce()) {
        self.work.store(std::ptr::from_ref(work).cast_mut(), Ordering::Relaxed);
        self.state.fetch_add(EPOCH | OPEN, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        for (worker, flag) in self.parked.iter().enumerate() {
            if flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::Relaxed) {
                unpark(worker);
            }
        }
        // Closes also when `own` unwinds: the work is the caller's, and goes with it.
        let closing = Closing(&self.state);
        own();
        drop(closing);
    }

    /// A worker's life: calls `visit` for the work behind the door, at most once for each opening, until stopped.
    pub fn serve(&self, me: usize, park: impl Fn(), mut visit: impl FnMut(&T)) {
        let (mut last, mut spins) = (0, 0);
        while !self.stop.load(Ordering::Acquire) {
            let state = self.state.load(Ordering::Relaxed);
            if state & OPEN != 0 && state / EPOCH != last {
                let enter =
                    self.state.compare_exchange_weak(state, state + 1, Ordering::Acquire, Ordering::Relaxed);
                if enter.is_ok() {
                    last = state / EPOCH;
                    // SAFETY: the door was open and counts us inside, so its owner keeps the work until we leave.
                    visit(unsafe { &*self.work.load(Ordering::Relaxed) });
                    self.state.fetch_sub(1, Ordering::Release);
                }
                spins = 0;
                continue;
            }
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
                continue;
            }
            self.parked[me].store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let state = self.state.load(Ordering::Relaxed);
            let missed = state & OPEN != 0 && state / EPOCH != last;
            if !missed && !self.stop.load(Ordering::Acquire) {
                park();
            }
            self.parked[me].store(false, Ordering::Relaxed);
            spins = 0;
        }
    }

    /// Ends the workers' lives; the caller unparks them all afterwards.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }
}

struct Closing<'a>(&'a AtomicU64);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.fetch_and(!OPEN, Ordering::Relaxed);
        let mut spins = 0;
        while self.0.load(Ordering::Acquire) & (OPEN - 1) != 0 {
            relax(&mut spins);
        }
    }
}

/// One turn of a short wait: spin first, then give the core to somebody who may be holding us up.
pub fn relax(spins: &mut u32) {
    *spins += 1;
    if cfg!(not(loom)) && *spins < 2_000 { std::hint::spin_loop() } else { yield_now() }
}

#[cfg(loom)]
use loom::thread::yield_now;
#[cfg(not(loom))]
use std::thread::yield_now;
