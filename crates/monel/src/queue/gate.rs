//! A gate: opened once, with a result, by one queue; others wait for it. The inside of an event (contract O4).

use crate::error::Result;
use crate::sync::{Mutex, lock};

/// Closed until somebody opens it with a result.
pub struct Gate {
    state: Mutex<Inner>,
}

struct Inner {
    result: Option<Result<()>>,
    #[allow(clippy::type_complexity)]
    listeners: Vec<Box<dyn FnOnce() + Send>>,
}

impl Default for Gate {
    fn default() -> Self {
        Gate { state: Mutex::new(Inner { result: None, listeners: Vec::new() }) }
    }
}

impl Gate {
    /// The result, once open.
    pub fn get(&self) -> Option<Result<()>> {
        lock(&self.state).result.clone()
    }

    /// Opens the gate and runs the listeners on this thread. Only the first call counts.
    pub fn open(&self, result: Result<()>) {
        let listeners = {
            let mut inner = lock(&self.state);
            inner.result.get_or_insert(result);
            std::mem::take(&mut inner.listeners)
        };
        listeners.into_iter().for_each(|run| run());
    }

    /// Runs `listener` when the gate opens, at once if it is open.
    pub fn on_open(&self, listener: impl FnOnce() + Send + 'static) {
        let mut inner = lock(&self.state);
        if inner.result.is_none() {
            inner.listeners.push(Box::new(listener));
            return;
        }
        drop(inner);
        listener();
    }
}
