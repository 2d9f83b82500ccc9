//! The packed matrix product on AVX2.
//!
//! A register holds half a group: 8 rows x 4 codes as unsigned bytes. `maddubs` multiplies them by four activations
//! and adds pairs in 16 bits; four- to six-bit codes allow 8, 4 or 2 such sums to be added before they are widened
//! (`WIDEN`), which is where the speed comes from. Codes stay at the bottom of the byte for that reason, and their
//! centre is taken out as an integer per segment, from the activation block's `excess`. Eight-bit weights would
//! overflow: they run as magnitude times signed activation, widened at once.

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

/// How a format's packed codes become bytes for `maddubs`.
trait Unpack: Format {
    /// Groups whose 16-bit sums can be added without overflow; even, or 1 for signed bytes.
    const WIDEN: usize = match Self::BITS {
        4 => 8,
        5 => 4,
        6 => 2,
        _ => 1,
    };
    /// Column counts of the panels, widest first: what fits into 16 registers.
    const PANELS: &'static [usize] = if Self::BITS == 4 { &[6, 4, 2, 1] } else { &[4, 2, 1] };

    /// Rows 8 `half` to 8 `half` + 7 of groups `2 * pair` and `2 * pair + 1` of a segment of the block at `block`.
    ///
    /// # Safety
    /// AVX2 is there, the block is whole, segment, pair and half are inside it.
    unsafe fn pair(block: *const u8, segment: usize, pair: usize, half: usize) -> [__m256i; 2];
}

/// Scales and minima of a block, before the segments' factors.
#[derive(Clone, Copy)]
struct Header {
    d: __m256,
    m: __m256,
}

#[inline(always)]
unsafe fn header<U: Unpack>(block: *const u8, half: usize) -> Header {
    // SAFETY: the caller's: AVX2 and F16C, and a whole packed block.
    unsafe {
        let eight = |at: usize| _mm256_cvtph_ps(_mm_loadu_si128(block.add(at + 16 * half).cast()));
        Header { d: eight(D), m: if U::HAS_MIN { eight(M) } else { _mm256_setzero_ps() } }
    }
}

/// The rows' scales and minima of one segment.
#[inline(always)]
unsafe fn scales<U: Unpack>(
    header: Header,
    block: *const u8,
    segment: usize,
    half: usize,
) -> (__m256, __m256) {
    if !Layout::<U>::SUB_SCALES {
        return (header.d, header.m);
    }
    // SAFETY: as in `header`.
    unsafe {
        let bytes = |at: usize| _mm_loadl_epi64(block.add(at + 16 * segment + 8 * half).cast());
        let scale = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes(SCALES)));
        let min = match U::HAS_MIN {
            true => _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes(Layout::<U>::MINS))),
            false => header.m,
        };
        (_mm256_mul_ps(header.d, scale), _mm256_mul_ps(header.m, min))
    }
}

