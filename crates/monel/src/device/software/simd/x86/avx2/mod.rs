//! The packed matrix product on AVX2.
//!
//! A register holds half a group: 8 rows x 4 codes as unsigned bytes. `maddubs` multiplies them by four activations
//! and adds pairs in 16 bits; four- to six-bit codes allow 8, 4 or 2 such sums to be added before they are widened
//! (`WIDEN`), which is where the speed comes from. Codes stay at the bottom of the byte for that reason, and their
//! centre is taken out as an integer per segment, from the activation block's `excess`. Eight-bit weights would
//! overflow: they run as magnitude times signed activation, widened at once.
//!
//! With AVX-VNNI one instruction multiplies, adds fours and adds that to 32 bits, so nothing is widened: the same integers, and
//! the same bits in the results.
//!
//! Sixteen registers hold the sums of few columns, too few to pay for unpacking the weights. So each unpacked segment
//! serves several panels of columns in turn, and the totals go through the first-level cache. Both halves of a tile meet
//! an activation that is loaded once: the two loads of a cycle are what would be short otherwise.

// As in `avx512::vnni`: unrolled loops over registers.
#![allow(clippy::needless_range_loop)]

mod q4;
mod q5;
mod q6;
mod q8;

use super::super::act::{ACT_BYTES, ActBlock, BLOCK};
use super::super::gemm::Product;
use super::super::pack::{D, Layout, M, SCALES, TILE_ROWS};
use crate::quant::{BlockType, format::*, with_format};
use std::arch::x86_64::*;
use std::mem::{MaybeUninit, offset_of};

/// How a format's packed codes become bytes for `maddubs`.
trait Unpack: Format {
    /// Groups whose 16-bit sums can be added without overflow; even, or 1 for signed bytes.
    const WIDEN: usize = match Self::BITS {
        4 => 8,
        5 => 4,
        6 => 2,
        _ => 1,
    };
    /// Rows 8 `half` to 8 `half` + 7 of groups `2 * pair` and `2 * pair + 1` of a segment of the block at `block`.
    ///
    /// # Safety
    /// AVX2 is there, the block is whole, segment, pair and half are inside it.
    unsafe fn pair(block: *const u8, segment: usize, pair: usize, half: usize) -> [__m256i; 2];
}

/// The rows' scales and minima of one segment of a half.
#[inline(always)]
unsafe fn scales<U: Unpack>(block: *const u8, segment: usize, half: usize) -> (__m256, __m256) {
    // SAFETY: the caller's: AVX2 and F16C, and a whole packed block.
    unsafe {
        let eight = |at: usize| _mm256_cvtph_ps(_mm_loadu_si128(block.add(at + 16 * half).cast()));
        let (d, m) = (eight(D), if U::HAS_MIN { eight(M) } else { _mm256_setzero_ps() });
        if !Layout::<U>::SUB_SCALES {
            return (d, m);
        }
        let bytes = |at: usize| _mm_loadl_epi64(block.add(at + 16 * segment + 8 * half).cast());
        let scale = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes(SCALES)));
        if !U::HAS_MIN {
            return (_mm256_mul_ps(d, scale), m);
        }
        let min = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes(Layout::<U>::MINS)));
        (_mm256_mul_ps(d, scale), _mm256_mul_ps(m, min))
    }
}

/// Columns whose sums are in registers together.
const PANEL: usize = 4;

/// Panels that share one unpacked segment of weights, at most; their totals stay in the first-level cache. Unpacking five bits
/// takes two thirds of the time of one panel's products.
const PANELS: usize = 15;

/// Columns whose results are computed together, and tiles. A tile's results alone are one cache line of each column, all on
/// the same few places of the caches where columns lie a power of two apart: so the results of several tiles are collected
/// first, and then stored in longer stretches.
const WIDE: usize = PANEL * PANELS;
const HIGH: usize = 8;

