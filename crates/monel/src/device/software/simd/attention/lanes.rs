//! What attention computes with vectors beside sums: differences and powers of two.

use crate::device::software::simd::lanes::Lanes;

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
