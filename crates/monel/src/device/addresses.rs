//! Addresses of private memory: those of a range that no process can touch, so a mistaken host access faults at once
//! (contract M1). They come from a window above the largest address that x86-64 (47 or 56 bits) and AArch64 (48 or 52
//! bits) give to programs.

use super::ranges::Ranges;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Alignment of buffers and of mapped views.
pub const PAGE: usize = 4096;

/// First private address; each device has a window of 2^47 bytes above it.
const BASE: u64 = 0x0070_0000_0000_0000;
const WINDOW: u64 = 1 << 47;

/// A device's addresses.
pub struct PrivateAddresses {
    start: u64,
    free: Mutex<Free>,
}

struct Free {
    ranges: Ranges,
    /// Where the last address ended. What was given back is not given out again before the window's end is reached, so
    /// that an address of memory that is gone leads nowhere.
    next: u64,
}

/// Addresses of a piece of memory, given back on drop.
pub struct PrivateAddress {
    of: Arc<PrivateAddresses>,
    at: u64,
    span: u64,
}

impl PrivateAddresses {
    /// A window of its own.
    pub fn new() -> Arc<PrivateAddresses> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // All windows lie under 2^56. From the 65th device on windows are shared, and addresses of two devices may be
        // equal; those of one never are.
        let start = BASE + NEXT.fetch_add(1, Ordering::Relaxed) % 64 * WINDOW;
        Arc::new(PrivateAddresses { start, free: Mutex::new(Free { ranges: Ranges::new(WINDOW), next: 0 }) })
    }

    /// Addresses for `bytes`; `None` when the window is used up.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Option<PrivateAddress> {
        let span = bytes.max(1).checked_next_multiple_of(PAGE)? as u64;
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let next = free.next;
        let at =
            free.ranges.take_from(next, span, PAGE as u64).or_else(|| free.ranges.take(span, PAGE as u64))?;
        free.next = at + span;
        drop(free);
        Some(PrivateAddress { of: self.clone(), at, span })
    }
}

impl PrivateAddress {
    /// The first one.
    pub fn first(&self) -> u64 {
        self.of.start + self.at
    }
}

impl Drop for PrivateAddress {
    fn drop(&mut self) {
        self.of.free.lock().unwrap_or_else(PoisonError::into_inner).ranges.give(self.at, self.span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back() {
        let addresses = PrivateAddresses::new();
        let kept = addresses.take(10).unwrap();
        let short = addresses.take(PAGE).unwrap().first();
        assert_ne!(addresses.take(PAGE).unwrap().first(), short, "not at once");
        for _ in 0..1000 {
            let large = addresses.take(WINDOW as usize / 2).unwrap();
            assert_ne!(large.first(), kept.first());
        }
        assert!(addresses.take(WINDOW as usize).is_none());
        assert!(addresses.take(usize::MAX).is_none());
    }
}