/// How far ahead of the decode path's reads memory is asked for.
const AHEAD: usize = 2048;

/// The codes of a segment: those of both halves, group by group.
type Codes = [[__m256i; 2]; 8];

/// A tile times `panels` panels of `NC` columns, from column `col` on; a panel that would reach past the last column
/// ends there.
///
/// # Safety
/// As [`super::super::gemm_packed`], for tile `tile`; at least `NC` columns, and at most `MOST` panels; the machine has
/// AVX-VNNI where `VNNI` says so.
#[inline(always)]
unsafe fn tile_by_panels<U: Unpack, const MOST: usize, const NC: usize, const VNNI: bool>(
    p: &Product,
    tile: usize,
    col: usize,
    panels: usize,
) {
    let first_of = |panel: usize| (col + panel * NC).min(p.cols - NC);
    // SAFETY: offsets stay inside the tile, the columns' rows and the valid rows of the output.
    unsafe {
        let mut w = p.w.add(tile * p.tile_bytes);
        let mut acts = [std::ptr::null::<u8>(); MOST];
        for (panel, acts) in acts[..panels].iter_mut().enumerate() {
            *acts = p.acts.add(first_of(panel) * p.act_stride);
        }
        let mut totals = [[[_mm256_setzero_ps(); NC]; 2]; MOST];
        // Later panels find the weights in a cache.
        let from_memory = MOST == 1 || col == 0;
        for _ in 0..p.k / U::VALUES {
            for segment in 0..U::SEGMENTS {
                if from_memory {
                    let ahead = w.wrapping_add(Layout::<U>::low(segment) + AHEAD);
                    for line in 0..Layout::<U>::SEGMENT_BYTES.div_ceil(64) {
                        _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(64 * line).cast());
                    }
                }
                let scales = [scales::<U>(w, segment, 0), scales::<U>(w, segment, 1)];
                let mut codes: Codes = [[_mm256_setzero_si256(); 2]; 8];
                for pair in 0..Layout::<U>::GROUPS / 2 {
                    let [low, high] = [U::pair(w, segment, pair, 0), U::pair(w, segment, pair, 1)];
                    codes[2 * pair] = [low[0], high[0]];
                    codes[2 * pair + 1] = [low[1], high[1]];
                }
                let next = if (segment + 1) * U::SEGMENT % BLOCK == 0 { ACT_BYTES } else { 0 };
                for (acts, totals) in acts[..panels].iter_mut().zip(&mut totals) {
                    add::<U, NC, VNNI>(&codes, &scales, segment, *acts, p.act_stride, totals);
                    *acts = acts.add(next);
                }
            }
            w = w.add(Layout::<U>::BLOCK_BYTES);
        }
        for (panel, totals) in totals[..panels].iter().enumerate() {
            for (half, totals) in totals.iter().enumerate() {
                let rows = p.rows_of(tile).saturating_sub(8 * half).min(8);
                for (c, &total) in totals.iter().enumerate() {
                    // Not dereferenced where the half has no rows.
                    let to = p
                        .out
                        .wrapping_add((first_of(panel) + c) * p.out_stride + tile * TILE_ROWS + 8 * half);
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
    }
}

/// Adds one segment's products with `NC` columns, whose activation blocks begin at `acts`. Both halves multiply an
/// activation that is loaded once.
#[inline(always)]
unsafe fn add<U: Unpack, const NC: usize, const VNNI: bool>(
    codes: &Codes,
    scales: &[(__m256, __m256); 2],
    segment: usize,
    acts: *const u8,
    stride: usize,
    totals: &mut [[__m256; NC]; 2],
) {
    // SAFETY: the caller's: AVX2, AVX-VNNI where asked for, and an activation block in each of the columns.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        // Few sums fit into the registers in any order.
        let in_order = |x: __m256i| if NC < PANEL { x } else { keep(x) };
        // 16-value segments: two of them share an activation block.
        let first = segment * U::SEGMENT % BLOCK;
        let int =
            |c: usize, at: usize| _mm256_set1_epi32(acts.add(c * stride + at).cast::<i32>().read_unaligned());
        let float =
            |c: usize, at: usize| _mm256_set1_ps(acts.add(c * stride + at).cast::<f32>().read_unaligned());

        let mut sums = [[_mm256_setzero_si256(); NC]; 2];
        for (group, codes) in codes[..if VNNI { Layout::<U>::GROUPS } else { 0 }].iter().enumerate() {
            for c in 0..NC {
                let x = int(c, first + 4 * group);
                for half in 0..2 {
                    let (codes, x) = match U::WIDEN {
                        1 => (_mm256_abs_epi8(codes[half]), _mm256_sign_epi8(x, codes[half])),
                        _ => (codes[half], x),
                    };
                    sums[half][c] = _mm256_dpbusd_avx_epi32(sums[half][c], codes, x);
                }
            }
        }
        let narrow_groups = if VNNI { 0 } else { Layout::<U>::GROUPS };
        for (part, codes) in codes[..narrow_groups].chunks_exact(U::WIDEN).enumerate() {
            let mut narrow = [[_mm256_setzero_si256(); NC]; 2];
            for (group, codes) in codes.iter().enumerate() {
                let codes = codes.map(in_order);
                for c in 0..NC {
                    let x = int(c, first + 4 * (part * U::WIDEN + group));
                    for half in 0..2 {
                        let pairs = match U::WIDEN {
                            1 => _mm256_maddubs_epi16(
                                _mm256_abs_epi8(codes[half]),
                                _mm256_sign_epi8(x, codes[half]),
                            ),
                            _ => _mm256_maddubs_epi16(codes[half], x),
                        };
                        let narrow = &mut narrow[half][c];
                        *narrow = if group == 0 { pairs } else { in_order(_mm256_add_epi16(*narrow, pairs)) };
                    }
                }
            }
            for half in 0..2 {
                for c in 0..NC {
                    let (sum, wide) = (&mut sums[half][c], _mm256_madd_epi16(narrow[half][c], ones));
                    *sum = if part == 0 { wide } else { in_order(_mm256_add_epi32(*sum, wide)) };
                }
            }
        }
        for c in 0..NC {
            let d = float(c, offset_of!(ActBlock, d));
            for half in 0..2 {
                let (mut sum, (scale, min)) = (sums[half][c], scales[half]);
                if !U::HAS_MIN && U::WIDEN > 1 {
                    let excess = match (U::SEGMENT == BLOCK, first) {
                        (true, _) => int(c, offset_of!(ActBlock, excess)),
                        (false, 0) => int(c, offset_of!(ActBlock, excess_half)),
                        (false, _) => int(c, offset_of!(ActBlock, excess_half) + 4),
                    };
                    // From excess-128 to the code's own centre.
                    let offset = match U::BITS {
                        4 => _mm256_srai_epi32::<4>(excess),
                        5 => _mm256_srai_epi32::<3>(excess),
                        _ => _mm256_srai_epi32::<2>(excess),
                    };
                    sum = _mm256_add_epi32(sum, offset);
                }
                let total = totals[half][c];
                let mut new = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(scale, d), total);
                if U::HAS_MIN {
                    new = _mm256_fmadd_ps(min, float(c, offset_of!(ActBlock, d_sum)), new);
                }
                totals[half][c] = new; // once: it lies in memory
            }
        }
    }
}

