//! Sixteen floats in a 512-bit register.

use super::super::lanes::Lanes;
use std::arch::x86_64::*;

/// Sixteen floats.
#[derive(Clone, Copy)]
pub(in super::super) struct F32x16(pub(super) __m512);

#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

// SAFETY of all blocks below: the trait's contract, which is that AVX-512 F, BW, VL and DQ are there and pointers
// are valid for N values, or for the n that a mask lets through.
impl Lanes for F32x16 {
    const N: usize = 16;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_set1_ps(x) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) })
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        // SAFETY: see above.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: see above.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) })
    }
    #[inline(always)]
    unsafe fn splat_f16(p: *const u16) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_cvtph_ps(_mm256_set1_epi16(p.cast::<i16>().read_unaligned())) })
    }
    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_add_ps(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_mul_ps(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_div_ps(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_fmadd_ps(self.0, a.0, b.0) })
    }
    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_max_ps(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn min(self, o: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_min_ps(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_abs_ps(self.0) })
    }
    #[inline(always)]
    unsafe fn max_bits(self, o: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let bits = _mm512_max_epu32(_mm512_castps_si512(self.0), _mm512_castps_si512(o.0));
            Self(_mm512_castsi512_ps(bits))
        }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0) })
    }
    #[inline(always)]
    unsafe fn exp2(self) -> Self {
        // SAFETY: see above.
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(self.0), _mm512_set1_epi32(127));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased)))
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_add_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn reduce_max(self) -> f32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn reduce_max_bits(self) -> f32 {
        // SAFETY: see above.
        f32::from_bits(unsafe { _mm512_reduce_max_epu32(_mm512_castps_si512(self.0)) })
    }
    #[inline(always)]
    unsafe fn sum4([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        // SAFETY: see above; a register is as large as its floats.
        unsafe {
            let [a, b, c, d] = [a.0, b.0, c.0, d.0];
            // pairs within each 128-bit group, then the four groups
            let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            let low = _mm512_shuffle_ps::<0b01_00_01_00>(ab, cd);
            let high = _mm512_shuffle_ps::<0b11_10_11_10>(ab, cd);
            let all = _mm512_add_ps(low, high);
            let half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps::<1>(all));
            let sums = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
            std::mem::transmute::<__m128, [f32; 4]>(sums)
        }
    }
    #[inline(always)]
    unsafe fn max4_bits([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        // SAFETY: see above; a register is as large as its floats.
        unsafe {
            let [a, b, c, d] = [
                _mm512_castps_si512(a.0),
                _mm512_castps_si512(b.0),
                _mm512_castps_si512(c.0),
                _mm512_castps_si512(d.0),
            ];
            // pairs within each 128-bit group, then the four groups
            let ab = _mm512_max_epu32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let cd = _mm512_max_epu32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            let all = _mm512_max_epu32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
            let half = _mm256_max_epu32(_mm512_castsi512_si256(all), _mm512_extracti32x8_epi32::<1>(all));
            let most = _mm_max_epu32(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
            std::mem::transmute::<__m128i, [f32; 4]>(most)
        }
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8) {
        // SAFETY: see above.
        unsafe { _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(self.0))) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize, fill: f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_mask_loadu_ps(_mm512_set1_ps(fill), mask(n), p) })
    }
    #[inline(always)]
    unsafe fn load_f16_part(p: *const u16, n: usize) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask(n), p.cast())) })
    }
    #[inline(always)]
    unsafe fn load_bf16_part(p: *const u16, n: usize) -> Self {
        // SAFETY: see above.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask(n), p.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        // SAFETY: see above.
        unsafe { _mm512_mask_storeu_ps(p, mask(n), self.0) }
    }
    #[inline(always)]
    unsafe fn store_f16_part(self, p: *mut u16, n: usize) {
        // SAFETY: see above.
        unsafe {
            let half = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0);
            _mm256_mask_storeu_epi16(p.cast(), mask(n), half);
        }
    }
}
