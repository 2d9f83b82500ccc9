//! Pairs of 16-bit integers in the registers of floats.

use super::super::attention::words::Words;
use super::{F32x8, F32x16};
use std::arch::x86_64::*;

// SAFETY of all blocks below: the trait's contract, which is that the instructions are there (AVX2; AVX-512 F and BW) and
// pointers are valid for N values.
impl Words for F32x8 {
    type Pairs = __m256i;

    #[inline(always)]
    unsafe fn load_pairs(p: *const i32) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    unsafe fn splat_pair(p: *const i32) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_set1_epi32(*p) }
    }
    #[inline(always)]
    unsafe fn no_sums() -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn add_products<const VNNI: bool>(a: __m256i, b: __m256i, sums: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe {
            match VNNI {
                true => _mm256_dpwssd_avx_epi32(sums, a, b),
                false => _mm256_add_epi32(sums, _mm256_madd_epi16(a, b)),
            }
        }
    }
    #[inline(always)]
    unsafe fn of_sums(sums: __m256i) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_cvtepi32_ps(sums) })
    }
    #[inline(always)]
    unsafe fn store_words(self, p: *mut i16) {
        // SAFETY: see above.
        unsafe {
            let wide = _mm256_cvtps_epi32(self.0);
            let words = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256::<1>(wide));
            _mm_storeu_si128(p.cast(), words);
        }
    }
    #[inline(always)]
    unsafe fn store_pairs(low: Self, high: Self, p: *mut i32) {
        // SAFETY: see above.
        unsafe {
            let high = _mm256_slli_epi32::<16>(_mm256_cvtps_epi32(high.0));
            _mm256_storeu_si256(p.cast(), _mm256_blend_epi16::<0xaa>(_mm256_cvtps_epi32(low.0), high));
        }
    }
}

impl Words for F32x16 {
    type Pairs = __m512i;

    #[inline(always)]
    unsafe fn load_pairs(p: *const i32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn splat_pair(p: *const i32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_set1_epi32(*p) }
    }
    #[inline(always)]
    unsafe fn no_sums() -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn add_products<const VNNI: bool>(a: __m512i, b: __m512i, sums: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe {
            match VNNI {
                true => _mm512_dpwssd_epi32(sums, a, b),
                false => _mm512_add_epi32(sums, _mm512_madd_epi16(a, b)),
            }
        }
    }
    #[inline(always)]
    unsafe fn of_sums(sums: __m512i) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_cvtepi32_ps(sums) })
    }
    #[inline(always)]
    unsafe fn store_words(self, p: *mut i16) {
        // SAFETY: see above.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(self.0))) }
    }
    #[inline(always)]
    unsafe fn store_pairs(low: Self, high: Self, p: *mut i32) {
        // SAFETY: see above.
        unsafe {
            let high = _mm512_slli_epi32::<16>(_mm512_cvtps_epi32(high.0));
            let pairs = _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_cvtps_epi32(low.0), high);
            _mm512_storeu_si512(p.cast(), pairs);
        }
    }
}
