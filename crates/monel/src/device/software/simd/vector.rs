//! The small vector functions of attention, norms and feed-forward layers.
//!
//! Each is written once over [`Lanes`] and takes the [`Isa`] to run on. Where two slices must have the same
//! length, the shorter one counts: a wrong length is a wrong result, never a wild access. Sums are in `f32`, over
//! as many partial sums as the vectors have lanes, times four.

use super::Isa;
use super::lanes::{Lanes, dispatch};

/// Runs `$whole` for every full vector and `$part` for the rest, with the index (and the count) bound.
macro_rules! sweep {
    ($n:expr, $i:ident => $whole:expr, $rest:ident => $part:expr) => {{
        let mut $i = 0;
        while $i + L::N <= $n {
            $whole;
            $i += L::N;
        }
        let $rest = $n - $i;
        if $rest > 0 {
            $part;
        }
    }};
}

/// Sum of `a[i] * b[i]`.
pub fn dot_f32(isa: Isa, a: &[f32], b: &[f32]) -> f32 {
    #[inline(always)]
    fn body<L: Lanes>(a: &[f32], b: &[f32]) -> f32 {
        let n = a.len().min(b.len());
        let (a, b) = (a.as_ptr(), b.as_ptr());
        // SAFETY: all reads stay below n; `dispatch!` provides L's instructions.
        unsafe {
            let whole = |i: usize| (L::load(a.add(i)), L::load(b.add(i)));
            dot::<L>(n, whole, |i, rest| {
                (L::load_part(a.add(i), rest, 0.0), L::load_part(b.add(i), rest, 0.0))
            })
        }
    }
    dispatch!(isa, body(a: &[f32], b: &[f32]) -> f32)
}

/// Sum of `k[i] * q[i]`, where `k` holds the bits of f16 numbers.
pub fn dot_f16_f32(isa: Isa, k: &[u16], q: &[f32]) -> f32 {
    #[inline(always)]
    fn body<L: Lanes>(k: &[u16], q: &[f32]) -> f32 {
        let n = k.len().min(q.len());
        let (k, q) = (k.as_ptr(), q.as_ptr());
        // SAFETY: as in `dot_f32`.
        unsafe {
            let whole = |i: usize| (L::load_f16(k.add(i)), L::load(q.add(i)));
            dot::<L>(n, whole, |i, rest| {
                (L::load_f16_part(k.add(i), rest), L::load_part(q.add(i), rest, 0.0))
            })
        }
    }
    dispatch!(isa, body(k: &[u16], q: &[f32]) -> f32)
}

/// The dot product of two sources of vectors, in four partial sums to hide the latency of the additions.
#[inline(always)]
unsafe fn dot<L: Lanes>(
    n: usize,
    whole: impl Fn(usize) -> (L, L),
    part: impl Fn(usize, usize) -> (L, L),
) -> f32 {
    // SAFETY: the caller's closures vouch for the reads and the instructions.
    unsafe {
        let mut sums = [L::splat(0.0); 4];
        let mut i = 0;
        while i + 4 * L::N <= n {
            for (j, sum) in sums.iter_mut().enumerate() {
                let (a, b) = whole(i + j * L::N);
                *sum = a.fma(b, *sum);
            }
            i += 4 * L::N;
        }
        while i + L::N <= n {
            let (a, b) = whole(i);
            sums[0] = a.fma(b, sums[0]);
            i += L::N;
        }
        if i < n {
            let (a, b) = part(i, n - i);
            sums[1] = a.fma(b, sums[1]);
        }
        sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum()
    }
}

/// Sum of squares.
pub fn sum_sq(isa: Isa, x: &[f32]) -> f32 {
    dot_f32(isa, x, x)
}

/// `acc[i] += w * v[i]`, where `v` holds the bits of f16 numbers.
pub fn axpy_f16(isa: Isa, acc: &mut [f32], v: &[u16], w: f32) {
    #[inline(always)]
    fn body<L: Lanes>(acc: &mut [f32], v: &[u16], w: f32) {
        let n = acc.len().min(v.len());
        let (acc, v) = (acc.as_mut_ptr(), v.as_ptr());
        // SAFETY: all accesses stay below n; `dispatch!` provides L's instructions.
        unsafe {
            let w = L::splat(w);
            sweep!(n,
                i => L::load_f16(v.add(i)).fma(w, L::load(acc.add(i))).store(acc.add(i)),
                rest => L::load_f16_part(v.add(i), rest)
                    .fma(w, L::load_part(acc.add(i), rest, 0.0))
                    .store_part(acc.add(i), rest));
        }
    }
    dispatch!(isa, body(acc: &mut [f32], v: &[u16], w: f32));
}

