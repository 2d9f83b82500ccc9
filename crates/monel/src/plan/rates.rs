//! How long work takes on a device: a rough model, corrected by what was measured.
//!
//! Chunk borders (contract A5) need an estimate before anything ran. A step is bound by its arithmetic or by its bytes,
//! whichever takes longer at the device's rates. The ratio of measured to estimated time is averaged for each of the
//! two kinds, because they have nothing to do with each other: repacking weights says nothing about products.

use crate::ops::Cost;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Nanoseconds at a device's initial rates, by what binds them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// In steps bound by arithmetic.
    pub compute_ns: f64,
    /// In steps bound by memory.
    pub memory_ns: f64,
}

impl AddAssign for Estimate {
    fn add_assign(&mut self, other: Estimate) {
        self.compute_ns += other.compute_ns;
        self.memory_ns += other.memory_ns;
    }
}

impl Estimate {
    /// In all.
    pub fn nominal_ns(&self) -> f64 {
        self.compute_ns + self.memory_ns
    }
}

/// A device's speed.
pub struct Rates {
    flops_per_ns: f64,
    bytes_per_ns: f64,
    /// f64 bits of measured over estimated time: bound by arithmetic, bound by memory.
    corrections: [AtomicU64; 2],
}

impl Rates {
    /// Rates to begin with.
    pub fn new(flops_per_ns: f64, bytes_per_ns: f64) -> Rates {
        let one = || AtomicU64::new(1f64.to_bits());
        Rates { flops_per_ns, bytes_per_ns, corrections: [one(), one()] }
    }

    /// A step's time at the initial rates.
    pub fn estimate(&self, cost: Cost) -> Estimate {
        let (compute_ns, memory_ns) = (cost.flops / self.flops_per_ns, cost.bytes / self.bytes_per_ns);
        match compute_ns > memory_ns {
            true => Estimate { compute_ns, memory_ns: 0.0 },
            false => Estimate { compute_ns: 0.0, memory_ns },
        }
    }

    /// Nanoseconds by what was measured so far.
    pub fn corrected_ns(&self, estimate: Estimate) -> f64 {
        let [compute, memory] = self.parts(estimate);
        compute + memory
    }

    fn parts(&self, estimate: Estimate) -> [f64; 2] {
        let factor = |c: &AtomicU64| f64::from_bits(c.load(Ordering::Relaxed));
        [
            estimate.compute_ns * factor(&self.corrections[0]),
            estimate.memory_ns * factor(&self.corrections[1]),
        ]
    }

    /// Learns from a chunk that took `took`, for the kind that makes up most of it. Chunks under 20 µs say nothing.
    pub fn measured(&self, estimate: Estimate, took: Duration) {
        let parts = self.parts(estimate);
        let total = parts[0] + parts[1];
        let Some(kind) = (0..2).find(|&i| parts[i] * 3.0 > total * 2.0) else { return };
        if estimate.nominal_ns() < 20_000.0 {
            return;
        }
        let correction = &self.corrections[kind];
        let known = f64::from_bits(correction.load(Ordering::Relaxed));
        // The other kind's share is taken at its own estimate.
        let nominal = [estimate.compute_ns, estimate.memory_ns][kind];
        let ratio = ((took.as_nanos() as f64 - parts[1 - kind]) / nominal).clamp(1e-3, 1e6);
        correction.store((0.8 * known + 0.2 * ratio).to_bits(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_follow_measurements_of_their_kind() {
        let rates = Rates::new(10.0, 10.0);
        let memory = rates.estimate(Cost { flops: 100.0, bytes: 200.0 });
        assert_eq!(memory, Estimate { compute_ns: 0.0, memory_ns: 20.0 });
        let large = Estimate { compute_ns: 1e6, memory_ns: 0.0 };
        for _ in 0..50 {
            rates.measured(large, Duration::from_millis(3));
        }
        assert!((rates.corrected_ns(large) / 3e6 - 1.0).abs() < 0.01);
        assert_eq!(rates.corrected_ns(memory), 20.0, "the other kind is not touched");
        rates.measured(Estimate { compute_ns: 10.0, memory_ns: 0.0 }, Duration::from_secs(1));
        assert!((rates.corrected_ns(large) / 3e6 - 1.0).abs() < 0.01, "tiny chunks are ignored");
    }
}
