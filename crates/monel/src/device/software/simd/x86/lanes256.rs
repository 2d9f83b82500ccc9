//! Eight floats in a 256-bit register.

use super::super::lanes::Lanes;
use std::arch::x86_64::*;

/// Eight floats.
#[derive(Clone, Copy)]
pub(in super::super) struct F32x8(pub(super) __m256);

// SAFETY of all blocks below: the trait's contract, which is that AVX2, FMA and F16C are there and pointers are valid
// for N values.
impl Lanes for F32x8 {
    const N: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_set1_ps(x) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: see above.
        unsafe { _mm256_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) })
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        // SAFETY: see above.
        unsafe { _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: see above.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))) })
    }
    #[inline(always)]
    unsafe fn splat_f16(p: *const u16) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_cvtph_ps(_mm_set1_epi16(p.cast::<i16>().read_unaligned())) })
    }
    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_add_ps(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_mul_ps(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_div_ps(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_fmadd_ps(self.0, a.0, b.0) })
    }
    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_max_ps(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn min(self, o: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_min_ps(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), self.0) })
    }
    #[inline(always)]
    unsafe fn max_bits(self, o: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let bits = _mm256_max_epu32(_mm256_castps_si256(self.0), _mm256_castps_si256(o.0));
            Self(_mm256_castsi256_ps(bits))
        }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0) })
    }
    #[inline(always)]
    unsafe fn exp2(self) -> Self {
        // SAFETY: see above.
        unsafe {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(self.0), _mm256_set1_epi32(127));
            Self(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased)))
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: see above.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    unsafe fn reduce_max(self) -> f32 {
        // SAFETY: see above.
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    unsafe fn reduce_max_bits(self) -> f32 {
        // SAFETY: see above.
        unsafe {
            let bits = _mm256_castps_si256(self.0);
            let four = _mm_max_epu32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256::<1>(bits));
            let two = _mm_max_epu32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
            let one = _mm_max_epu32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
            f32::from_bits(_mm_cvtsi128_si32(one) as u32)
        }
    }
    #[inline(always)]
    unsafe fn sum4([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        // SAFETY: see above; a register is as large as its floats.
        unsafe {
            let all = _mm256_hadd_ps(_mm256_hadd_ps(a.0, b.0), _mm256_hadd_ps(c.0, d.0));
            let sums = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps::<1>(all));
            std::mem::transmute::<__m128, [f32; 4]>(sums)
        }
    }
    #[inline(always)]
    unsafe fn max4_bits([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        // SAFETY: see above; a register is as large as its floats.
        unsafe {
            let [a, b, c, d] = [
                _mm256_castps_si256(a.0),
                _mm256_castps_si256(b.0),
                _mm256_castps_si256(c.0),
                _mm256_castps_si256(d.0),
            ];
            // pairs within each 128-bit half, then the halves
            let ab = _mm256_max_epu32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let cd = _mm256_max_epu32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            let all = _mm256_max_epu32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
            let most = _mm_max_epu32(_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all));
            std::mem::transmute::<__m128i, [f32; 4]>(most)
        }
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8) {
        // SAFETY: see above.
        unsafe {
            let wide = _mm256_cvtps_epi32(self.0);
            let half = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256::<1>(wide));
            _mm_storel_epi64(p.cast(), _mm_packs_epi16(half, half));
        }
    }
}
