//! A vector of floats, as far as attention needs one.
//!
//! The kernels of this folder are written once over [`Lanes`] and compiled for each instruction set: every function is
//! inlined into an entry that has the target features switched on (see the macros in `mod.rs`), so an intrinsic becomes
//! one instruction. That is also the safety rule of the trait: its functions are only called inside such an entry.

/// A vector of [`Lanes::N`] floats.
pub(super) trait Lanes: Copy {
    /// Floats in a vector.
    const N: usize;
    /// Vectors side by side in a product: with four rows they fit in the registers beside the operands.
    const VECTORS: usize;
    /// Query rows that the decode kernels take at once (each keeps four accumulators).
    const HEADS: usize;

    /// All elements `x`.
    unsafe fn splat(x: f32) -> Self;
    /// Reads `N` floats; no alignment needed.
    unsafe fn load(p: *const f32) -> Self;
    /// Writes `N` floats; no alignment needed.
    unsafe fn store(self, p: *mut f32);
    /// Reads `N` halves (F16 bits).
    unsafe fn load_f16(p: *const u16) -> Self;
    /// Reads `N` halves (BF16 bits).
    unsafe fn load_bf16(p: *const u16) -> Self;
    /// `self + b`.
    unsafe fn add(self, b: Self) -> Self;
    /// `self - b`.
    unsafe fn sub(self, b: Self) -> Self;
    /// `self * b`.
    unsafe fn mul(self, b: Self) -> Self;
    /// `self / b`.
    unsafe fn div(self, b: Self) -> Self;
    /// `self * a + b`.
    unsafe fn mul_add(self, a: Self, b: Self) -> Self;
    /// The larger of both; `b` where one is NaN.
    unsafe fn max(self, b: Self) -> Self;
    /// `self` rounded to a whole number.
    unsafe fn round(self) -> Self;
    /// `self * 2^n` for whole n in -127..=127; n = -127 gives zero.
    unsafe fn scale_by_power(self, n: Self) -> Self;
    /// `self` where `lo <= x < hi`, otherwise minus infinity.
    unsafe fn keep_within(self, x: Self, lo: Self, hi: Self) -> Self;
    /// The sums of four vectors.
    unsafe fn sum4(v: [Self; 4]) -> [f32; 4];

    /// The sum of the elements.
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: passed on to the caller.
        unsafe { Self::sum4([self, Self::splat(0.0), Self::splat(0.0), Self::splat(0.0)])[0] }
    }

    /// 2^self for self <= 127: round, a polynomial of degree five on [-0.5, 0.5] (relative error 8e-8, fitted at
    /// Chebyshev nodes), and the power. Zero below -126.5; NaN stays NaN.
    #[inline(always)]
    unsafe fn exp2(self) -> Self {
        const C: [f32; 6] =
            [1.000_000_1, 0.693_146_94, 0.240_221_22, 0.055_507_426, 0.009_675_46, 0.001_326_697];
        // SAFETY: passed on to the caller.
        unsafe {
            let x = Self::splat(-127.0).max(self);
            let n = x.round();
            let f = x.sub(n);
            let mut p = Self::splat(C[5]);
            for c in [C[4], C[3], C[2], C[1], C[0]] {
                p = p.mul_add(f, Self::splat(c));
            }
            p.scale_by_power(n)
        }
    }
}

/// 1.5 * 2^23: a float of this size has no bits behind the point.
const SHIFT: f32 = 12_582_912.0;

/// Four floats in plain Rust: what the compiler makes of it is SSE2 or NEON.
#[derive(Clone, Copy)]
pub(super) struct Plain([f32; 4]);

impl Plain {
    #[inline(always)]
    fn zip(self, b: Plain, f: impl Fn(f32, f32) -> f32) -> Plain {
        Plain([f(self.0[0], b.0[0]), f(self.0[1], b.0[1]), f(self.0[2], b.0[2]), f(self.0[3], b.0[3])])
    }
}

