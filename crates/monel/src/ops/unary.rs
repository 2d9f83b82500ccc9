//! Functions of one element.
//!
//! Everything is computed in f32, F16 is widened and rounded once. The exponential and what is built on it are written
//! without branches and calls, so that the compiler turns the loops into vectors ([`vectorized`]); the logarithm, sine
//! and cosine call the standard library.
//!
//! Formulas: GELU and its tanh form after Hendrycks and Gimpel (arXiv 1606.08415), hard swish after Howard et al.
//! (arXiv 1905.02244), ELU after Clevert et al. (arXiv 1511.07289).

use super::{Cost, Op};
use crate::check::{Case, Fill, Operand, Tolerance};
use crate::device::software::simd::{self, Isa};
use crate::error::{Error, Result};
use crate::gpu::{Dispatch, GpuCall, Shader};
use crate::kernel::{Call, Kernel, RefTensor};
use crate::tensor::{DType, Desc};

/// Which function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnaryKind {
    /// -x.
    Neg,
    /// |x|.
    Abs,
    /// e^x.
    Exp,
    /// The natural logarithm.
    Log,
    /// The square root.
    Sqrt,
    /// x².
    Sqr,
    /// The sine.
    Sin,
    /// The cosine.
    Cos,
    /// The hyperbolic tangent.
    Tanh,
    /// 1 / (1 + e^-x).
    Sigmoid,
    /// x / (1 + e^-x).
    Silu,
    /// 0.5 x (1 + tanh(sqrt(2/π) (x + 0.044715 x³))).
    Gelu,
    /// 0.5 x (1 + erf(x / sqrt 2)).
    GeluErf,
    /// x / (1 + e^(-1.702 x)).
    GeluQuick,
    /// max(x, 0).
    Relu,
    /// 1 where x > 0, else 0.
    Step,
    /// 1, 0 or -1, the sign of x.
    Sgn,
    /// ln(1 + e^x); x itself above 20.
    Softplus,
    /// x min(max(x + 3, 0), 6) / 6.
    HardSwish,
    /// min(max(x + 3, 0), 6) / 6.
    HardSigmoid,
    /// x where x > 0, else e^x - 1.
    Elu,
}

impl UnaryKind {
    /// Every function.
    pub const ALL: [UnaryKind; 21] = {
        use UnaryKind::*;
        [
            Neg,
            Abs,
            Exp,
            Log,
            Sqrt,
            Sqr,
            Sin,
            Cos,
            Tanh,
            Sigmoid,
            Silu,
            Gelu,
            GeluErf,
            GeluQuick,
            Relu,
            Step,
            Sgn,
            Softplus,
            HardSwish,
            HardSigmoid,
            Elu,
        ]
    };
}

/// A function of each element of x (F32 or F16, any shape); the result has the same type.
#[derive(Clone, Copy, Debug)]
pub struct Unary {
    /// The function.
    pub kind: UnaryKind,
}

impl Op for Unary {
    fn name(&self) -> &'static str {
        "unary"
    }

    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        let [x] = inputs else {
            return Err(Error::shape("unary", format!("one input, found {}", inputs.len())));
        };
        if !matches!(x.dtype, DType::F32 | DType::F16) {
            return Err(Error::shape("unary", format!("x of F32 or F16, found {x}")));
        }
        Desc::new(x.dtype, &x.ne)
    }

    fn supports(&self, _: &[Desc], output: &Desc) -> Result<(), String> {
        if output.has_dense_rows() {
            Ok(())
        } else {
            Err(format!("a result with dense rows, found {output}"))
        }
    }

    fn cost(&self, inputs: &[Desc], output: &Desc) -> Cost {
        let bytes = inputs.iter().chain([output]).map(|d| d.span() as f64).sum();
        Cost { flops: output.elements() as f64 * 20.0, bytes }
    }

    fn row_local(&self, _: &[Desc], _: &Desc) -> bool {
        true
    }

    fn kernels(&self, call: &Call<'_>) -> Vec<Kernel> {
        let (kind, x, out) = (self.kind, call.inputs[0], call.output);
        let (n, half, dense) = (x.desc.ne[0], x.desc.dtype == DType::F16, x.desc.has_dense_rows());
        vec![Kernel::rows(out.desc.rows(), n * 8, move |r, worker| {
            let [i1, i2, i3] = row_indices(&out.desc, r);
            if half {
                let (isa, floats) = (worker.isa, worker.floats(n));
                // SAFETY: row r belongs to item r.
                let out = unsafe { out.row_mut::<u16>(r) };
                if dense {
                    simd::f16_to_f32(isa, x.row(r), floats);
                } else {
                    let at = |i| half::f16::from_bits(x.at([i, i1, i2, i3])).to_f32();
                    floats.iter_mut().enumerate().for_each(|(i, f)| *f = at(i));
                }
                apply(isa, kind, floats);
                simd::f32_to_f16(isa, floats, out);
            } else {
                // SAFETY: row r belongs to item r.
                let out = unsafe { out.row_mut::<f32>(r) };
                if dense {
                    out.copy_from_slice(x.row(r));
                } else {
                    out.iter_mut().enumerate().for_each(|(i, o)| *o = x.at([i, i1, i2, i3]));
                }
                apply(worker.isa, kind, out);
            }
            Ok(())
        })]
    }

    fn shader(&self, call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
        let (x, y) = (&call.inputs[0], &call.output);
        let shader = Shader::new("unary", include_str!("unary.wgsl"))
            .part(include_str!("../gpu/functions.wgsl"))
            .number("count", y.desc.elements())
            .dims("n", y.desc.ne)
            .input("x", x)
            .strides("x", x, false)
            .output("y", y)
            .strides("y", y, false)
            .define("F", wgsl(self.kind));
        Ok(vec![shader.items(y.desc.elements(), 128)?])
    }

    fn reference(&self, inputs: &[RefTensor], output: &Desc) -> RefTensor {
        RefTensor { ne: output.ne, data: inputs[0].data.iter().map(|&x| reference(self.kind, x)).collect() }
    }
}

