//! From packed codes to signed bytes: nibbles, fifth bits, two high bits, whole bytes.
//!
//! Formats without a minimum are centred here, so that no offset has to be taken out of the sums.

use super::super::pack::Layout;
use crate::quant::format::*;
use std::arch::aarch64::*;

/// How a format's packed codes become signed bytes.
pub(super) trait Unpack: Format {
    /// Rows 4 `quarter` to 4 `quarter` + 3 of groups `4 * quad` to `4 * quad + 3` of a segment of the block.
    ///
    /// # Safety
    /// NEON is there, the block is whole, segment, quad and quarter are inside it.
    unsafe fn quad(block: *const u8, segment: usize, quad: usize, quarter: usize) -> [int8x16_t; 4];
}

/// Codes minus the format's centre.
#[inline(always)]
unsafe fn centred<F: Format>(codes: [uint8x16_t; 4]) -> [int8x16_t; 4] {
    // SAFETY: the caller's: NEON.
    codes.map(|codes| unsafe { vsubq_s8(vreinterpretq_s8_u8(codes), vdupq_n_s8(F::CENTRE as i8)) })
}

/// The nibbles of four groups.
#[inline(always)]
unsafe fn nibbles<F: Format>(
    block: *const u8,
    segment: usize,
    quad: usize,
    quarter: usize,
) -> [uint8x16_t; 4] {
    // SAFETY: the caller's, as `Unpack::quad`.
    unsafe {
        let low = block.add(Layout::<F>::low(segment) + 128 * quad + 16 * quarter);
        let (a, b) = (vld1q_u8(low), vld1q_u8(low.add(64)));
        let nibble = vdupq_n_u8(15);
        [vandq_u8(a, nibble), vshrq_n_u8::<4>(a), vandq_u8(b, nibble), vshrq_n_u8::<4>(b)]
    }
}

#[inline(always)]
unsafe fn four<F: Format>(block: *const u8, segment: usize, quad: usize, quarter: usize) -> [int8x16_t; 4] {
    // SAFETY: the caller's, as `Unpack::quad`.
    unsafe { centred::<F>(nibbles::<F>(block, segment, quad, quarter)) }
}

#[inline(always)]
unsafe fn five<F: Format>(block: *const u8, segment: usize, quad: usize, quarter: usize) -> [int8x16_t; 4] {
    // SAFETY: the caller's, as `Unpack::quad`.
    unsafe {
        let mut codes = nibbles::<F>(block, segment, quad, quarter);
        let bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
        for (group, codes) in codes.iter_mut().enumerate() {
            let high = block.add(Layout::<F>::high(segment) + 8 * (4 * quad + group) + 2 * quarter);
            let bits = vcombine_u8(vdup_n_u8(*high), vdup_n_u8(*high.add(1)));
            *codes = vorrq_u8(*codes, vandq_u8(vtstq_u8(bits, bit), vdupq_n_u8(16)));
        }
        centred::<F>(codes)
    }
}

#[inline(always)]
unsafe fn six<F: Format>(block: *const u8, segment: usize, quad: usize, quarter: usize) -> [int8x16_t; 4] {
    // SAFETY: the caller's, as `Unpack::quad`.
    unsafe {
        let [a, b, c, d] = nibbles::<F>(block, segment, quad, quarter);
        let high = vld1q_u8(block.add(Layout::<F>::high(segment) + 64 * quad + 16 * quarter));
        let top = vdupq_n_u8(0x30);
        centred::<F>([
            vorrq_u8(a, vandq_u8(vshlq_n_u8::<4>(high), top)),
            vorrq_u8(b, vandq_u8(vshlq_n_u8::<2>(high), top)),
            vorrq_u8(c, vandq_u8(high, top)),
            vorrq_u8(d, vandq_u8(vshrq_n_u8::<2>(high), top)),
        ])
    }
}

#[inline(always)]
unsafe fn eight<F: Format>(block: *const u8, segment: usize, quad: usize, quarter: usize) -> [int8x16_t; 4] {
    // SAFETY: the caller's, as `Unpack::quad`.
    unsafe {
        let low = block.add(Layout::<F>::low(segment) + 256 * quad + 16 * quarter);
        let group = |i: usize| veorq_u8(vld1q_u8(low.add(64 * i)), vdupq_n_u8(0x80));
        [group(0), group(1), group(2), group(3)].map(|codes| vreinterpretq_s8_u8(codes))
    }
}

macro_rules! unpack {
    ($($format:ident: $codes:ident),*) => {$(
        impl Unpack for $format {
            #[inline(always)]
            unsafe fn quad(block: *const u8, segment: usize, quad: usize, quarter: usize) -> [int8x16_t; 4] {
                // SAFETY: the trait's.
                unsafe { $codes::<Self>(block, segment, quad, quarter) }
            }
        }
    )*};
}

unpack!(Q4_0: four, Q4_1: four, Q4_K: four, Q5_0: five, Q5_1: five, Q5_K: five, Q6_K: six, Q8_0: eight);
