//! How fast the machine's memory can be read: the ceiling of decoding, measured where and when it is quoted.

use std::time::Instant;

/// Bytes that no cache holds, per thread.
const BYTES: usize = 64 << 20;
const ROUNDS: usize = 4;

/// Bytes per second that `threads` threads read from memory: the best of a few rounds of summing large arrays.
pub fn read_bandwidth(threads: usize) -> f64 {
    let threads = threads.max(1);
    let data: Vec<Vec<u64>> = (0..threads).map(|t| vec![t as u64 + 1; BYTES / 8]).collect();
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        std::thread::scope(|scope| {
            for part in &data {
                scope.spawn(|| std::hint::black_box(sum(part)));
            }
        });
        best = best.min(began.elapsed().as_secs_f64());
    }
    (threads * BYTES) as f64 / best
}

/// Sixteen independent sums, so that loads and not additions are the limit.
fn sum(data: &[u64]) -> u64 {
    let mut sums = [0u64; 16];
    for chunk in data.chunks_exact(16) {
        for (s, x) in sums.iter_mut().zip(chunk) {
            *s = s.wrapping_add(*x);
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}
