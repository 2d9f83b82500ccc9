//! How long a piece of work will take, from how long it took before: the host sleeps through most of it.
//!
//! A sleep hides when the work really ended. What was seen after a sleep that was too long is therefore no measurement:
//! it would be forecast again, and slept through again, although the device (which was at idle clocks, say) has become
//! five times as fast. Such a forecast is halved, so that the next end is seen.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The part of a forecast that is not slept: work varies, and a sleep ends late.
const SPARE: u32 = 32;
/// As much is not slept of short work.
const LEAST_SPARE: Duration = Duration::from_micros(80);

/// A forecast for work that is done again and again; of zero for work never done.
#[derive(Default)]
pub struct Forecast(AtomicU64);

impl Forecast {
    fn expected(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    /// How long to sleep when the work has run for `passed`, if at all.
    pub fn nap(&self, passed: Duration) -> Option<Duration> {
        let expected = self.expected();
        let spare = (expected / SPARE).max(LEAST_SPARE);
        expected.checked_sub(passed + spare).filter(|nap| *nap > LEAST_SPARE)
    }

    /// The work was found done after `took`; `overslept` if it was when a nap ended.
    pub fn learn(&self, took: Duration, overslept: bool) {
        let next = if overslept { took.min(self.expected()) / 2 } else { took };
        self.0.store(u64::try_from(next.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work of this length is waited for; gives when its end was seen.
    fn wait(forecast: &Forecast, work: Duration) -> Duration {
        let nap = forecast.nap(Duration::ZERO).unwrap_or_default();
        let seen = nap.max(work);
        forecast.learn(seen, nap > work);
        seen
    }

    #[test]
    fn a7_slow_work_does_not_make_later_work_look_slow() {
        let (slow, fast) = (Duration::from_millis(30), Duration::from_millis(6));
        let forecast = Forecast::default();
        assert_eq!(forecast.nap(Duration::ZERO), None);
        wait(&forecast, slow);
        assert!(forecast.nap(Duration::ZERO).is_some_and(|nap| nap > slow * 9 / 10 && nap < slow));
        let seen: Vec<Duration> = (0..6).map(|_| wait(&forecast, fast)).collect();
        assert!(seen[0] > fast, "the first of them is overslept");
        assert_eq!(seen[3..], [fast; 3]);
        assert!(forecast.nap(Duration::ZERO).is_some_and(|nap| nap > fast * 9 / 10));
    }

    #[test]
    fn a7_short_work_is_never_slept_through() {
        let forecast = Forecast::default();
        forecast.learn(Duration::from_micros(150), false);
        assert_eq!(forecast.nap(Duration::ZERO), None);
    }
}
