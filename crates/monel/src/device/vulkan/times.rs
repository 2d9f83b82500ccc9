//! The device's timestamps on the host's clock.
//!
//! Where the driver reads both clocks together, a reading that is not older than a second is the anchor; else the last
//! timestamp of a piece of work is when the host heard of its end. Either way times stay in order, and after the
//! submission and before the moment at which the host knew.

use super::gpu::Gpu;
use std::time::{Duration, Instant};

/// Remembers a common moment of both clocks.
#[derive(Default)]
pub struct Timebase {
    anchor: Option<(u64, Instant)>,
}

/// How long an anchor is good: clocks drift by some microseconds a second.
const FRESH: Duration = Duration::from_secs(1);

impl Timebase {
    /// The moments of timestamps of work that was submitted at `submitted`; the host guesses that it ran from `guess.0`
    /// to `guess.1`.
    pub fn place(
        &mut self,
        gpu: &Gpu,
        ticks: &[u64],
        submitted: Instant,
        guess: (Instant, Instant),
    ) -> Vec<Instant> {
        let Some(&last) = ticks.last() else { return Vec::new() };
        if self.anchor.is_none_or(|(_, at)| at.elapsed() > FRESH) {
            self.anchor = gpu.clocks();
        }
        order(
            &moments(self.anchor.unwrap_or((last, guess.1)), ticks, |a, b| gpu.nanoseconds(a, b)),
            submitted,
            guess.1,
        )
    }
}

fn moments(anchor: (u64, Instant), ticks: &[u64], ns: impl Fn(u64, u64) -> f64) -> Vec<Instant> {
    let (from, at) = anchor;
    let shift = |ns: f64| match Duration::from_nanos(ns.abs() as u64) {
        later if ns >= 0.0 => at.checked_add(later),
        earlier => at.checked_sub(earlier),
    };
    ticks.iter().map(|&t| shift(ns(from, t)).unwrap_or(at)).collect()
}

/// In order, and inside.
fn order(moments: &[Instant], earliest: Instant, latest: Instant) -> Vec<Instant> {
    let mut least = earliest;
    let inside = moments.iter().map(|&m| {
        least = m.clamp(least, latest.max(least));
        least
    });
    inside.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_lie_between_submission_and_notice() {
        let start = Instant::now();
        let at = |us: u64| start + Duration::from_micros(us);
        let ns = |a: u64, b: u64| (b as f64 - a as f64) * 10.0;
        let found = moments((1000, at(50)), &[100, 1000, 1100], ns);
        assert_eq!(found, [at(41), at(50), at(51)]);
        // Two clocks that disagree a little.
        assert_eq!(order(&found, at(45), at(50)), [at(45), at(50), at(50)]);
        assert_eq!(order(&[at(9), at(7)], at(0), at(20)), [at(9), at(9)]);
        // Noticed before it was submitted: nothing panics.
        assert_eq!(order(&found, at(60), at(50)), [at(60); 3]);
    }
}