/// An F16 by its bits, without a table and without a branch on the number's kind: the exponent is moved by a
/// multiplication, which also normalises subnormals.
#[inline(always)]
pub(super) fn f16_to_f32(h: u16) -> f32 {
    let magnitude = f32::from_bits(u32::from(h & 0x7fff) << 13) * f32::from_bits((254 - 15) << 23);
    // infinity and NaN came out as 65536 and more
    let special = if h & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | u32::from(h & 0x8000) << 16)
}

impl Lanes for Plain {
    const N: usize = 4;
    const VECTORS: usize = 2;
    const HEADS: usize = 2;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Plain([x; 4])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller vouches for four floats.
        Plain(unsafe { p.cast::<[f32; 4]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller vouches for four floats.
        unsafe { p.cast::<[f32; 4]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: the caller vouches for four halves.
        Plain(unsafe { p.cast::<[u16; 4]>().read_unaligned() }.map(f16_to_f32))
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: the caller vouches for four halves.
        Plain(unsafe { p.cast::<[u16; 4]>().read_unaligned() }.map(|h| f32::from_bits(u32::from(h) << 16)))
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        self.zip(b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        self.zip(b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        self.zip(b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        self.zip(b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn mul_add(self, a: Self, b: Self) -> Self {
        // `f32::mul_add` is a library call where the machine has no fused instruction
        if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
            Plain(std::array::from_fn(|i| self.0[i].mul_add(a.0[i], b.0[i])))
        } else {
            self.zip(a, |x, a| x * a).zip(b, |x, b| x + b)
        }
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        self.zip(b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        Plain(self.0.map(|x| (x + SHIFT) - SHIFT))
    }
    #[inline(always)]
    unsafe fn scale_by_power(self, n: Self) -> Self {
        // n lands in the low bits of the shifted number's mantissa; the biased exponent 0 is the number zero
        self.zip(n, |x, n| x * f32::from_bits((n + SHIFT).to_bits().wrapping_add(127) << 23))
    }
    #[inline(always)]
    unsafe fn keep_within(self, x: Self, lo: Self, hi: Self) -> Self {
        Plain(std::array::from_fn(|i| {
            if lo.0[i] <= x.0[i] && x.0[i] < hi.0[i] { self.0[i] } else { f32::NEG_INFINITY }
        }))
    }
    #[inline(always)]
    unsafe fn sum4(v: [Self; 4]) -> [f32; 4] {
        v.map(|v| (v.0[0] + v.0[2]) + (v.0[1] + v.0[3]))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Lanes;
    use std::arch::x86_64::*;

    impl Lanes for __m256 {
        const N: usize = 8;
        const VECTORS: usize = 2;
        const HEADS: usize = 2;

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: AVX2, FMA and F16C are switched on in every entry that uses this type; here and below.
            unsafe { _mm256_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: as above; the caller vouches for the memory.
            unsafe { _mm256_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: as above; the caller vouches for the memory.
            unsafe { _mm256_storeu_ps(p, self) }
        }
        #[inline(always)]
        unsafe fn load_f16(p: *const u16) -> Self {
            // SAFETY: as above; the caller vouches for the memory.
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
        }
        #[inline(always)]
        unsafe fn load_bf16(p: *const u16) -> Self {
            // SAFETY: as above; the caller vouches for the memory.
            unsafe {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            }
        }
        #[inline(always)]
        unsafe fn add(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm256_add_ps(self, b) }
        }
        #[inline(always)]
        unsafe fn sub(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm256_sub_ps(self, b) }
        }
        #[inline(always)]
        unsafe fn mul(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm256_mul_ps(self, b) }
        }
        #[inline(always)]
        unsafe fn div(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm256_div_ps(self, b) }
        }
        #[inline(always)]
        unsafe fn mul_add(self, a: Self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm256_fmadd_ps(self, a, b) }
        }
        #[inline(always)]
        unsafe fn max(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm256_max_ps(self, b) }
        }
        #[inline(always)]
        unsafe fn round(self) -> Self {
            // SAFETY: as above.
            unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self) }
        }
        #[inline(always)]
        unsafe fn scale_by_power(self, n: Self) -> Self {
            // SAFETY: as above.
            unsafe {
                let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                _mm256_mul_ps(self, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased)))
            }
        }
        #[inline(always)]
        unsafe fn keep_within(self, x: Self, lo: Self, hi: Self) -> Self {
            // SAFETY: as above.
            unsafe {
                let keep =
                    _mm256_and_ps(_mm256_cmp_ps::<_CMP_LE_OQ>(lo, x), _mm256_cmp_ps::<_CMP_LT_OQ>(x, hi));
                _mm256_blendv_ps(_mm256_set1_ps(f32::NEG_INFINITY), self, keep)
            }
        }
        #[inline(always)]
        unsafe fn sum4([a, b, c, d]: [Self; 4]) -> [f32; 4] {
            // SAFETY: as above.
            unsafe {
                let all = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
                let sums = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps::<1>(all));
                std::mem::transmute::<__m128, [f32; 4]>(sums)
            }
        }
    }

    impl Lanes for __m512 {
        const N: usize = 16;
        const VECTORS: usize = 4;
        const HEADS: usize = 4;

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: AVX-512 F and VL are switched on in every entry that uses this type; here and below.
            unsafe { _mm512_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: as above; the caller vouches for the memory.
            unsafe { _mm512_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: as above; the caller vouches for the memory.
            unsafe { _mm512_storeu_ps(p, self) }
        }
        #[inline(always)]
        unsafe fn load_f16(p: *const u16) -> Self {
            // SAFETY: as above; the caller vouches for the memory.
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
        }
        #[inline(always)]
        unsafe fn load_bf16(p: *const u16) -> Self {
            // SAFETY: as above; the caller vouches for the memory.
            unsafe {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
        }
        #[inline(always)]
        unsafe fn add(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_add_ps(self, b) }
        }
        #[inline(always)]
        unsafe fn sub(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_sub_ps(self, b) }
        }
        #[inline(always)]
        unsafe fn mul(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_mul_ps(self, b) }
        }
        #[inline(always)]
        unsafe fn div(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_div_ps(self, b) }
        }
        #[inline(always)]
        unsafe fn mul_add(self, a: Self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_fmadd_ps(self, a, b) }
        }
        #[inline(always)]
        unsafe fn max(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_max_ps(self, b) }
        }
        #[inline(always)]
        unsafe fn round(self) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_roundscale_ps::<0>(self) }
        }
        #[inline(always)]
        unsafe fn scale_by_power(self, n: Self) -> Self {
            // SAFETY: as above.
            unsafe {
                let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
                _mm512_mul_ps(self, _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased)))
            }
        }
        #[inline(always)]
        unsafe fn keep_within(self, x: Self, lo: Self, hi: Self) -> Self {
            // SAFETY: as above.
            unsafe {
                let above = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(lo, x);
                let keep = _mm512_mask_cmp_ps_mask::<_CMP_LT_OQ>(above, x, hi);
                _mm512_mask_blend_ps(keep, _mm512_set1_ps(f32::NEG_INFINITY), self)
            }
        }
        #[inline(always)]
        unsafe fn sum4([a, b, c, d]: [Self; 4]) -> [f32; 4] {
            // SAFETY: as above.
            unsafe {
                // pairs within each 128-bit group, then the four groups
                let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                let low = _mm512_shuffle_ps::<0b01_00_01_00>(ab, cd);
                let high = _mm512_shuffle_ps::<0b11_10_11_10>(ab, cd);
                let all = _mm512_add_ps(low, high);
                let half = _mm256_add_ps(
                    _mm512_castps512_ps256(all),
                    _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(all))),
                );
                let sums = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
                std::mem::transmute::<__m128, [f32; 4]>(sums)
            }
        }
    }
}
