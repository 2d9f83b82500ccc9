//! One in-order queue per device: the state machine behind a lock, and its owner's duties.
//!
//! The owner commits what the state machine releases, wakes who waits, opens gates. Commits happen under the lock, so
//! the device's order is the order of sequence numbers; a driver's `commit` therefore only takes the work over and
//! returns. Waiting threads sleep on one condition variable; futures leave a waker.
//!
//! - [`state`](State): what may be committed, what a completion means; `ask` answers questions about it.
//! - `lane`: one stream's share; `access`: which bytes, and which of them are damaged; `gate`: the inside of an event.
//! - [`core`](Core): the lock and the condition variable round the state; what loom runs.

mod access;
mod ask;
mod core;
mod gate;
mod lane;
mod state;

pub use self::core::Core;
pub use access::Access;
pub use gate::Gate;
pub use state::{Commit, Effect, LaneId, Request, Seq, State, SubmissionId, WINDOW};

use crate::cancel::Poke;
use crate::device::driver::{Commands, Done, Driver, Job, Sink};
use crate::error::Result;
use crate::plan::{Estimate, Rates};
use crate::trace::{Trace, Track};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

/// What a chunk carries through the state machine.
#[derive(Clone)]
pub(crate) struct Payload {
    pub commands: Arc<dyn Commands>,
    pub name: Arc<str>,
    /// Expected nanoseconds at rate 1, for adapting the estimates; 0 for transfers.
    pub expected: Estimate,
}

/// A device's queue.
pub(crate) struct Queue {
    core: Core<Payload>,
    driver: Arc<dyn Driver>,
    /// What is on the device, by its place in the order, with the time it should take.
    expected: Mutex<VecDeque<(Seq, Estimate)>>,
    rates: Arc<Rates>,
    trace: Mutex<Option<Arc<Trace>>>,
    this: Weak<Queue>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    /// A queue over a driver, which reports to it from now on.
    pub fn new(driver: Arc<dyn Driver>, rates: Arc<Rates>) -> Arc<Queue> {
        let queue = Arc::new_cyclic(|this| Queue {
            core: Core::default(),
            driver: driver.clone(),
            expected: Mutex::default(),
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
        let (result, effects) = self.core.with(|commit| self.commit(commit), change);
        for effect in effects {
            match effect {
                // A waker is other people's code; if it panics, the device's thread goes on (contract E1).
                Effect::Wake(waker) => drop(catch_unwind(AssertUnwindSafe(|| waker.wake()))),
                Effect::Open(gate, result) => gate.open(result),
                Effect::Discard(payload) => drop(payload),
                Effect::Forget(waker) => drop(waker),
            }
        }
        result
    }

    /// Asks the state something.
    pub fn look<R>(&self, look: impl FnOnce(&mut State<Payload>) -> R) -> R {
        self.core.look(look)
    }

    fn commit(&self, commit: Commit<Payload>) {
        let trace = self.trace();
        let span = trace
            .as_ref()
            .map(|t| t.span(Track::thread(), "commit", &commit.payload.name, commit.chunk).of(commit.id));
        let Payload { commands, name, expected } = commit.payload;
        lock(&self.expected).push_back((commit.seq, expected));
        self.driver.commit(Job { seq: commit.seq, commands, label: (name, commit.chunk), trace });
        drop(span);
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
    pub fn wait_until<R>(&self, why: &str, ready: impl FnMut(&mut State<Payload>) -> Option<R>) -> R {
        self.core.wait_until(|| self.trace().map(|t| t.span(Track::thread(), "wait", why, 0)), ready)
    }

    /// Waits for a submission's outcome.
    pub fn wait_for(&self, id: SubmissionId) -> Result<()> {
        // The name is only looked up for a timeline.
        let what = self.trace().and_then(|_| self.core.look(|s| s.last_chunk(id)));
        let (name, chunk) = what.unwrap_or_else(|| ("submission".into(), 0));
        self.core.wait_until(
            || self.trace().map(|t| t.span(Track::thread(), "wait", &name, chunk).of(id)),
            |s| s.outcome(id),
        )
    }

    /// The outcome, or the waker is called when there is one.
    pub fn poll(&self, id: SubmissionId, waker: &Waker) -> Option<Result<()>> {
        self.with(|s| s.poll(id, waker))
    }

    /// How long the chunk at `seq` should have taken. Completions come in order, so what is older will not come: a
    /// lost device does not report everything.
    fn expected(&self, seq: Seq) -> Estimate {
        let mut expected = lock(&self.expected);
        while let Some(&(front, ns)) = expected.front()
            && front <= seq
        {
            expected.pop_front();
            if front == seq {
                return ns;
            }
        }
        Estimate::default()
    }
}

impl Poke for Queue {
    fn poke(&self) {
        self.with(|_| ());
    }
}

impl Sink for Queue {
    fn completed(&self, done: Done) {
        let expected = self.expected(done.seq);
        if done.result.is_ok() {
            self.rates.measured(expected, done.ended.saturating_duration_since(done.began));
        }
        self.with(|s| s.completed(done.seq, done.result));
    }
}
