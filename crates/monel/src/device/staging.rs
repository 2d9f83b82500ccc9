//! The staging ring: a bound on host bytes that wait to be uploaded (contract T1, T4).
//!
//! Who uploads writes straight into staging memory, which is the driver's own where it has a kind that the device reads
//! by itself; so a byte of a file is touched once on the host. The room is given back when the device has passed the
//! upload. When the ring is full, the caller waits for room, which the queue frees in order; several threads may fill
//! their pieces at once.

use super::driver::Driver;
use crate::error::{Error, Result};
use std::any::Any;
use std::ops::{Deref, DerefMut};
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

    /// Staging memory of `bytes`, at most [`Staging::piece`], with any content. Waits for room first.
    pub fn stage(self: &Arc<Self>, driver: &dyn Driver, bytes: usize) -> Result<StagedBytes> {
        let need = bytes.min(self.limit);
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        while *used > 0 && *used + need > self.limit {
            used = self.freed.wait(used).unwrap_or_else(PoisonError::into_inner);
        }
        *used += need;
        self.peak.fetch_max(*used, Ordering::Relaxed);
        drop(used);
        // Given back also when there is no memory.
        let room = Room { ring: self.clone(), need };
        let bytes = match driver.stage(bytes)? {
            Some(own) => HostBytes(Kind::Driver(own)),
            None => {
                let mut own = Vec::new();
                own.try_reserve_exact(bytes).map_err(|_| Error::host_memory("staging memory", bytes))?;
                own.resize(bytes, 0);
                own.into()
            }
        };
        Ok(StagedBytes { bytes, _room: Some(room) })
    }

    /// Bytes staged now, and the most there ever were.
    pub fn usage(&self) -> (usize, usize) {
        (*self.used.lock().unwrap_or_else(PoisonError::into_inner), self.peak.load(Ordering::Relaxed))
    }
}

/// Bytes on the way to a device; their room in the ring is given back on drop.
pub struct StagedBytes {
    /// The bytes.
    pub bytes: HostBytes,
    _room: Option<Room>,
}

/// Bytes that are bounded by something else than the ring.
impl From<Vec<u8>> for StagedBytes {
    fn from(bytes: Vec<u8>) -> StagedBytes {
        StagedBytes { bytes: bytes.into(), _room: None }
    }
}

struct Room {
    ring: Arc<Staging>,
    need: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        *self.ring.used.lock().unwrap_or_else(PoisonError::into_inner) -= self.need;
        self.ring.freed.notify_all();
    }
}

/// Host memory of a driver's own.
pub trait DriverBytes: Any + Send + Sync {
    /// To read.
    fn bytes(&self) -> &[u8];
    /// To write.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// Host memory, plain or a driver's own.
pub struct HostBytes(Kind);

enum Kind {
    Plain(Vec<u8>),
    Driver(Box<dyn DriverBytes>),
}

impl HostBytes {
    /// What [`Driver::stage`] gave, where this is memory of that driver.
    pub fn of_driver<T: DriverBytes>(&self) -> Option<&T> {
        match &self.0 {
            Kind::Plain(_) => None,
            Kind::Driver(own) => {
                let any: &dyn Any = own.as_ref();
                any.downcast_ref()
            }
        }
    }
}

impl From<Vec<u8>> for HostBytes {
    fn from(bytes: Vec<u8>) -> HostBytes {
        HostBytes(Kind::Plain(bytes))
    }
}

impl Deref for HostBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Kind::Plain(bytes) => bytes,
            Kind::Driver(own) => own.bytes(),
        }
    }
}

impl DerefMut for HostBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Kind::Plain(bytes) => bytes,
            Kind::Driver(own) => own.bytes_mut(),
        }
    }
}