/// The indices of row `r` in dimensions 1, 2, 3.
#[inline]
pub(super) fn row_indices(desc: &Desc, r: usize) -> [usize; 3] {
    let (i1, r) = (r % desc.ne[1], r / desc.ne[1]);
    [i1, r % desc.ne[2], r / desc.ne[2]]
}

/// Runs `f` compiled for the instruction set: simple loops inside become its vectors. Without fused multiply-adds, so
/// the results are the same everywhere.
#[inline(always)]
pub(super) fn vectorized<R>(isa: Isa, f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn avx2<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        #[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512dq")]
        fn avx512<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        match isa.level() {
            // SAFETY: an Isa of this level exists only where the machine has these features.
            simd::Level::Avx2 | simd::Level::Avx2Vnni => return unsafe { avx2(f) },
            // SAFETY: as above.
            simd::Level::Avx512 | simd::Level::Avx512Vnni | simd::Level::Amx => return unsafe { avx512(f) },
            _ => {}
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = isa;
    f()
}

/// A function of `v` in WGSL.
pub(crate) fn wgsl(kind: UnaryKind) -> &'static str {
    match kind {
        UnaryKind::Neg => "-v",
        UnaryKind::Abs => "abs(v)",
        UnaryKind::Exp => "exp_f(v)",
        UnaryKind::Log => "log(v)",
        UnaryKind::Sqrt => "sqrt(v)",
        UnaryKind::Sqr => "v * v",
        UnaryKind::Sin => "sin_f(v, 0)",
        UnaryKind::Cos => "sin_f(v, 1)",
        UnaryKind::Tanh => "tanh_f(v)",
        UnaryKind::Sigmoid => "sigmoid_f(v)",
        UnaryKind::Silu => "v * sigmoid_f(v)",
        // (1 + tanh u) / 2 = 1 / (1 + e^-2u)
        UnaryKind::Gelu => "v * sigmoid_f(1.5957691216 * v * (1.0 + 0.044715 * v * v))",
        UnaryKind::GeluErf => "0.5 * v * (1.0 + erf_f(v * 0.70710678))",
        UnaryKind::GeluQuick => "v * sigmoid_f(1.702 * v)",
        UnaryKind::Relu => "select(0.0, v, v > 0.0)",
        UnaryKind::Step => "select(0.0, 1.0, v > 0.0)",
        UnaryKind::Sgn => "select(0.0, 1.0, v > 0.0) - select(0.0, 1.0, v < 0.0)",
        UnaryKind::Softplus => "select(log1p_f(exp_f(min(v, 20.0))), v, v > 20.0)",
        UnaryKind::HardSwish => "v * clamp(v + 3.0, 0.0, 6.0) / 6.0",
        UnaryKind::HardSigmoid => "clamp(v + 3.0, 0.0, 6.0) / 6.0",
        UnaryKind::Elu => "select(expm1_f(min(v, 0.0)), v, v > 0.0)",
    }
}

