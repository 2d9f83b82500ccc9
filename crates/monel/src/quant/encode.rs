//! Choosing scales and codes: the quantizers, one per family of formats.
//!
//! They aim at a small largest error with one pass over the values, not at the last bit of quality: models come
//! quantized, and what the engine quantizes itself is caches and tests. Codes are chosen against the scale as it
//! is stored (f16), so that rounding the scale costs nothing twice.

use super::format::{Block, Format};
use half::f16;

/// To f16, limited to its finite range.
fn to_f16(x: f32) -> f16 {
    f16::from_f32(x.clamp(-65504.0, 65504.0))
}

/// One over `x`, or zero where that is not a number to multiply with.
fn inverse(x: f32) -> f32 {
    let inverse = 1.0 / x;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The value of largest magnitude, with its sign.
fn extreme(src: &[f32]) -> f32 {
    src.iter().fold(0.0, |best: f32, &x| if x.abs() > best.abs() { x } else { best })
}

fn range(src: &[f32]) -> (f32, f32) {
    src.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), &x| (low.min(x), high.max(x)))
}

/// `round(x / scale) + centre` within the codes' range; NaN gives the centre.
fn code<F: Format>(x: f32, inverse: f32) -> u8 {
    let step = (x * inverse).round_ties_even();
    let step = if step.is_nan() { 0.0 } else { step };
    (step + F::CENTRE as f32).clamp(0.0, ((1 << F::BITS) - 1) as f32) as u8
}

fn fill<F: Format>(src: &[f32], codes: &mut [u8], inverse: f32, shift: f32) {
    for (code_out, &x) in codes.iter_mut().zip(src) {
        *code_out = code::<F>(x + shift, inverse);
    }
}

/// Q4_0 and Q5_0: the code range is lopsided (-8..7), so the largest value takes its long side.
pub(super) fn centred<F: Format>(src: &[f32], block: &mut Block) {
    block.d = to_f16(-extreme(src) / F::CENTRE as f32);
    fill::<F>(src, &mut block.codes, inverse(block.d.to_f32()), 0.0);
}

/// Q8_0: -127..127.
pub(super) fn symmetric<F: Format>(src: &[f32], block: &mut Block) {
    block.d = to_f16(extreme(src).abs() / (F::CENTRE - 1) as f32);
    fill::<F>(src, &mut block.codes, inverse(block.d.to_f32()), 0.0);
}

/// Q4_1 and Q5_1: from the smallest to the largest value.
pub(super) fn with_min<F: Format>(src: &[f32], block: &mut Block) {
    let (low, high) = range(src);
    let low = if low.is_finite() { low } else { 0.0 };
    block.m = to_f16(low);
    block.d = to_f16((high - low).max(0.0) / ((1 << F::BITS) - 1) as f32);
    fill::<F>(src, &mut block.codes, inverse(block.d.to_f32()), -block.m.to_f32());
}

/// Q4_K and Q5_K: a range with a minimum of at most zero per segment, scales and minima in 63 steps.
pub(super) fn with_scaled_min<F: Format>(src: &[f32], block: &mut Block) {
    let steps = ((1 << F::BITS) - 1) as f32;
    let (mut scales, mut mins) = ([0f32; 16], [0f32; 16]);
    for (s, src) in src.chunks_exact(F::SEGMENT).enumerate() {
        let (low, high) = range(src);
        let low = low.clamp(-65504.0 * 63.0, 0.0);
        scales[s] = (high.max(low) - low) / steps;
        mins[s] = -low;
    }
    let largest = |x: &[f32]| x.iter().fold(0f32, |a, &b| a.max(b));
    block.d = to_f16(largest(&scales) / 63.0);
    block.m = -to_f16(largest(&mins) / 63.0);
    let (d, m) = (block.d.to_f32(), -block.m.to_f32());
    for (s, src) in src.chunks_exact(F::SEGMENT).enumerate() {
        block.mins[s] = (mins[s] * inverse(m)).round().clamp(0.0, 63.0) as u8;
        block.scales[s] = (scales[s] * inverse(d)).round().clamp(0.0, 63.0) as i8;
        let (scale, min) = (d * f32::from(block.scales[s]), m * f32::from(block.mins[s]));
        fill::<F>(src, &mut block.codes[s * F::SEGMENT..], inverse(scale), min);
    }
}

/// Q6_K: centred segments whose scales are signed bytes.
pub(super) fn scaled_centred<F: Format>(src: &[f32], block: &mut Block) {
    let mut scales = [0f32; 16];
    for (scale, src) in scales.iter_mut().zip(src.chunks_exact(F::SEGMENT)) {
        *scale = -extreme(src) / F::CENTRE as f32;
    }
    block.d = to_f16(-extreme(&scales) / 128.0);
    let d = block.d.to_f32();
    for (s, src) in src.chunks_exact(F::SEGMENT).enumerate() {
        block.scales[s] = (scales[s] * inverse(d)).round().clamp(-128.0, 127.0) as i8;
        let scale = d * f32::from(block.scales[s]);
        fill::<F>(src, &mut block.codes[s * F::SEGMENT..], inverse(scale), 0.0);
    }
}
