//! The queue's heart: the state machine under its lock, with the condition variable its waiters sleep on.
//!
//! No device, no clock and no thread of its own, so that loom runs exactly this code (`tests/loom.rs`). Commits happen
//! under the lock: the device's order is the order of sequence numbers. Effects are handed out and carried out after
//! unlocking, because wakers, gates and destructors are other people's code.
//!
//! Waiting sleeps until a submission settles and does not spin (contract A7): on the software device the cores are
//! what computes. Devices that signal by polling spin in their driver, where "nearly done" is known.

use super::state::{Commit, Effect, State};
use crate::sync::{Condvar, Mutex, lock, wait};

/// A state machine that several threads share.
pub struct Core<P> {
    inner: Mutex<Inner<P>>,
    changed: Condvar,
}

struct Inner<P> {
    state: State<P>,
    /// Threads that sleep. Notifying costs a system call, so it is done only when there are any.
    waiting: usize,
}

impl<P> Default for Core<P> {
    fn default() -> Self {
        Core { inner: Mutex::new(Inner { state: State::default(), waiting: 0 }), changed: Condvar::new() }
    }
}

impl<P> Core<P> {
    /// Runs `change` on the state, hands what it released to `commit`, wakes who waits. The effects are the caller's
    /// duty.
    pub fn with<R>(
        &self,
        mut commit: impl FnMut(Commit<P>),
        change: impl FnOnce(&mut State<P>) -> R,
    ) -> (R, Vec<Effect<P>>) {
        let mut inner = lock(&self.inner);
        let result = change(&mut inner.state);
        while let Some(next) = inner.state.next_commit() {
            commit(next);
        }
        let effects = inner.state.take_effects();
        let wake = inner.state.take_news() && inner.waiting > 0;
        drop(inner);
        if wake {
            self.changed.notify_all();
        }
        (result, effects)
    }

    /// Looks at the state without changing what may be committed.
    pub fn look<R>(&self, look: impl FnOnce(&mut State<P>) -> R) -> R {
        look(&mut lock(&self.inner).state)
    }

    /// Waits until `ready` gives something; it may only reserve, not release commits. `begin` is called once before
    /// the first sleep, and what it gives lives until the wait is over.
    pub fn wait_until<R, G>(
        &self,
        begin: impl FnOnce() -> G,
        mut ready: impl FnMut(&mut State<P>) -> Option<R>,
    ) -> R {
        let mut inner = lock(&self.inner);
        if let Some(result) = ready(&mut inner.state) {
            return result;
        }
        let _guard = begin();
        inner.waiting += 1;
        loop {
            inner = wait(&self.changed, inner);
            if let Some(result) = ready(&mut inner.state) {
                inner.waiting -= 1;
                return result;
            }
        }
    }
}