/// `x[i] *= by`.
pub fn scale(isa: Isa, x: &mut [f32], by: f32) {
    #[inline(always)]
    fn body<L: Lanes>(x: &mut [f32], by: f32) {
        let (n, x) = (x.len(), x.as_mut_ptr());
        // SAFETY: as in `axpy_f16`.
        unsafe {
            let by = L::splat(by);
            sweep!(n,
                i => L::load(x.add(i)).mul(by).store(x.add(i)),
                rest => L::load_part(x.add(i), rest, 0.0).mul(by).store_part(x.add(i), rest));
        }
    }
    dispatch!(isa, body(x: &mut [f32], by: f32));
}

/// The largest element; minus infinity for an empty slice. NaN elements may be skipped.
pub fn max_f32(isa: Isa, x: &[f32]) -> f32 {
    #[inline(always)]
    fn body<L: Lanes>(x: &[f32]) -> f32 {
        let (n, x) = (x.len(), x.as_ptr());
        // SAFETY: as in `dot_f32`.
        unsafe {
            let mut max = L::splat(f32::NEG_INFINITY);
            sweep!(n,
                i => max = L::load(x.add(i)).max(max),
                rest => max = L::load_part(x.add(i), rest, f32::NEG_INFINITY).max(max));
            max.reduce_max()
        }
    }
    dispatch!(isa, body(x: &[f32]) -> f32)
}

/// Replaces `x[i]` by `exp(x[i] - max)` and returns the sum: the two halves of a softmax.
///
/// Relative error below 1e-6; elements more than 87.6 below `max` become zero, minus infinity among them. With
/// `max` the true maximum nothing overflows.
pub fn exp_sub_sum(isa: Isa, x: &mut [f32], max: f32) -> f32 {
    #[inline(always)]
    fn body<L: Lanes>(x: &mut [f32], max: f32) -> f32 {
        let (n, x) = (x.len(), x.as_mut_ptr());
        // SAFETY: as in `axpy_f16`.
        unsafe {
            let offset = L::splat(-max);
            let mut sum = L::splat(0.0);
            sweep!(n,
            i => {
                let e = exp(L::load(x.add(i)).add(offset));
                e.store(x.add(i));
                sum = sum.add(e);
            },
            rest => {
                let e = exp(L::load_part(x.add(i), rest, f32::NEG_INFINITY).add(offset));
                e.store_part(x.add(i), rest);
                sum = sum.add(e);
            });
            sum.sum()
        }
    }
    dispatch!(isa, body(x: &mut [f32], max: f32) -> f32)
}

/// `out[i] = silu(gate[i]) * up[i]` with silu(x) = x / (1 + exp(-x)).
pub fn silu_mul(isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
    #[inline(always)]
    fn body<L: Lanes>(gate: &[f32], up: &[f32], out: &mut [f32]) {
        // SAFETY: `dispatch!` provides L's instructions.
        unsafe { gated::<L, false>(gate, up, out) }
    }
    dispatch!(isa, body(gate: &[f32], up: &[f32], out: &mut [f32]));
}

/// `out[i] = gelu(gate[i]) * up[i]` in the tanh form: gelu(x) = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
pub fn gelu_tanh_mul(isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
    #[inline(always)]
    fn body<L: Lanes>(gate: &[f32], up: &[f32], out: &mut [f32]) {
        // SAFETY: `dispatch!` provides L's instructions.
        unsafe { gated::<L, true>(gate, up, out) }
    }
    dispatch!(isa, body(gate: &[f32], up: &[f32], out: &mut [f32]));
}

