//! AArch64: the packed matrix product on NEON, with the dot product and 8-bit matrix instructions where they exist.
//!
//! A register holds a quarter of a group: 4 rows x 4 codes as signed bytes. `sdot` multiplies them by four activations
//! that it picks out of a register of sixteen, and adds each row's four products to the row's 32-bit lane. A step
//! works on up to four quarters by up to four columns, with at most eight sums in flight beside their totals.

mod dot;
mod lanes;
mod unpack;

use super::act::{ACT_BYTES, ActBlock, BLOCK};
use super::gemm::Product;
use super::pack::{D, Layout, M, SCALES, TILE_ROWS};
use crate::quant::{BlockType, with_format};
use dot::{Baseline, Dot, Sdot, Smmla};
pub(super) use lanes::F32x4;
use std::arch::aarch64::*;
use std::mem::offset_of;
use unpack::Unpack;

/// Scales or minima of four rows, in f16.
#[inline(always)]
unsafe fn half(p: *const u8) -> float32x4_t {
    // SAFETY: the caller's: NEON, and eight readable bytes.
    unsafe { vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))) }
}

/// The rows' scales and minima of one segment of a quarter.
#[inline(always)]
unsafe fn scales<U: Unpack>(block: *const u8, segment: usize, quarter: usize) -> (float32x4_t, float32x4_t) {
    // SAFETY: the caller's: NEON, and a whole packed block.
    unsafe {
        let d = half(block.add(D + 8 * quarter));
        let m = if U::HAS_MIN { half(block.add(M + 8 * quarter)) } else { vdupq_n_f32(0.0) };
        if !Layout::<U>::SUB_SCALES {
            return (d, m);
        }
        let bytes = |at: usize| block.add(at + 16 * segment + 4 * quarter).cast::<u32>().read_unaligned();
        let scale = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(bytes(SCALES))));
        let scale = vcvtq_f32_s32(vmovl_s16(vget_low_s16(scale)));
        if !U::HAS_MIN {
            return (vmulq_f32(d, scale), m);
        }
        let min = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(bytes(Layout::<U>::MINS))));
        (vmulq_f32(d, scale), vmulq_f32(m, vcvtq_f32_u32(vmovl_u16(vget_low_u16(min)))))
    }
}

/// `Q` quarters of a tile times `NC` columns.
#[inline(always)]
unsafe fn step<U: Unpack, S: Dot, const Q: usize, const NC: usize>(
    p: &Product,
    tile: usize,
    quarter: usize,
    col: usize,
) {
    // SAFETY: offsets stay inside the tile, the columns' rows and the valid rows of the output.
    unsafe {
        let mut w = p.w.add(tile * p.tile_bytes);
        let mut acts = p.acts.add(col * p.act_stride);
        let mut totals = [[vdupq_n_f32(0.0); NC]; Q];
        for _ in 0..p.k / U::VALUES {
            for segment in 0..U::SEGMENTS {
                // 16-value segments: two of them share an activation block.
                let first = segment * U::SEGMENT % BLOCK;
                let mut sums = [[vdupq_n_s32(0); NC]; Q];
                for quad in 0..Layout::<U>::GROUPS / 4 {
                    let mut x = [vdupq_n_s8(0); NC];
                    for (c, x) in x.iter_mut().enumerate() {
                        *x = vld1q_s8(acts.add(c * p.act_stride + first + 16 * quad).cast());
                    }
                    for (q, sums) in sums.iter_mut().enumerate() {
                        let codes = U::quad(w, segment, quad, quarter + q);
                        S::add(sums, codes, &x);
                    }
                }
                for (q, (totals, sums)) in totals.iter_mut().zip(sums).enumerate() {
                    let (scale, min) = scales::<U>(w, segment, quarter + q);
                    for (c, (total, sum)) in totals.iter_mut().zip(S::finish(sums)).enumerate() {
                        let float =
                            |at: usize| acts.add(c * p.act_stride + at).cast::<f32>().read_unaligned();
                        let scale = vmulq_n_f32(scale, float(offset_of!(ActBlock, d)));
                        *total = vfmaq_f32(*total, vcvtq_f32_s32(sum), scale);
                        if U::HAS_MIN {
                            *total = vfmaq_n_f32(*total, min, float(offset_of!(ActBlock, d_sum)));
                        }
                    }
                }
                if (segment + 1) * U::SEGMENT % BLOCK == 0 {
                    acts = acts.add(ACT_BYTES);
                }
            }
            w = w.add(Layout::<U>::BLOCK_BYTES);
        }
        for (q, totals) in totals.into_iter().enumerate() {
            let rows = p.rows_of(tile).saturating_sub(4 * (quarter + q)).min(4);
            for (c, total) in totals.into_iter().enumerate() {
                // Not dereferenced where the quarter has no rows.
                let to = p.out.wrapping_add((col + c) * p.out_stride + tile * TILE_ROWS + 4 * (quarter + q));
                let mut four = [0f32; 4];
                vst1q_f32(four.as_mut_ptr(), total);
                std::ptr::copy_nonoverlapping(four.as_ptr(), to, rows);
            }
        }
    }
}

/// Covers the quarters of a tile that hold rows, four columns as two quarters at a time, fewer as all four. One column
/// goes through `One`.
#[inline(always)]
unsafe fn piece<U: Unpack, One: Dot, S: Dot>(p: &Product, tile: usize, col: usize, columns: usize) {
    // SAFETY: the caller's promise; a quarter without rows is computed from zeros and not stored.
    unsafe {
        match columns {
            4 => {
                step::<U, S, 2, 4>(p, tile, 0, col);
                if p.rows_of(tile) > 8 {
                    step::<U, S, 2, 4>(p, tile, 2, col);
                }
            }
            2 => step::<U, S, 4, 2>(p, tile, 0, col),
            _ => step::<U, One, 4, 1>(p, tile, 0, col),
        }
    }
}

#[target_feature(enable = "neon")]
unsafe fn baseline<U: Unpack>(p: &Product, tile: usize, col: usize, columns: usize) {
    // SAFETY: the caller's.
    unsafe { piece::<U, Baseline, Baseline>(p, tile, col, columns) }
}

#[target_feature(enable = "neon,dotprod")]
unsafe fn dotprod<U: Unpack>(p: &Product, tile: usize, col: usize, columns: usize) {
    // SAFETY: the caller's.
    unsafe { piece::<U, Sdot, Sdot>(p, tile, col, columns) }
}

#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn i8mm<U: Unpack>(p: &Product, tile: usize, col: usize, columns: usize) {
    // SAFETY: the caller's.
    unsafe { piece::<U, Sdot, Smmla>(p, tile, col, columns) }
}

/// Which product instructions to use.
#[derive(Clone, Copy)]
pub(super) enum Step {
    /// Widening multiplications.
    Baseline,
    /// `sdot`.
    Dot,
    /// `smmla` for two columns and more, `sdot` for one.
    Matrix,
}

/// The packed product for every quantized type.
///
/// # Safety
/// As [`super::gemm_packed`]; the machine has NEON and the instructions of `step`.
pub(super) unsafe fn gemm(ty: BlockType, p: &Product, step: Step) {
    with_format!(ty, F => p.for_each_piece(&[4, 2, 1], |tile, col, columns| {
        // SAFETY: the caller's promise; the pieces lie inside the product.
        unsafe {
            match step {
                Step::Baseline => baseline::<F>(p, tile, col, columns),
                Step::Dot => dotprod::<F>(p, tile, col, columns),
                Step::Matrix => i8mm::<F>(p, tile, col, columns),
            }
        }
    }), else {});
}
