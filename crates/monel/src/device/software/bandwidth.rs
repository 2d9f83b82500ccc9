//! How fast the machine's memory can be read: the ceiling of decoding, measured where and when it is quoted.

use super::pages::Pages;
use super::simd::{self, Isa};
use std::time::Instant;

/// Floats that no cache holds, per thread.
const FLOATS: usize = 48 << 20;
const ROUNDS: usize = 6;

/// Bytes per second that `threads` threads read from memory, the best of a few rounds of summing squares; `None` when
/// there is no memory to measure with.
pub fn read_bandwidth(threads: usize) -> Option<f64> {
    let (threads, isa) = (threads.max(1), Isa::detect());
    let mut arrays = Vec::new();
    for _ in 0..threads {
        arrays.push(Pages::new(FLOATS * 4)?);
    }
    // SAFETY: the pages are ours alone, aligned, and every bit pattern is a float.
    let slice = |p: &Pages| unsafe { std::slice::from_raw_parts_mut(p.start.as_ptr().cast::<f32>(), FLOATS) };
    let mut data: Vec<&mut [f32]> = arrays.iter().map(slice).collect();
    // Untouched pages would all be the one page of zeros.
    data.iter_mut().for_each(|part| part.fill(1.0));
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        std::thread::scope(|scope| {
            for part in &data {
                scope.spawn(|| std::hint::black_box(simd::sum_sq(isa, part)));
            }
        });
        best = best.min(began.elapsed().as_secs_f64());
    }
    Some((threads * FLOATS * 4) as f64 / best)
}
