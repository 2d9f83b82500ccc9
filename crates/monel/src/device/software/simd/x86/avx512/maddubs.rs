//! Without VNNI: `maddubs` multiplies a group by four activations and adds pairs in 16 bits, where it saturates.
//!
//! Four- to six-bit codes stay at the bottom of the byte: 8, 4 or 2 such sums are added in 16 bits before `madd`
//! widens them (`WIDEN`), the largest below 32,767 (15 x 127 x 2 x 8 = 30,480; 31 x 127 x 2 x 4 = 31,496; 63 x 127 x 2 x 2
//! = 32,004). Their centre is taken out as an integer per segment, from the activation block's `excess`. Eight-bit
//! weights would saturate: they run as magnitude times activation with the weight's sign (128 x 127 x 2 = 32,512), widened
//! at once.

use super::*;

/// How many 16-bit sums of a format can be added.
const fn widen<U: Format>() -> usize {
    match U::BITS {
        4 => 8,
        5 => 4,
        6 => 2,
        _ => 1,
    }
}

/// Columns of the widest panel: formats that are widened once a segment need no 32-bit sums beside the 16-bit ones.
const fn panel<U: Format>() -> usize {
    if widen::<U>() >= U::SEGMENT / 4 { 12 } else { 8 }
}

/// One tile times `NC` columns.
///
/// # Safety
/// As [`super::super::super::gemm_packed`], for tile `tile` and columns `col..col + NC`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn tile_by_columns<U: Unpack, const NC: usize>(p: &Product, tile: usize, col: usize) {
    // SAFETY: offsets stay inside the tile, the columns' rows and the valid rows of the output.
    unsafe {
        let ones = _mm512_set1_epi16(1);
        let mut w = p.w.add(tile * p.tile_bytes);
        let mut acts = p.acts.add(col * p.act_stride);
        let mut totals = [_mm512_setzero_ps(); NC];
        for _ in 0..p.k / U::VALUES {
            let header = header::<U>(w, 1.0);
            for segment in 0..U::SEGMENTS {
                let (scale, min) = scales::<U>(header, w, segment);
                if NC < 8 {
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
                let mut narrow = [_mm512_setzero_si512(); NC];
                for pair in 0..Layout::<U>::GROUPS / 2 {
                    let (even, odd) = U::codes(w, segment, pair);
                    for (group, codes) in [(2 * pair, even), (2 * pair + 1, odd)] {
                        if widen::<U>() == 1 {
                            let codes = _mm512_xor_si512(codes, bytes(0x80)); // from excess-128
                            let (size, negative) = (_mm512_abs_epi8(codes), _mm512_movepi8_mask(codes));
                            for (c, sum) in sums.iter_mut().enumerate() {
                                let x = int(c, half + 4 * group);
                                let x = _mm512_mask_sub_epi8(x, negative, _mm512_setzero_si512(), x);
                                let pairs = _mm512_maddubs_epi16(size, x);
                                *sum = _mm512_add_epi32(*sum, _mm512_madd_epi16(pairs, ones));
                            }
                            continue;
                        }
                        for (c, (sum, narrow)) in sums.iter_mut().zip(&mut narrow).enumerate() {
                            let pairs = _mm512_maddubs_epi16(codes, int(c, half + 4 * group));
                            let first = group.is_multiple_of(widen::<U>());
                            *narrow = if first { pairs } else { _mm512_add_epi16(*narrow, pairs) };
                            if (group + 1).is_multiple_of(widen::<U>()) {
                                *sum = _mm512_add_epi32(*sum, _mm512_madd_epi16(*narrow, ones));
                            }
                        }
                    }
                }
                for (c, (total, mut sum)) in totals.iter_mut().zip(sums).enumerate() {
                    if !U::HAS_MIN && widen::<U>() > 1 {
                        // From excess-128 to the code's own centre.
                        let excess = int(c, excess_at::<U>(half));
                        let centre = match U::BITS {
                            4 => _mm512_srai_epi32::<4>(excess),
                            5 => _mm512_srai_epi32::<3>(excess),
                            _ => _mm512_srai_epi32::<2>(excess),
                        };
                        sum = _mm512_add_epi32(sum, centre);
                    }
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
/// As [`super::super::super::gemm_packed`]; the machine has AVX-512 F, BW, VL and DQ.
pub(in super::super::super) unsafe fn gemm(ty: BlockType, p: &Product) {
    with_format!(ty, F => {
        let widths = if panel::<F>() == 12 { [12, 8, 4, 2, 1].as_slice() } else { &[8, 4, 2, 1] };
        p.for_each_piece(widths, |tile, col, columns| {
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
        })
    }, else {});
}