/// The activation of one vector times another. No closures in here and below: one that is not inlined is compiled
/// without the caller's instructions, and every operation in it becomes a call.
#[inline(always)]
unsafe fn activated<L: Lanes, const GELU: bool>(gate: L, up: L) -> L {
    // SAFETY: the caller provides L's instructions.
    unsafe {
        let exponent = if GELU {
            // (1 + tanh u) / 2 = 1 / (1 + exp(-2 u)), so only the exponent differs from silu.
            const LINEAR: f32 = -2.0 * 0.797_884_6;
            gate.mul(gate.mul(gate).fma(L::splat(LINEAR * 0.044715), L::splat(LINEAR)))
        } else {
            gate.mul(L::splat(-1.0))
        };
        gate.div(exp(exponent).add(L::splat(1.0))).mul(up)
    }
}

/// `out = gate / (1 + exp(exponent(gate))) * up`.
#[inline(always)]
unsafe fn gated<L: Lanes, const GELU: bool>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    let n = gate.len().min(up.len()).min(out.len());
    let (gate, up, out) = (gate.as_ptr(), up.as_ptr(), out.as_mut_ptr());
    // SAFETY: all accesses stay below n; the caller provides L's instructions.
    unsafe {
        sweep!(n,
            i => activated::<L, GELU>(L::load(gate.add(i)), L::load(up.add(i))).store(out.add(i)),
            rest => activated::<L, GELU>(L::load_part(gate.add(i), rest, 0.0), L::load_part(up.add(i), rest, 0.0))
                .store_part(out.add(i), rest));
    }
}

/// `exp(x)` to about 1e-7 relative: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial for exp(r), 2^n by its bits.
/// Below -87.6 zero, above 88 the value at 88; NaN stays NaN.
#[inline(always)]
unsafe fn exp<L: Lanes>(x: L) -> L {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // SAFETY: the caller provides L's instructions.
    unsafe {
        // With the constant first, NaN comes through.
        let x = L::splat(-88.0).max(x);
        let x = L::splat(88.0).min(x);
        let n = x.mul(L::splat(std::f32::consts::LOG2_E)).round();
        let r = n.fma(L::splat(-LN2_HIGH), x);
        let r = n.fma(L::splat(-LN2_LOW), r);
        let mut p = L::splat(1.0 / 5040.0);
        for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            p = p.fma(r, L::splat(c));
        }
        p.mul(n.exp2())
    }
}

/// Converts f32 numbers to the bits of f16, to nearest even.
pub fn f32_to_f16(isa: Isa, src: &[f32], dst: &mut [u16]) {
    #[inline(always)]
    fn body<L: Lanes>(src: &[f32], dst: &mut [u16]) {
        let n = src.len().min(dst.len());
        let (src, dst) = (src.as_ptr(), dst.as_mut_ptr());
        // SAFETY: as in `axpy_f16`.
        unsafe {
            sweep!(n,
                i => L::load(src.add(i)).store_f16(dst.add(i)),
                rest => L::load_part(src.add(i), rest, 0.0).store_f16_part(dst.add(i), rest));
        }
    }
    dispatch!(isa, body(src: &[f32], dst: &mut [u16]));
}

/// Converts the bits of f16 numbers to f32, exactly.
pub fn f16_to_f32(isa: Isa, src: &[u16], dst: &mut [f32]) {
    #[inline(always)]
    fn body<L: Lanes>(src: &[u16], dst: &mut [f32]) {
        let n = src.len().min(dst.len());
        let (src, dst) = (src.as_ptr(), dst.as_mut_ptr());
        // SAFETY: as in `axpy_f16`.
        unsafe {
            sweep!(n,
                i => L::load_f16(src.add(i)).store(dst.add(i)),
                rest => L::load_f16_part(src.add(i), rest).store_part(dst.add(i), rest));
        }
    }
    dispatch!(isa, body(src: &[u16], dst: &mut [f32]));
}

/// Converts the bits of bf16 numbers to f32, exactly.
pub fn bf16_to_f32(isa: Isa, src: &[u16], dst: &mut [f32]) {
    #[inline(always)]
    fn body<L: Lanes>(src: &[u16], dst: &mut [f32]) {
        let n = src.len().min(dst.len());
        let (src, dst) = (src.as_ptr(), dst.as_mut_ptr());
        // SAFETY: as in `axpy_f16`.
        unsafe {
            sweep!(n,
                i => L::load_bf16(src.add(i)).store(dst.add(i)),
                rest => L::load_bf16_part(src.add(i), rest).store_part(dst.add(i), rest));
        }
    }
    dispatch!(isa, body(src: &[u16], dst: &mut [f32]));
}
