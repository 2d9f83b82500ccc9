//! Reading from memory: the ceiling of decoding.

use super::best_round;
use crate::device::software::pages::Pages;
use crate::device::software::simd::{Isa, sum_sq};
use std::hint::black_box;

/// Floats that are read in all, and by each thread at least: far more than the caches hold.
const ALL: usize = 96 << 20;
const EACH: usize = 16 << 20;
const ROUNDS: usize = 6;

/// Bytes per second that `threads` threads read from memory; `None` when there is no memory to measure with.
///
/// Each thread sums one array from its first element to its last, with loads as wide as the machine has. Several streams
/// a thread, or asking for what comes next, made it no faster.
pub fn read(threads: usize) -> Option<f64> {
    let (threads, isa) = (threads.max(1), Isa::detect());
    let floats = (ALL / threads).max(EACH);
    let arrays = (0..threads).map(|_| Pages::new(floats * 4)).collect::<Option<Vec<Pages>>>()?;
    // SAFETY: the pages are ours alone, aligned, and every bit pattern is a float.
    let slice = |p: &Pages| unsafe { std::slice::from_raw_parts_mut(p.start.as_ptr().cast::<f32>(), floats) };
    let mut data: Vec<&mut [f32]> = arrays.iter().map(slice).collect();
    // Untouched pages would all be the one page of zeros.
    data.iter_mut().for_each(|part| part.fill(1.0));
    let seconds = best_round(threads, ROUNDS, |thread| {
        black_box(sum_sq(isa, data[thread]));
    });
    Some((threads * floats * 4) as f64 / seconds)
}
