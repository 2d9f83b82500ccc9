//! One in-order queue per device: the state machine behind a lock, and its owner's duties.
//!
//! The owner commits what the state machine releases, wakes who waits, opens gates. Commits happen under the lock, so
//! the device's order is the order of sequence numbers; a driver's `commit` therefore only takes the work over and
//! returns. Waiting threads sleep on one condition variable; futures leave a waker.

mod gate;
mod state;

pub use gate::Gate;
pub use state::{Access, Commit, Effect, LaneId, Request, Seq, State, SubmissionId, WINDOW};

use crate::device::driver::{Commands, Done, Driver, Job, Sink};
use crate::error::Result;
use crate::plan::Rates;
use crate::sync::{Condvar, Mutex, lock, wait};
use crate::trace::{Trace, Track};
use std::sync::{Arc, Weak};
use std::task::Waker;

/// What a chunk carries through the state machine.
#[derive(Clone)]
pub(crate) struct Payload {
    pub commands: Arc<dyn Commands>,
    pub name: Arc<str>,
    /// Expected nanoseconds at rate 1, for adapting the estimates; 0 for transfers.
    pub expected_ns: f64,
}

/// A device's queue.
pub(crate) struct Queue {
    state: Mutex<State<Payload>>,
    changed: Condvar,
    driver: Arc<dyn Driver>,
    expected: Mutex<std::collections::VecDeque<(Seq, f64)>>,
    rates: Arc<Rates>,
    trace: Mutex<Option<Arc<Trace>>>,
    this: Weak<Queue>,
}

impl Queue {
    /// A queue over a driver, which reports to it from now on.
    pub fn new(driver: Arc<dyn Driver>, rates: Arc<Rates>) -> Arc<Queue> {
        let queue = Arc::new_cyclic(|this| Queue {
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            driver: driver.clone(),
            expected: Mutex::new(Default::default()),
            rates,
            trace: Mutex::new(None),
            this: this.clone(),
        });
        let sink: Arc<dyn Sink> = queue.clone();
        driver.attach(Arc::downgrade(&sink));
        queue
    }

    /// Runs `change` on the state, commits what it released, carries out its effects.
    pub fn with<R>(&self, change: impl FnOnce(&mut State<Payload>) -> R) -> R {
        let mut state = lock(&self.state);
        let result = change(&mut state);
        while let Some(commit) = state.next_commit() {
            self.commit(commit);
        }
        let effects = state.take_effects();
        drop(state);
        self.changed.notify_all();
        for effect in effects {
            match effect {
                Effect::Wake(waker) => waker.wake(),
                Effect::Open(gate, result) => gate.open(result),
            }
        }
        result
    }

    fn commit(&self, commit: Commit<Payload>) {
        let trace = self.trace();
        let span =
            trace.as_ref().map(|t| t.span(Track::thread(), "commit", &commit.payload.name, commit.chunk));
        lock(&self.expected).push_back((commit.seq, commit.payload.expected_ns));
        let Payload { commands, name, .. } = commit.payload;
        self.driver.commit(Job { seq: commit.seq, commands, label: (name, commit.chunk), trace });
        drop(span);
    }

    /// Tries again to commit: a gate opened or a token was cancelled.
    pub fn poke(&self) {
        self.with(|_| ());
    }

    /// A handle that does not keep the queue alive.
    pub fn weak(&self) -> Weak<Queue> {
        self.this.clone()
    }

    /// The timeline that is being written, if one is.
    pub fn trace(&self) -> Option<Arc<Trace>> {
        lock(&self.trace).clone()
    }

    /// Begins or ends a timeline.
    pub fn set_trace(&self, trace: Option<Arc<Trace>>) {
        *lock(&self.trace) = trace;
    }

    /// Waits until `ready` gives something. Names the wait in the timeline when it really waits.
    pub fn wait_until<R>(&self, why: &str, mut ready: impl FnMut(&mut State<Payload>) -> Option<R>) -> R {
        let mut state = lock(&self.state);
        if let Some(result) = ready(&mut state) {
            return result;
        }
        let trace = self.trace();
        let _span = trace.as_ref().map(|t| t.span(Track::thread(), "wait", why, 0));
        loop {
            state = wait(&self.changed, state);
            if let Some(result) = ready(&mut state) {
                return result;
            }
        }
    }

    /// Waits for a submission's outcome.
    pub fn wait_for(&self, id: SubmissionId) -> Result<()> {
        self.wait_until("submission", |s| s.outcome(id))
    }

    /// The outcome, or the waker is called when there is one.
    pub fn poll(&self, id: SubmissionId, waker: &Waker) -> Option<Result<()>> {
        lock(&self.state).poll(id, waker)
    }
}

impl Sink for Queue {
    fn completed(&self, done: Done) {
        let expected = {
            let mut expected = lock(&self.expected);
            let at = expected.iter().position(|e| e.0 == done.seq);
            at.and_then(|at| expected.remove(at)).map_or(0.0, |e| e.1)
        };
        if done.result.is_ok() {
            self.rates.measured(expected, done.ended.saturating_duration_since(done.began));
        }
        self.with(|s| s.completed(done.seq, done.result));
    }
}