/// The packed product for every quantized type.
///
/// # Safety
/// As [`super::super::gemm_packed`]; the machine has AVX2, FMA and F16C.
pub(in super::super) unsafe fn gemm(ty: BlockType, p: &Product) {
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile<U: Unpack, const MOST: usize, const NC: usize>(
        p: &Product,
        at: (usize, usize),
        panels: usize,
    ) {
        // SAFETY: the caller's, as the function called.
        unsafe { tile_by_panels::<U, MOST, NC, false>(p, at.0, at.1, panels) }
    }
    with_format!(ty, F => {
        // SAFETY: the caller's promise.
        unsafe { product(p, &Tiles { two: tile::<F, 1, 2>, one: tile::<F, 1, 1>, few: tile::<F, 1, PANEL>, some: tile::<F, 8, PANEL>, all: tile::<F, PANELS, PANEL> }) }
    }, else {});
}

/// The same with AVX-VNNI.
///
/// # Safety
/// As [`gemm`]; the machine has AVX-VNNI too.
pub(in super::super) unsafe fn gemm_vnni(ty: BlockType, p: &Product) {
    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    unsafe fn tile<U: Unpack, const MOST: usize, const NC: usize>(
        p: &Product,
        at: (usize, usize),
        panels: usize,
    ) {
        // SAFETY: the caller's, as the function called.
        unsafe { tile_by_panels::<U, MOST, NC, true>(p, at.0, at.1, panels) }
    }
    with_format!(ty, F => {
        // SAFETY: the caller's promise.
        unsafe { product(p, &Tiles { two: tile::<F, 1, 2>, one: tile::<F, 1, 1>, few: tile::<F, 1, PANEL>, some: tile::<F, 8, PANEL>, all: tile::<F, PANELS, PANEL> }) }
    }, else {});
}