fn apply(isa: Isa, kind: UnaryKind, row: &mut [f32]) {
    #[inline(always)]
    fn each(isa: Isa, row: &mut [f32], f: impl Fn(f32) -> f32) {
        vectorized(
            isa,
            #[inline(always)]
            || {
                row.iter_mut().for_each(
                    #[inline(always)]
                    |x| *x = f(*x),
                )
            },
        );
    }
    match kind {
        UnaryKind::Neg => each(isa, row, |x| -x),
        UnaryKind::Abs => each(isa, row, f32::abs),
        UnaryKind::Exp => each(isa, row, exp),
        UnaryKind::Log => each(isa, row, f32::ln),
        UnaryKind::Sqrt => each(isa, row, f32::sqrt),
        UnaryKind::Sqr => each(isa, row, |x| x * x),
        UnaryKind::Sin => each(isa, row, f32::sin),
        UnaryKind::Cos => each(isa, row, f32::cos),
        UnaryKind::Tanh => each(isa, row, tanh),
        UnaryKind::Sigmoid => each(isa, row, |x| 1.0 / (1.0 + exp(-x))),
        UnaryKind::Silu => each(isa, row, |x| x / (1.0 + exp(-x))),
        // (1 + tanh u) / 2 = 1 / (1 + e^-2u)
        UnaryKind::Gelu => {
            let twice = 2.0 * (2.0f32 / std::f32::consts::PI).sqrt();
            each(isa, row, move |x| x / (1.0 + exp(-twice * x * (1.0 + 0.044715 * x * x))));
        }
        UnaryKind::GeluErf => {
            each(isa, row, |x| 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2)));
        }
        UnaryKind::GeluQuick => each(isa, row, |x| x / (1.0 + exp(-1.702 * x))),
        UnaryKind::Relu => each(isa, row, |x| if x > 0.0 { x } else { 0.0 }),
        UnaryKind::Step => each(isa, row, |x| if x > 0.0 { 1.0 } else { 0.0 }),
        UnaryKind::Sgn => each(isa, row, sign),
        UnaryKind::Softplus => each(isa, row, |x| if x > 20.0 { x } else { x.exp().ln_1p() }),
        UnaryKind::HardSwish => each(isa, row, |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0),
        UnaryKind::HardSigmoid => each(isa, row, |x| (x + 3.0).clamp(0.0, 6.0) / 6.0),
        UnaryKind::Elu => each(isa, row, |x| if x > 0.0 { x } else { x.exp_m1() }),
    }
}

#[inline(always)]
fn sign(x: f32) -> f32 {
    f32::from(u8::from(x > 0.0)) - f32::from(u8::from(x < 0.0))
}

/// e^x within two units in the last place, from 0 to infinity, NaN for NaN. Branch-free: x = n ln 2 + r with |r| at
/// most ln 2 / 2, the power series of e^r to the seventh power, and 2^n in two factors so that subnormal results come out.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // ln 2 in two parts: the product of n and the first, which has few digits, is exact
    const HIGH: f32 = 0.693_359_4;
    const LOW: f32 = -2.121_944_4e-4;
    // adding and subtracting 1.5 * 2^23 rounds to a whole number, which then stands in the lowest bits
    const WHOLE: f32 = 12_582_912.0;
    // comparisons in this form let NaN through
    let x = if x < -104.0 { -104.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + WHOLE;
    let n = shifted - WHOLE;
    let r = x - n * HIGH - n * LOW;
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + c;
    }
    let n = (shifted.to_bits() as i32).wrapping_sub(WHOLE.to_bits() as i32);
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) << 23) as u32);
    p * power(n >> 1) * power(n.wrapping_sub(n >> 1))
}

/// tanh x = 1 - 2 / (e^2x + 1), and near zero, where that cancels, its power series.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    let s = x * x;
    let small = x * (1.0 + s * (-1.0 / 3.0 + s * (2.0 / 15.0 + s * (-17.0 / 315.0 + s * (62.0 / 2835.0)))));
    let large = 1.0 - 2.0 / (exp(2.0 * x) + 1.0);
    if s < 0.09 { small } else { large }
}

/// The error function within 2e-7 (Abramowitz and Stegun, formula 7.1.26).
#[inline(always)]
fn erf(x: f32) -> f32 {
    let a = x.abs();
    let t = 1.0 / (1.0 + 0.327_591_1 * a);
    let mut p = 1.061_405_4;
    for c in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
        p = p * t + c;
    }
    (1.0 - p * t * exp(-a * a)).copysign(x)
}

fn reference(kind: UnaryKind, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match kind {
        UnaryKind::Neg => -x,
        UnaryKind::Abs => x.abs(),
        UnaryKind::Exp => x.exp(),
        UnaryKind::Log => x.ln(),
        UnaryKind::Sqrt => x.sqrt(),
        UnaryKind::Sqr => x * x,
        UnaryKind::Sin => x.sin(),
        UnaryKind::Cos => x.cos(),
        UnaryKind::Tanh => x.tanh(),
        UnaryKind::Sigmoid => sigmoid(x),
        UnaryKind::Silu => x * sigmoid(x),
        UnaryKind::Gelu => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        UnaryKind::GeluErf => 0.5 * x * (1.0 + erf_series(x * std::f64::consts::FRAC_1_SQRT_2)),
        UnaryKind::GeluQuick => x * sigmoid(1.702 * x),
        UnaryKind::Relu => x.max(0.0),
        UnaryKind::Step => f64::from(u8::from(x > 0.0)),
        UnaryKind::Sgn => f64::from(i8::from(x > 0.0) - i8::from(x < 0.0)),
        UnaryKind::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
        UnaryKind::HardSwish => x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
        UnaryKind::HardSigmoid => (x + 3.0).clamp(0.0, 6.0) / 6.0,
        UnaryKind::Elu => {
            if x > 0.0 {
                x
            } else {
                x.exp_m1()
            }
        }
    }
}

