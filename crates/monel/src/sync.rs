//! The synchronisation types the queue and the pool's door are built from: std's, loom's when the model checker runs
//! (`--cfg loom`), or shuttle's when random schedules do (`--cfg shuttle`). Shared ownership stays std's `Arc` in all: loom adds nothing to a counter, and its own cannot
//! hold unsized values. Locks never panic: a thread that died while holding one left consistent state behind, because
//! state changes are single assignments under the lock and kernels run outside of it.

#[cfg(loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard, atomic};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, atomic};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic};

/// Locks, also after another holder panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waits for a notification, also after another holder panicked.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner)
}