/// [`tile_by_panels`] of a level and a format: product, tile and first column, panels.
type Tile = unsafe fn(&Product, (usize, usize), usize);

/// By how many columns they take.
struct Tiles {
    one: Tile,
    two: Tile,
    /// A panel.
    few: Tile,
    /// Up to 8 panels.
    some: Tile,
    all: Tile,
}

/// The product with the kernels of a level and a format.
///
/// # Safety
/// As [`super::super::gemm_packed`]; the machine has what the kernels need.
unsafe fn product(p: &Product, tile: &Tiles) {
    if p.cols < PANEL {
        // Few columns are about reading memory: once, and whole cache lines.
        return p.for_each_piece(&[2, 1], |at, col, columns| {
            let tile = if columns == 2 { tile.two } else { tile.one };
            // SAFETY: the caller's promise; the pieces lie inside the product.
            unsafe { tile(p, (at, col), 1) }
        });
    }
    let mut results = [MaybeUninit::<f32>::uninit(); HIGH * TILE_ROWS * WIDE];
    p.for_each_strip((HIGH, WIDE), |tiles, cols| {
        let (stride, first) = (HIGH * TILE_ROWS, tiles.start * TILE_ROWS);
        let out = results.as_mut_ptr().cast::<f32>().wrapping_sub(cols.start * stride + first);
        let piece = Product { out, out_stride: stride, ..*p };
        let panels = cols.len().div_ceil(PANEL);
        for at in tiles.clone() {
            let tile = match panels {
                1 => tile.few,
                // less to clear
                2..=8 => tile.some,
                _ => tile.all,
            };
            // SAFETY: as above; the results of these tiles and columns fill the buffer at most.
            unsafe { tile(&piece, (at, cols.start), panels) }
        }
        let rows = (tiles.end * TILE_ROWS).min(p.valid_rows) - first;
        for c in cols {
            // SAFETY: as above; the rows are valid.
            unsafe {
                let to = p.out.add(c * p.out_stride + first);
                std::ptr::copy_nonoverlapping(out.wrapping_add(c * stride + first), to, rows);
            }
        }
    });
}

/// The same value, computed where this stands: left alone, the compiler turns a chain of additions into a tree, for which
/// there are too few registers.
#[inline]
#[target_feature(enable = "avx2")]
fn keep(mut x: __m256i) -> __m256i {
    // SAFETY: no instruction at all.
    unsafe {
        std::arch::asm!("/* {0} */", inout(ymm_reg) x, options(pure, nomem, nostack, preserves_flags));
    }
    x
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