/// Half a tile times `NC` columns.
///
/// # Safety
/// As [`super::super::gemm_packed`], for half `half` of tile `tile` and columns `col..col + NC`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn half_by_columns<U: Unpack, const NC: usize>(p: &Product, tile: usize, half: usize, col: usize) {
    // SAFETY: offsets stay inside the tile, the columns' rows and the valid rows of the output.
    unsafe {
        let mut w = p.w.add(tile * p.tile_bytes);
        let mut acts = p.acts.add(col * p.act_stride);
        let mut totals = [_mm256_setzero_ps(); NC];
        let ones = _mm256_set1_epi16(1);
        for _ in 0..p.k / U::VALUES {
            let header = header::<U>(w, half);
            for segment in 0..U::SEGMENTS {
                let (scale, min) = scales::<U>(header, w, segment, half);
                // 16-value segments: two of them share an activation block.
                let first = segment * U::SEGMENT % BLOCK;
                let excess = match (U::SEGMENT == BLOCK, first) {
                    (true, _) => offset_of!(ActBlock, excess),
                    (false, 0) => offset_of!(ActBlock, excess_half),
                    (false, _) => offset_of!(ActBlock, excess_half) + 4,
                };
                let column = |c: usize| acts.add(c * p.act_stride);
                let int =
                    |c: usize, at: usize| _mm256_set1_epi32(column(c).add(at).cast::<i32>().read_unaligned());
                let float =
                    |c: usize, at: usize| _mm256_set1_ps(column(c).add(at).cast::<f32>().read_unaligned());

                let mut sums = [_mm256_setzero_si256(); NC];
                let mut narrow = [_mm256_setzero_si256(); NC];
                for pair in 0..Layout::<U>::GROUPS / 2 {
                    let codes = U::pair(w, segment, pair, half);
                    for (odd, codes) in codes.into_iter().enumerate() {
                        let at = first + 8 * pair + 4 * odd;
                        for (c, (sum, narrow)) in sums.iter_mut().zip(&mut narrow).enumerate() {
                            if U::WIDEN == 1 {
                                let signed = _mm256_sign_epi8(int(c, at), codes);
                                let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), signed);
                                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
                            } else {
                                let pairs = _mm256_maddubs_epi16(codes, int(c, at));
                                let fresh = (2 * pair + odd).is_multiple_of(U::WIDEN);
                                *narrow = if fresh { pairs } else { _mm256_add_epi16(*narrow, pairs) };
                            }
                        }
                    }
                    if U::WIDEN > 1 && (2 * pair + 2).is_multiple_of(U::WIDEN) {
                        for (sum, narrow) in sums.iter_mut().zip(narrow) {
                            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(narrow, ones));
                        }
                    }
                }
                for (c, (total, mut sum)) in totals.iter_mut().zip(sums).enumerate() {
                    if !U::HAS_MIN && U::WIDEN > 1 {
                        // From excess-128 to the code's own centre.
                        let offset = match U::BITS {
                            4 => _mm256_srai_epi32::<4>(int(c, excess)),
                            5 => _mm256_srai_epi32::<3>(int(c, excess)),
                            _ => _mm256_srai_epi32::<2>(int(c, excess)),
                        };
                        sum = _mm256_add_epi32(sum, offset);
                    }
                    let scale = _mm256_mul_ps(scale, float(c, offset_of!(ActBlock, d)));
                    *total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, *total);
                    if U::HAS_MIN {
                        *total = _mm256_fmadd_ps(min, float(c, offset_of!(ActBlock, d_sum)), *total);
                    }
                }
                if (segment + 1) * U::SEGMENT % BLOCK == 0 {
                    acts = acts.add(ACT_BYTES);
                }
            }
            w = w.add(Layout::<U>::BLOCK_BYTES);
        }
        let rows = (p.rows_of(tile) - 8 * half).min(8);
        for (c, total) in totals.into_iter().enumerate() {
            let to = p.out.add((col + c) * p.out_stride + tile * TILE_ROWS + 8 * half);
            if rows == 8 {
                _mm256_storeu_ps(to, total);
            } else {
                let mut eight = [0f32; 8];
                _mm256_storeu_ps(eight.as_mut_ptr(), total);
                std::ptr::copy_nonoverlapping(eight.as_ptr(), to, rows);
            }
        }
    }
}

/// The packed product for every quantized type.
///
/// # Safety
/// As [`super::super::gemm_packed`]; the machine has AVX2, FMA and F16C.
pub(in super::super) unsafe fn gemm(ty: BlockType, p: &Product) {
    with_format!(ty, F => p.for_each_piece(F::PANELS, |tile, col, columns| {
        for half in 0..p.rows_of(tile).div_ceil(8) {
            // SAFETY: the caller's promise; the pieces lie inside the product.
            unsafe {
                match columns {
                    6 => half_by_columns::<F, 6>(p, tile, half, col),
                    4 => half_by_columns::<F, 4>(p, tile, half, col),
                    2 => half_by_columns::<F, 2>(p, tile, half, col),
                    _ => half_by_columns::<F, 1>(p, tile, half, col),
                }
            }
        }
    }), else {});
}

/// The 32 bytes at `p`.
#[inline(always)]
unsafe fn load(p: *const u8) -> __m256i {
    // SAFETY: the caller's: AVX2, and 32 readable bytes.
    unsafe { _mm256_loadu_si256(p.cast()) }
}

/// `value` in every byte.
#[inline(always)]
unsafe fn bytes(value: u8) -> __m256i {
    // SAFETY: the caller's: AVX2.
    unsafe { _mm256_set1_epi8(value as i8) }
}

/// The low and the high nibbles of a pair of groups.
#[inline(always)]
unsafe fn nibbles<F: Format>(block: *const u8, segment: usize, pair: usize, half: usize) -> [__m256i; 2] {
    // SAFETY: the caller's, as `Unpack::pair`.
    unsafe {
        let both = load(block.add(Layout::<F>::low(segment) + 64 * pair + 32 * half));
        let nibble = bytes(0x0f);
        [_mm256_and_si256(both, nibble), _mm256_and_si256(_mm256_srli_epi16::<4>(both), nibble)]
    }
}
