//! The staging ring: a bound on host bytes that wait to be uploaded (contract T1, T4).
//!
//! An upload copies the caller's bytes into staging memory and returns; the room is given back when the device has
//! passed the upload. When the ring is full, the caller waits for room, which the queue frees in order.

use super::driver::StagedBytes;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Room for bytes in staging.
pub struct Staging {
    limit: usize,
    used: Mutex<usize>,
    freed: Condvar,
    peak: AtomicUsize,
}

impl Staging {
    /// A ring of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Staging> {
        Arc::new(Staging { limit, used: Mutex::new(0), freed: Condvar::new(), peak: AtomicUsize::new(0) })
    }

    /// The largest piece that is staged at once: a quarter of the ring, so uploads stream.
    pub fn piece(&self) -> usize {
        (self.limit / 4).max(1)
    }

    /// Copies `rows` runs of `row` bytes, `stride` apart, waiting for room first. At most [`Staging::piece`] bytes.
    pub fn stage(self: &Arc<Self>, bytes: &[u8]) -> StagedBytes {
        let need = bytes.len().min(self.limit);
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        while *used > 0 && *used + need > self.limit {
            used = self.freed.wait(used).unwrap_or_else(PoisonError::into_inner);
        }
        *used += need;
        self.peak.fetch_max(*used, Ordering::Relaxed);
        drop(used);
        StagedBytes { bytes: bytes.to_vec(), room: Some(self.clone()) }
    }

    /// Bytes staged now, and the most there ever were.
    pub fn usage(&self) -> (usize, usize) {
        (*self.used.lock().unwrap_or_else(PoisonError::into_inner), self.peak.load(Ordering::Relaxed))
    }
}

impl Drop for StagedBytes {
    fn drop(&mut self) {
        if let Some(ring) = &self.room {
            *ring.used.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes.len().min(ring.limit);
            ring.freed.notify_all();
        }
    }
}
