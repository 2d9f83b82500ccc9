//! The product steps: 4 rows x 16 signed codes times 16 activations of one column, or of two.
//!
//! The unstable intrinsics are written as the instructions themselves.

use std::arch::{aarch64::*, asm};

/// `sum[r] += codes[4 r..4 r + 4] . acts[4 LANE..4 LANE + 4]` with the dot product instruction.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn with_dotprod<const LANE: usize>(mut sum: int32x4_t, codes: int8x16_t, acts: int8x16_t) -> int32x4_t {
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
fn without<const LANE: i32>(sum: int32x4_t, codes: int8x16_t, acts: int8x16_t) -> int32x4_t {
    let acts = vreinterpretq_s8_s32(vdupq_laneq_s32::<LANE>(vreinterpretq_s32_s8(acts)));
    let low = vmull_s8(vget_low_s8(codes), vget_low_s8(acts));
    let high = vmull_high_s8(codes, acts);
    vpadalq_s16(sum, vpaddq_s16(low, high))
}

/// `sum += [a0 . b0, a0 . b1, a1 . b0, a1 . b1]`: two rows of eight bytes in `a` by two in `b`.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn matrix(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: a pure instruction on registers, present by the function's features.
    unsafe {
        asm!(
            "smmla {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// How sums of a quarter by `NC` columns are formed.
pub(super) trait Dot {
    /// Adds the products of four groups (4 rows x 16 codes) and sixteen activations of each column.
    ///
    /// # Safety
    /// The instructions of this way are there.
    unsafe fn add<const NC: usize>(sums: &mut [int32x4_t; NC], codes: [int8x16_t; 4], x: &[int8x16_t; NC]);

    /// Brings the sums into the order of columns, four rows each.
    ///
    /// # Safety
    /// As `add`.
    #[inline(always)]
    unsafe fn finish<const NC: usize>(sums: [int32x4_t; NC]) -> [int32x4_t; NC] {
        sums
    }
}

/// Every AArch64.
pub(super) struct Baseline;

impl Dot for Baseline {
    #[inline(always)]
    unsafe fn add<const NC: usize>(
        sums: &mut [int32x4_t; NC],
        [a, b, c, d]: [int8x16_t; 4],
        x: &[int8x16_t; NC],
    ) {
        for (sum, &x) in sums.iter_mut().zip(x) {
            // SAFETY: the trait's: NEON.
            unsafe {
                *sum = without::<1>(without::<0>(*sum, a, x), b, x);
                *sum = without::<3>(without::<2>(*sum, c, x), d, x);
            }
        }
    }
}

/// With `sdot`.
pub(super) struct Sdot;

impl Dot for Sdot {
    #[inline(always)]
    unsafe fn add<const NC: usize>(
        sums: &mut [int32x4_t; NC],
        [a, b, c, d]: [int8x16_t; 4],
        x: &[int8x16_t; NC],
    ) {
        for (sum, &x) in sums.iter_mut().zip(x) {
            // SAFETY: the trait's: the dot product instructions.
            unsafe {
                *sum = with_dotprod::<1>(with_dotprod::<0>(*sum, a, x), b, x);
                *sum = with_dotprod::<3>(with_dotprod::<2>(*sum, c, x), d, x);
            }
        }
    }
}

/// With `smmla`, for an even number of columns: sums 2 j and 2 j + 1 hold rows 0, 2 and rows 1, 3 of columns 2 j and
/// 2 j + 1 until `finish`.
pub(super) struct Smmla;

impl Dot for Smmla {
    #[inline(always)]
    unsafe fn add<const NC: usize>(sums: &mut [int32x4_t; NC], codes: [int8x16_t; 4], x: &[int8x16_t; NC]) {
        // SAFETY: the trait's: the matrix instructions.
        unsafe {
            let [a, b, c, d] = codes.map(|codes| vreinterpretq_s32_s8(codes));
            // Eight values of rows 0 and 2, and of rows 1 and 3.
            let even = [vtrn1q_s32(a, b), vtrn1q_s32(c, d)].map(|rows| vreinterpretq_s8_s32(rows));
            let odd = [vtrn2q_s32(a, b), vtrn2q_s32(c, d)].map(|rows| vreinterpretq_s8_s32(rows));
            for (sums, x) in sums.as_chunks_mut::<2>().0.iter_mut().zip(x.as_chunks::<2>().0) {
                let [x, y] = x.map(|x| vreinterpretq_s64_s8(x));
                let (low, high) =
                    (vreinterpretq_s8_s64(vzip1q_s64(x, y)), vreinterpretq_s8_s64(vzip2q_s64(x, y)));
                sums[0] = matrix(matrix(sums[0], even[0], low), even[1], high);
                sums[1] = matrix(matrix(sums[1], odd[0], low), odd[1], high);
            }
        }
    }

    #[inline(always)]
    unsafe fn finish<const NC: usize>(mut sums: [int32x4_t; NC]) -> [int32x4_t; NC] {
        for pair in sums.as_chunks_mut::<2>().0 {
            // SAFETY: the trait's.
            *pair = unsafe { [vtrn1q_s32(pair[0], pair[1]), vtrn2q_s32(pair[0], pair[1])] };
        }
        sums
    }
}
