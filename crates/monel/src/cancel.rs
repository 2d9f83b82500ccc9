//! Cancel tokens: checked between the chunks of a submission (contract E5).
//!
//! What was committed drains, the rest never runs, the submission resolves to `Error::Cancelled`, and the stream stays
//! usable. Tokens are cheap to clone; one token may stand over many submissions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

type Listener = Box<dyn Fn() -> bool + Send>;

/// Says "stop" to submissions from any thread.
#[derive(Clone, Default)]
pub struct CancelToken {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    cancelled: AtomicBool,
    listeners: Mutex<Vec<(u64, Listener)>>,
}

impl CancelToken {
    /// A token that is not cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Cancels: no further chunk of its submissions is committed.
    pub fn cancel(&self) {
        self.inner.cancelled.store(true, Ordering::Release);
        // Listeners of queues that are gone return false and are dropped.
        self.inner.listeners.lock().unwrap_or_else(PoisonError::into_inner).retain(|(_, poke)| poke());
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancelled.load(Ordering::Acquire)
    }

    /// Calls `poke` on cancel, once per `owner`; it returns whether it wants to stay.
    pub(crate) fn listen(&self, owner: u64, poke: impl Fn() -> bool + Send + 'static) {
        let mut listeners = self.inner.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        if !listeners.iter().any(|(known, _)| *known == owner) {
            listeners.push((owner, Box::new(poke)));
        }
    }
}

impl std::fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CancelToken").field("cancelled", &self.is_cancelled()).finish()
    }
}
