//! The packed matrix product on AVX-512 VNNI.
//!
//! A register holds a group: 16 rows x 4 codes as unsigned bytes. `vpdpbusd` multiplies them by four activations,
//! broadcast from memory by the instruction itself, and adds each row's four products to the row's 32-bit lane. One
//! unpacked group serves a panel of up to 12 columns: 12 integer and 12 float accumulators fit into the 32
//! registers.
//!
//! Formats without a minimum are unpacked to excess-128 bytes, whatever their width: shifted up to the top of the
//! byte, with the scale divided accordingly. So one integer of the activation block (`excess`), in which the
//! accumulator starts, takes out the offset of all of them at no cost. A minimum costs one fused multiply-add per
//! segment and column.

mod q4;
mod q5;
mod q6;
mod q8;

use super::super::act::{ACT_BYTES, ActBlock, BLOCK};
use super::super::gemm::Product;
use super::super::pack::{D, Layout, M, SCALES, TILE_ROWS};
use crate::quant::{BlockType, format::*, with_format};
use std::arch::x86_64::*;
use std::mem::offset_of;

/// How far ahead of the decode path's reads memory is asked for: the hardware alone follows the streams of nearly all
/// formats, but not of those whose segments have parts of odd sizes.
const AHEAD: usize = 2048;

/// How a format's packed codes become bytes for `vpdpbusd`.
trait Unpack: Format {
    /// Scale of the unpacked bytes: 2 to the number of bits by which they are shifted up.
    const SHIFTED: f32 = if Self::HAS_MIN { 1.0 } else { (1 << (8 - Self::BITS)) as f32 };

    /// Groups `2 * pair` and `2 * pair + 1` of a segment of the packed block at `block`.
    ///
    /// # Safety
    /// AVX-512 is there, the block is whole, segment and pair are inside it.
    unsafe fn pair(block: *const u8, segment: usize, pair: usize) -> (__m512i, __m512i);
}

/// Scales and minima of a block, before the segments' factors.
#[derive(Clone, Copy)]
struct Header {
    d: __m512,
    m: __m512,
}

#[inline(always)]
unsafe fn header<U: Unpack>(block: *const u8) -> Header {
    // SAFETY: the caller's: AVX-512, and a whole packed block.
    unsafe {
        let half = |at: usize| _mm512_cvtph_ps(_mm256_loadu_si256(block.add(at).cast()));
        let d = half(D);
        Header {
            d: if U::SHIFTED == 1.0 { d } else { _mm512_mul_ps(d, _mm512_set1_ps(1.0 / U::SHIFTED)) },
            m: if U::HAS_MIN { half(M) } else { _mm512_setzero_ps() },
        }
    }
}

/// The rows' scales and minima of one segment.
#[inline(always)]
unsafe fn scales<U: Unpack>(header: Header, block: *const u8, segment: usize) -> (__m512, __m512) {
    if !Layout::<U>::SUB_SCALES {
        return (header.d, header.m);
    }
    // SAFETY: as in `header`.
    unsafe {
        let bytes = |at: usize| _mm_loadu_si128(block.add(at + 16 * segment).cast());
        let scale = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes(SCALES)));
        let min = match U::HAS_MIN {
            true => _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes(Layout::<U>::MINS))),
            false => header.m,
        };
        (_mm512_mul_ps(header.d, scale), _mm512_mul_ps(header.m, min))
    }
}

