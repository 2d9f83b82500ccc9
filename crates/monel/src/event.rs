//! Events: order between streams, also of different devices, without blocking the host (contract O4).

use crate::error::Result;
use crate::queue::Gate;
use std::sync::Arc;

/// A point in a stream: open once everything submitted before it is finished. Cheap to clone.
#[derive(Clone)]
pub struct Event {
    pub(crate) gate: Arc<Gate>,
}

impl Event {
    /// The outcome of what came before, once known.
    pub fn result(&self) -> Option<Result<()>> {
        self.gate.get()
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Event({:?})", self.result())
    }
}
