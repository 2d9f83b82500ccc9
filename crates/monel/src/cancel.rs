//! Cancel tokens: checked between the chunks of a submission (contract E5).
//!
//! What was committed drains, the rest never runs, the submission resolves to `Error::Cancelled`, and the stream stays
//! usable. Tokens are cheap to clone; one token may stand over many submissions, also of several devices.

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock};
use std::sync::{Arc, Weak};

/// A queue that looks at its tokens again when it is poked.
pub(crate) trait Poke: Send + Sync {
    /// Look again.
    fn poke(&self);
}

/// Says "stop" to submissions from any thread.
#[derive(Clone)]
pub struct CancelToken {
    inner: Arc<Inner>,
}

struct Inner {
    cancelled: AtomicBool,
    queues: Mutex<Vec<Weak<dyn Poke>>>,
}

impl Default for CancelToken {
    fn default() -> CancelToken {
        let (cancelled, queues) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        CancelToken { inner: Arc::new(Inner { cancelled, queues }) }
    }
}

impl CancelToken {
    /// A token that is not cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Cancels: no further chunk of its submissions is committed.
    pub fn cancel(&self) {
        self.inner.cancelled.store(true, Ordering::Release);
        // Poked outside of the lock: what a queue wakes may come back to this token.
        let queues: Vec<Arc<dyn Poke>> = lock(&self.inner.queues).iter().filter_map(Weak::upgrade).collect();
        queues.iter().for_each(|queue| queue.poke());
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancelled.load(Ordering::Acquire)
    }

    /// Pokes `queue` on cancel. A queue is kept once, and forgotten when it is gone.
    pub(crate) fn listen(&self, queue: &Weak<dyn Poke>) {
        let mut queues = lock(&self.inner.queues);
        queues.retain(|known| known.strong_count() > 0);
        if !queues.iter().any(|known| known.ptr_eq(queue)) {
            queues.push(queue.clone());
        }
    }
}

impl std::fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CancelToken").field("cancelled", &self.is_cancelled()).finish()
    }
}