/// One tile times `NC` columns.
///
/// # Safety
/// As [`super::super::gemm_packed`], for tile `tile` and columns `col..col + NC`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn tile_by_columns<U: Unpack, const NC: usize>(p: &Product, tile: usize, col: usize) {
    // SAFETY: offsets stay inside the tile, the columns' rows and the valid rows of the output.
    unsafe {
        let mut w = p.w.add(tile * p.tile_bytes);
        let mut acts = p.acts.add(col * p.act_stride);
        let mut totals = [_mm512_setzero_ps(); NC];
        for _ in 0..p.k / U::VALUES {
            let header = header::<U>(w);
            for segment in 0..U::SEGMENTS {
                let (scale, min) = scales::<U>(header, w, segment);
                if NC < 12 {
                    let ahead = w.wrapping_add(Layout::<U>::low(segment) + AHEAD);
                    for line in 0..Layout::<U>::SEGMENT_BYTES.div_ceil(64) {
                        _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(64 * line).cast());
                    }
                }
                // 16-value segments: two of them share an activation block.
                let half = segment * U::SEGMENT % BLOCK;
                let excess = match (U::SEGMENT == BLOCK, half) {
                    (true, _) => offset_of!(ActBlock, excess),
                    (false, 0) => offset_of!(ActBlock, excess_half),
                    (false, _) => offset_of!(ActBlock, excess_half) + 4,
                };
                let column = |c: usize| acts.add(c * p.act_stride);
                let int =
                    |c: usize, at: usize| _mm512_set1_epi32(column(c).add(at).cast::<i32>().read_unaligned());
                let float =
                    |c: usize, at: usize| _mm512_set1_ps(column(c).add(at).cast::<f32>().read_unaligned());

                let mut sums = [_mm512_setzero_si512(); NC];
                if !U::HAS_MIN {
                    for (c, sum) in sums.iter_mut().enumerate() {
                        *sum = int(c, excess);
                    }
                }
                for pair in 0..Layout::<U>::GROUPS / 2 {
                    let (even, odd) = U::pair(w, segment, pair);
                    for (c, sum) in sums.iter_mut().enumerate() {
                        *sum = _mm512_dpbusd_epi32(*sum, even, int(c, half + 8 * pair));
                    }
                    for (c, sum) in sums.iter_mut().enumerate() {
                        *sum = _mm512_dpbusd_epi32(*sum, odd, int(c, half + 8 * pair + 4));
                    }
                }
                for (c, (total, sum)) in totals.iter_mut().zip(sums).enumerate() {
                    let scale = _mm512_mul_ps(scale, float(c, offset_of!(ActBlock, d)));
                    *total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, *total);
                    if U::HAS_MIN {
                        *total = _mm512_fmadd_ps(min, float(c, offset_of!(ActBlock, d_sum)), *total);
                    }
                }
                if (segment + 1) * U::SEGMENT % BLOCK == 0 {
                    acts = acts.add(ACT_BYTES);
                }
            }
            w = w.add(Layout::<U>::BLOCK_BYTES);
        }
        let rows = ((1u32 << p.rows_of(tile)) - 1) as __mmask16;
        for (c, total) in totals.into_iter().enumerate() {
            let to = p.out.add((col + c) * p.out_stride + tile * TILE_ROWS);
            _mm512_mask_storeu_ps(to, rows, total);
        }
    }
}

/// The packed product for every quantized type.
///
/// # Safety
/// As [`super::super::gemm_packed`]; the machine has AVX-512 F, BW, VL, DQ and VNNI.
pub(in super::super) unsafe fn gemm(ty: BlockType, p: &Product) {
    with_format!(ty, F => p.for_each_piece(&[12, 8, 4, 2, 1], |tile, col, columns| {
        // SAFETY: the caller's promise; the pieces lie inside the product.
        unsafe {
            match columns {
                12 => tile_by_columns::<F, 12>(p, tile, col),
                8 => tile_by_columns::<F, 8>(p, tile, col),
                4 => tile_by_columns::<F, 4>(p, tile, col),
                2 => tile_by_columns::<F, 2>(p, tile, col),
                _ => tile_by_columns::<F, 1>(p, tile, col),
            }
        }
    }), else {});
}

/// The 64 bytes at `p`.
#[inline(always)]
unsafe fn load(p: *const u8) -> __m512i {
    // SAFETY: the caller's: AVX-512, and 64 readable bytes.
    unsafe { _mm512_loadu_si512(p.cast()) }
}

/// `value` in every byte.
#[inline(always)]
unsafe fn bytes(value: u8) -> __m512i {
    // SAFETY: the caller's: AVX-512.
    unsafe { _mm512_set1_epi8(value as i8) }
}
