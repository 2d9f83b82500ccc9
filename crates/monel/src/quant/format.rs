//! What all block formats have in common: a block taken apart into codes, scales and minima.
//!
//! Value i of a block is `(d * scales[s]) * (codes[i] - CENTRE) + m * mins[s]` with `s = i / SEGMENT`. The
//! formats without sub-scales have `scales = mins = 1`; the formats without a minimum skip the last term. Both
//! factors in brackets are rounded on their own, which is how the formats are defined.

use half::f16;

pub(crate) use super::kquants::{Q4_K, Q5_K, Q6_K};
pub(crate) use super::legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};

/// Values in the largest block.
pub(crate) const MAX_VALUES: usize = 256;

/// One block, taken apart. Only the first `VALUES` codes and `VALUES / SEGMENT` scales mean anything.
#[derive(Clone)]
pub(crate) struct Block {
    /// Unsigned codes in the order of the values.
    pub codes: [u8; MAX_VALUES],
    /// Scale of the block.
    pub d: f16,
    /// Scale of the minima, with the sign with which it is added.
    pub m: f16,
    /// Integer scale of each segment.
    pub scales: [i8; 16],
    /// Integer minimum of each segment.
    pub mins: [u8; 16],
}

impl Block {
    pub fn new() -> Self {
        Self { codes: [0; MAX_VALUES], d: f16::ZERO, m: f16::ZERO, scales: [1; 16], mins: [1; 16] }
    }

    /// The block's values in `f32` or `f64`.
    #[inline]
    pub fn values<F: Format, R: Real>(&self, dst: &mut [R]) {
        let segments = dst.chunks_exact_mut(F::SEGMENT).zip(self.codes.chunks_exact(F::SEGMENT)).enumerate();
        for (s, (dst, codes)) in segments {
            let scale = R::from_f16(self.d) * R::from_i32(self.scales[s].into());
            let min = R::from_f16(self.m) * R::from_i32(self.mins[s].into());
            for (dst, &code) in dst.iter_mut().zip(codes) {
                let product = scale * R::from_i32(i32::from(code) - F::CENTRE);
                *dst = if F::HAS_MIN { product + min } else { product };
            }
        }
    }
}

/// A quantized block format.
pub(crate) trait Format {
    /// Values of a block.
    const VALUES: usize;
    /// Bytes of a block.
    const BYTES: usize;
    /// Values that share a scale: 32 or 16.
    const SEGMENT: usize;
    /// Bits of a code.
    const BITS: u32;
    /// True when a minimum is added; otherwise the codes are centred at half their range.
    const HAS_MIN: bool;

    /// The code that stands for zero.
    const CENTRE: i32 = if Self::HAS_MIN { 0 } else { 1 << (Self::BITS - 1) };
    /// Segments in a block.
    const SEGMENTS: usize = Self::VALUES / Self::SEGMENT;

    /// Takes `src` (exactly `BYTES`) apart. Formats without sub-scales leave `scales` and `mins` alone.
    fn decode(src: &[u8], block: &mut Block);
    /// Puts a block together; `dst` is exactly `BYTES`.
    fn encode(block: &Block, dst: &mut [u8]);
    /// Chooses scales and codes for `src`, exactly `VALUES` numbers.
    fn quantize(src: &[f32], block: &mut Block);
}

/// The arithmetic that [`Block::values`] needs.
pub(crate) trait Real: Copy + std::ops::Mul<Output = Self> + std::ops::Add<Output = Self> {
    fn from_f16(x: f16) -> Self;
    fn from_i32(x: i32) -> Self;
}

impl Real for f32 {
    fn from_f16(x: f16) -> Self {
        x.to_f32()
    }
    fn from_i32(x: i32) -> Self {
        x as f32 // codes and scales are far below 2^24
    }
}

impl Real for f64 {
    fn from_f16(x: f16) -> Self {
        x.to_f64()
    }
    fn from_i32(x: i32) -> Self {
        x.into()
    }
}

/// The f16 at byte `at`.
#[inline]
pub(super) fn f16_at(src: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([src[at], src[at + 1]])
}
