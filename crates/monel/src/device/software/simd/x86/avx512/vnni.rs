//! With VNNI: `vpdpbusd` multiplies a group by four broadcast activations and adds each row's four products to the
//! row's lane. One tile times many columns would load an operand for every multiplication, all that two load ports
//! can do; so two tiles share what is broadcast to up to 8 columns, in 16 integer accumulators. Totals go through
//! the first-level cache where they find no register.
//!
//! Formats without a minimum are unpacked to excess-128 bytes, whatever their width, with the scale divided
//! accordingly. So one integer of the activation block (`excess`), in which the accumulator starts, takes out the
//! offset of all of them at no cost. A minimum costs one fused multiply-add per segment and column.

// Loops over registers run over their numbers: with constant bounds they are unrolled into straight code.
#![allow(clippy::needless_range_loop)]

use super::*;

/// `TILES` tiles times `NC` columns.
///
/// # Safety
/// As [`super::super::super::gemm_packed`], for tiles from `tile` on and columns `col..col + NC`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn tiles_by_columns<U: Unpack, const TILES: usize, const NC: usize>(
    p: &Product,
    tile: usize,
    col: usize,
) {
    // SAFETY: offsets stay inside the tiles, the columns' rows and the valid rows of the output.
    unsafe {
        let mut w = p.w.add(tile * p.tile_bytes);
        let mut acts = p.acts.add(col * p.act_stride);
        let mut totals = [[_mm512_setzero_ps(); NC]; TILES];
        // Later panels find the weights in a cache.
        let from_memory = col == 0;
        for _ in 0..p.k / U::VALUES {
            for segment in 0..U::SEGMENTS {
                // 16-value segments: two of them share an activation block.
                let half = segment * U::SEGMENT % BLOCK;
                let column = |c: usize| acts.add(c * p.act_stride);
                let int =
                    |c: usize, at: usize| _mm512_set1_epi32(column(c).add(at).cast::<i32>().read_unaligned());
                let float =
                    |c: usize, at: usize| _mm512_set1_ps(column(c).add(at).cast::<f32>().read_unaligned());

                let mut sums = [[_mm512_setzero_si512(); NC]; TILES];
                for t in 0..TILES {
                    if from_memory {
                        prefetch_ahead::<U>(w.add(t * p.tile_bytes), segment);
                    }
                }
                if !U::HAS_MIN {
                    for c in 0..NC {
                        let excess = int(c, excess_at::<U>(half));
                        for t in 0..TILES {
                            sums[t][c] = excess;
                        }
                    }
                }
                for pair in 0..Layout::<U>::GROUPS / 2 {
                    let mut codes = [(_mm512_setzero_si512(), _mm512_setzero_si512()); TILES];
                    for t in 0..TILES {
                        codes[t] = U::excess(w.add(t * p.tile_bytes), segment, pair);
                    }
                    for c in 0..NC {
                        let x = int(c, half + 8 * pair);
                        for t in 0..TILES {
                            sums[t][c] = _mm512_dpbusd_epi32(sums[t][c], codes[t].0, x);
                        }
                    }
                    for c in 0..NC {
                        let x = int(c, half + 8 * pair + 4);
                        for t in 0..TILES {
                            sums[t][c] = _mm512_dpbusd_epi32(sums[t][c], codes[t].1, x);
                        }
                    }
                }
                let mut by = [(_mm512_setzero_ps(), _mm512_setzero_ps()); TILES];
                for t in 0..TILES {
                    let w = w.add(t * p.tile_bytes);
                    by[t] = scales::<U>(header::<U>(w, U::SHIFTED), w, segment);
                }
                for c in 0..NC {
                    let d = float(c, offset_of!(ActBlock, d));
                    for t in 0..TILES {
                        let scale = _mm512_mul_ps(by[t].0, d);
                        totals[t][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[t][c]), scale, totals[t][c]);
                    }
                    if U::HAS_MIN {
                        let d_sum = float(c, offset_of!(ActBlock, d_sum));
                        for t in 0..TILES {
                            totals[t][c] = _mm512_fmadd_ps(by[t].1, d_sum, totals[t][c]);
                        }
                    }
                }
                if (segment + 1) * U::SEGMENT % BLOCK == 0 {
                    acts = acts.add(ACT_BYTES);
                }
            }
            w = w.add(Layout::<U>::BLOCK_BYTES);
        }
        for (t, totals) in totals.into_iter().enumerate() {
            store(p, tile + t, col, totals);
        }
    }
}

/// The packed product for every quantized type.
///
/// # Safety
/// As [`super::super::super::gemm_packed`]; the machine has AVX-512 F, BW, VL, DQ and VNNI.
pub(in super::super::super) unsafe fn gemm(ty: BlockType, p: &Product) {
    with_format!(ty, F => p.for_each_block(|tile, tiles, col, columns| {
        // SAFETY: the caller's promise; the pieces lie inside the product.
        unsafe {
            if columns >= 4 {
                p.claim(tile, tiles, col..col + columns);
            }
            match (tiles, columns) {
                (2, 8) => tiles_by_columns::<F, 2, 8>(p, tile, col),
                (2, 7) => tiles_by_columns::<F, 2, 7>(p, tile, col),
                (2, 6) => tiles_by_columns::<F, 2, 6>(p, tile, col),
                (2, 5) => tiles_by_columns::<F, 2, 5>(p, tile, col),
                (2, 4) => tiles_by_columns::<F, 2, 4>(p, tile, col),
                (_, 4) => tiles_by_columns::<F, 1, 4>(p, tile, col),
                (_, 2) => tiles_by_columns::<F, 1, 2>(p, tile, col),
                _ => tiles_by_columns::<F, 1, 1>(p, tile, col),
            }
        }
    }), else {});
}
