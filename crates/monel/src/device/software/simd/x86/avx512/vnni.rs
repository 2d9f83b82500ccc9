//! With VNNI: `vpdpbusd` multiplies a group by four activations, broadcast from memory by the instruction itself,
//! and adds each row's four products to the row's lane. One unpacked group serves a panel of up to 12 columns: 12
//! integer and 12 float accumulators fit into the 32 registers.
//!
//! Formats without a minimum are unpacked to excess-128 bytes, whatever their width, with the scale divided
//! accordingly. So one integer of the activation block (`excess`), in which the accumulator starts, takes out the
//! offset of all of them at no cost. A minimum costs one fused multiply-add per segment and column.

use super::*;

/// One tile times `NC` columns.
///
/// # Safety
/// As [`super::super::super::gemm_packed`], for tile `tile` and columns `col..col + NC`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn tile_by_columns<U: Unpack, const NC: usize>(p: &Product, tile: usize, col: usize) {
    // SAFETY: offsets stay inside the tile, the columns' rows and the valid rows of the output.
    unsafe {
        let mut w = p.w.add(tile * p.tile_bytes);
        let mut acts = p.acts.add(col * p.act_stride);
        let mut totals = [_mm512_setzero_ps(); NC];
        for _ in 0..p.k / U::VALUES {
            let header = header::<U>(w, U::SHIFTED);
            for segment in 0..U::SEGMENTS {
                let (scale, min) = scales::<U>(header, w, segment);
                if NC < 12 {
                    prefetch_ahead::<U>(w, segment);
                }
                // 16-value segments: two of them share an activation block.
                let half = segment * U::SEGMENT % BLOCK;
                let column = |c: usize| acts.add(c * p.act_stride);
                let int =
                    |c: usize, at: usize| _mm512_set1_epi32(column(c).add(at).cast::<i32>().read_unaligned());
                let float =
                    |c: usize, at: usize| _mm512_set1_ps(column(c).add(at).cast::<f32>().read_unaligned());

                let mut sums = [_mm512_setzero_si512(); NC];
                if !U::HAS_MIN {
                    for (c, sum) in sums.iter_mut().enumerate() {
                        *sum = int(c, excess_at::<U>(half));
                    }
                }
                for pair in 0..Layout::<U>::GROUPS / 2 {
                    let (even, odd) = U::excess(w, segment, pair);
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
        store(p, tile, col, totals);
    }
}

/// The packed product for every quantized type.
///
/// # Safety
/// As [`super::super::super::gemm_packed`]; the machine has AVX-512 F, BW, VL, DQ and VNNI.
pub(in super::super::super) unsafe fn gemm(ty: BlockType, p: &Product) {
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
