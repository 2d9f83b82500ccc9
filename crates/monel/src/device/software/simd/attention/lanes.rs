//! What attention needs of a vector beyond [`Lanes`]: four sums at once, and powers of two.

use crate::device::software::simd::lanes::Lanes;
use crate::device::software::simd::portable::Array;

/// Sums across vectors, under the contract of [`Lanes`].
pub(super) trait SumFour: Lanes {
    /// The sums of the elements of four vectors.
    #[inline(always)]
    unsafe fn sum4([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        // SAFETY: passed on to the caller.
        unsafe { [a.sum(), b.sum(), c.sum(), d.sum()] }
    }
}

impl SumFour for Array {}

#[cfg(target_arch = "aarch64")]
impl SumFour for crate::device::software::simd::neon::F32x4 {}

/// `a - b`.
#[inline(always)]
pub(super) unsafe fn sub<V: Lanes>(a: V, b: V) -> V {
    // SAFETY: passed on to the caller.
    unsafe { b.fma(V::splat(-1.0), a) }
}

/// 2^x for x <= 127: round, a polynomial of degree five on [-0.5, 0.5] (relative error 8e-8, fitted at Chebyshev nodes),
/// and the power. Zero below -126.5; NaN stays NaN.
#[inline(always)]
pub(super) unsafe fn exp2<V: Lanes>(x: V) -> V {
    const C: [f32; 6] = [1.000_000_1, 0.693_146_94, 0.240_221_22, 0.055_507_426, 0.009_675_46, 0.001_326_697];
    // SAFETY: passed on to the caller.
    unsafe {
        let x = V::splat(-127.0).max(x);
        let n = x.round();
        let f = sub(x, n);
        let mut p = V::splat(C[5]);
        for c in [C[4], C[3], C[2], C[1], C[0]] {
            p = p.fma(f, V::splat(c));
        }
        p.mul(n.exp2())
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Lanes, SumFour};
    use crate::device::software::simd::x86::{F32x8, F32x16};
    use std::arch::x86_64::*;
    use std::mem::MaybeUninit;

    /// The register of a vector; the detour over memory is compiled away.
    #[inline(always)]
    unsafe fn register<V: Lanes, R>(v: V) -> R {
        const { assert!(size_of::<R>() == V::N * size_of::<f32>()) };
        let mut register = MaybeUninit::uninit();
        // SAFETY: the vector's instructions are the caller's promise; a register of floats has the vector's size.
        unsafe {
            v.store(register.as_mut_ptr() as *mut f32);
            register.assume_init()
        }
    }

    impl SumFour for F32x8 {
        #[inline(always)]
        unsafe fn sum4([a, b, c, d]: [Self; 4]) -> [f32; 4] {
            // SAFETY: AVX2 is there, by the contract of `Lanes`; a register is as large as its floats.
            unsafe {
                let all = _mm256_hadd_ps(
                    _mm256_hadd_ps(register(a), register(b)),
                    _mm256_hadd_ps(register(c), register(d)),
                );
                let sums = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps::<1>(all));
                std::mem::transmute::<__m128, [f32; 4]>(sums)
            }
        }
    }

    impl SumFour for F32x16 {
        #[inline(always)]
        unsafe fn sum4([a, b, c, d]: [Self; 4]) -> [f32; 4] {
            // SAFETY: AVX-512 is there, by the contract of `Lanes`; a register is as large as its floats.
            unsafe {
                let [a, b, c, d] = [register(a), register(b), register(c), register(d)];
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