/// erf x = 2/sqrt(π) e^-x² Σ 2^n x^(2n+1) / (1 · 3 · .. (2n+1)): all terms have one sign.
fn erf_series(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > 1e-18 * sum.abs() {
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * sum
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in UnaryKind::ALL {
        // Logarithms and roots of what has them.
        let fill = match kind {
            UnaryKind::Log | UnaryKind::Sqrt => Fill::Uniform(0.01, 10.0),
            _ => Fill::Normal(2.0),
        };
        // f32: approximations are good to some 1e-6. F16: rounded once, by at most 2^-11.
        let types = [(DType::F32, Tolerance::Nmse(1e-11)), (DType::F16, Tolerance::Nmse(3e-7))];
        for (dtype, tolerance) in types {
            let x = |ne: &[usize]| Operand::normal(dtype, ne).fill(fill.clone());
            let mut case = |x| cases.push(Case::new(Unary { kind }, dtype, vec![x], tolerance));
            for ne in [&[0, 3][..], &[1], &[17, 3], &[64, 3, 2, 2]] {
                case(x(ne));
            }
            case(x(&[96, 5]).slice(0, 48, 48));
            case(x(&[7, 33, 2]).permuted([1, 0, 2, 3]));
        }
    }
    let large = Operand::normal(DType::F32, &[4096, 33]);
    cases.push(Case::new(Unary { kind: UnaryKind::Silu }, DType::F32, vec![large], Tolerance::Nmse(1e-11)));
    // The ends of the range: nothing overflows on the way to a finite result.
    let ends = [0.0, 1e-30, 1e-5, -1e-5, 19.99, 20.01, -30.0, -80.0, 80.0, -100.0, 100.0, -1e4, 1e4];
    for kind in UnaryKind::ALL {
        if matches!(kind, UnaryKind::Log | UnaryKind::Sqrt | UnaryKind::Sin | UnaryKind::Cos) {
            continue;
        }
        let x = Operand::normal(DType::F32, &[ends.len()]).fill(Fill::Values(ends.to_vec()));
        cases.push(Case::new(Unary { kind }, DType::F32, vec![x], Tolerance::Nmse(1e-11)));
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_over_its_whole_range() {
        let mut x = -110.0f32;
        while x < 90.0 {
            let (got, want) = (exp(x), f64::from(x).exp());
            let ulp = f64::from(f32::from_bits((want as f32).to_bits().max(1)) * f32::EPSILON)
                .max(f64::from(f32::from_bits(1)));
            if want > f64::from(f32::MAX) {
                assert_eq!(got, f32::INFINITY, "{x}");
            } else {
                assert!((f64::from(got) - want).abs() <= 2.0 * ulp, "exp({x}) = {got:e}, expected {want:e}");
            }
            x += 0.007;
        }
        assert_eq!((exp(f32::NEG_INFINITY), exp(f32::INFINITY), exp(0.0)), (0.0, f32::INFINITY, 1.0));
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_and_erf_near_zero_and_far_away() {
        for x in [1e-20f32, 1e-4, 0.1, 0.2999, 0.3001, 1.0, 8.0, 100.0, f32::INFINITY] {
            for x in [x, -x] {
                let want = f64::from(x).tanh();
                assert!((f64::from(tanh(x)) - want).abs() <= 4e-7 * want.abs(), "tanh({x}) = {}", tanh(x));
                // the formula's error is absolute
                assert!((f64::from(erf(x)) - erf_series(x.into())).abs() <= 3e-7, "erf({x}) = {}", erf(x));
            }
        }
        // erf(0.5) and erf(2) from tables
        assert!((erf_series(0.5) - 0.520_499_877_813_046_5).abs() < 1e-14);
        assert!((erf_series(2.0) - 0.995_322_265_018_952_7).abs() < 1e-14);
    }

    #[test]
    fn nan_stays_where_the_function_has_no_other_answer() {
        for isa in Isa::available() {
            for kind in UnaryKind::ALL {
                let mut row = [f32::NAN; 19];
                apply(isa, kind, &mut row);
                let answers = matches!(kind, UnaryKind::Relu | UnaryKind::Step | UnaryKind::Sgn);
                assert!(row.iter().all(|x| x.is_nan() != answers), "{kind:?} {row:?}");
            }
        }
    }
}
