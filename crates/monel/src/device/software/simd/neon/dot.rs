//! The product step: four rows x 4 signed codes times four activations, into four 32-bit sums.

use std::arch::{aarch64::*, asm};

/// `sum[r] += codes[4 r..4 r + 4] . acts[4 LANE..4 LANE + 4]` with the dot product instruction.
///
/// The compiler's name for it is not stable yet, so this is the instruction itself.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(super) fn with_dotprod<const LANE: usize>(
    mut sum: int32x4_t,
    codes: int8x16_t,
    acts: int8x16_t,
) -> int32x4_t {
    // SAFETY: a pure instruction on registers, present by the function's features.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {codes:v}.16b, {acts:v}.4b[{lane}]",
            sum = inout(vreg) sum,
            codes = in(vreg) codes,
            acts = in(vreg) acts,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// The same on every AArch64: products in 16 bits, added in pairs twice. Two products of -128 x 127 fit.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn without<const LANE: i32>(sum: int32x4_t, codes: int8x16_t, acts: int8x16_t) -> int32x4_t {
    let acts = vreinterpretq_s8_s32(vdupq_laneq_s32::<LANE>(vreinterpretq_s32_s8(acts)));
    let low = vmull_s8(vget_low_s8(codes), vget_low_s8(acts));
    let high = vmull_high_s8(codes, acts);
    vpadalq_s16(sum, vpaddq_s16(low, high))
}
