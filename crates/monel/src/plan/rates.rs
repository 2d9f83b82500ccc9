//! How long work takes on a device: a rough model, corrected by what was measured.
//!
//! Chunk borders (contract A5) need an estimate before anything ran. A step costs the larger of its arithmetic and its
//! bytes at the device's rates; the ratio of measured to estimated time is averaged and multiplies later estimates.

use crate::ops::Cost;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A device's speed.
pub struct Rates {
    flops_per_ns: f64,
    bytes_per_ns: f64,
    /// f64 bits of measured / estimated time.
    correction: AtomicU64,
}

impl Rates {
    /// Rates to begin with.
    pub fn new(flops_per_ns: f64, bytes_per_ns: f64) -> Rates {
        Rates { flops_per_ns, bytes_per_ns, correction: AtomicU64::new(1f64.to_bits()) }
    }

    /// Nanoseconds at the initial rates.
    pub fn nominal_ns(&self, cost: Cost) -> f64 {
        (cost.flops / self.flops_per_ns).max(cost.bytes / self.bytes_per_ns)
    }

    /// Measured time over estimated time, averaged.
    pub fn correction(&self) -> f64 {
        f64::from_bits(self.correction.load(Ordering::Relaxed))
    }

    /// Learns from a chunk that was estimated at `nominal_ns` and took `took`. Pieces under 20 µs say nothing.
    pub fn measured(&self, nominal_ns: f64, took: Duration) {
        if nominal_ns < 20_000.0 {
            return;
        }
        let ratio = (took.as_nanos() as f64 / nominal_ns).clamp(1e-3, 1e6);
        let mixed = 0.8 * self.correction() + 0.2 * ratio;
        self.correction.store(mixed.to_bits(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_follow_measurements() {
        let rates = Rates::new(10.0, 10.0);
        assert_eq!(rates.nominal_ns(Cost { flops: 100.0, bytes: 200.0 }), 20.0);
        for _ in 0..50 {
            rates.measured(1e6, Duration::from_millis(3));
        }
        assert!((rates.correction() - 3.0).abs() < 0.01);
        rates.measured(10.0, Duration::from_secs(1));
        assert!((rates.correction() - 3.0).abs() < 0.01, "tiny pieces are ignored");
    }
}
