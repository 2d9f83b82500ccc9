//! The packed matrix product on AVX-512: with VNNI (`vnni`), without (`maddubs`), and with AMX
//! for many columns (`amx`).
//!
//! A register holds a group: 16 rows x 4 codes as unsigned bytes; four activations, broadcast, are the other operand,
//! and each row's products end up in the row's 32-bit lane. How a format's codes become those bytes stands here, a
//! file for each width: as they are, at the bottom of the byte, and for VNNI shifted up to excess-128 bytes where
//! the format has no minimum.

mod amx;
mod maddubs;
mod q4;
mod q5;
mod q6;
mod q8;
mod vnni;

pub(in super::super) use amx::{FEWEST_TILES, gemm as gemm_amx};
pub(in super::super) use maddubs::gemm as gemm_maddubs;
pub(in super::super) use vnni::gemm as gemm_vnni;

use super::super::act::{ACT_BYTES, ActBlock, BLOCK};
use super::super::gemm::Product;
use super::super::pack::{D, Layout, M, SCALES, TILE_ROWS};
use crate::quant::{BlockType, format::*, with_format};
use std::arch::{asm, x86_64::*};
use std::mem::offset_of;

/// How far ahead of the decode path's reads memory is asked for: the hardware alone follows the streams of nearly all
/// formats, but not of those whose segments have parts of odd sizes.
const AHEAD: usize = 2048;

/// How a format's packed codes become bytes.
trait Unpack: Format {
    /// Scale of the bytes that `excess` gives: 2 to the number of bits by which they are shifted up.
    const SHIFTED: f32 = if Self::HAS_MIN { 1.0 } else { (1 << (8 - Self::BITS)) as f32 };

    /// Groups `2 * pair` and `2 * pair + 1` of a segment of the packed block at `block`: the codes as they are.
    ///
    /// # Safety
    /// AVX-512 is there, the block is whole, segment and pair are inside it.
    unsafe fn codes(block: *const u8, segment: usize, pair: usize) -> (__m512i, __m512i);

    /// The same, as excess-128 bytes for formats without a minimum.
    ///
    /// # Safety
    /// As for `codes`.
    #[inline(always)]
    unsafe fn excess(block: *const u8, segment: usize, pair: usize) -> (__m512i, __m512i) {
        const { assert!(Self::SHIFTED == 1.0) };
        // SAFETY: the same contract.
        unsafe { Self::codes(block, segment, pair) }
    }
}

/// Scales and minima of a block, before the segments' factors.
#[derive(Clone, Copy)]
struct Header {
    d: __m512,
    m: __m512,
}

/// The header of the packed block at `block`, for codes that were multiplied by `shifted`.
#[inline(always)]
unsafe fn header<U: Unpack>(block: *const u8, shifted: f32) -> Header {
    // SAFETY: the caller's: AVX-512, and a whole packed block.
    unsafe {
        let half = |at: usize| _mm512_cvtph_ps(_mm256_loadu_si256(block.add(at).cast()));
        let d = half(D);
        Header {
            d: if shifted == 1.0 { d } else { _mm512_mul_ps(d, _mm512_set1_ps(1.0 / shifted)) },
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

/// Where an activation block keeps what the offset of a segment's codes is taken out with.
#[inline(always)]
fn excess_at<U: Unpack>(half: usize) -> usize {
    match (U::SEGMENT == BLOCK, half) {
        (true, _) => offset_of!(ActBlock, excess),
        (false, 0) => offset_of!(ActBlock, excess_half),
        (false, _) => offset_of!(ActBlock, excess_half) + 4,
    }
}

/// Asks for the segment that is `AHEAD` of this one.
#[inline(always)]
unsafe fn prefetch_ahead<U: Unpack>(block: *const u8, segment: usize) {
    let ahead = block.wrapping_add(Layout::<U>::low(segment) + AHEAD);
    for line in 0..Layout::<U>::SEGMENT_BYTES.div_ceil(64) {
        // SAFETY: a prefetch changes nothing and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(64 * line).cast()) };
    }
}

/// Stores the totals of one tile's valid rows.
#[inline(always)]
unsafe fn store<const NC: usize>(p: &Product, tile: usize, col: usize, totals: [__m512; NC]) {
    let rows = ((1u32 << p.rows_of(tile)) - 1) as __mmask16;
    for (c, total) in totals.into_iter().enumerate() {
        // SAFETY: the caller's: AVX-512, and valid rows of columns `col..col + NC`.
        unsafe {
            let to = p.out.add((col + c) * p.out_stride + tile * TILE_ROWS);
            _mm512_mask_storeu_ps(to, rows, total);
        }
    }
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
