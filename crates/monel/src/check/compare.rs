//! Compares a result with the reference under a case's tolerance.
//!
//! The reference is rounded to the result's type first, so that an overflow to infinity is expected where the type has
//! no larger number. NaN has to meet NaN and an infinity the same infinity, whatever the tolerance; the two zeros are
//! equal.

use super::Tolerance;
use crate::kernel::RefTensor;
use crate::tensor::DType;

/// The error in the tolerance's own measure, or why it is too large. Both tensors have the shape of the result;
/// `dtype` is the result's type.
pub fn compare(
    dtype: DType,
    got: &RefTensor,
    want: &RefTensor,
    tolerance: Tolerance,
) -> Result<f64, (f64, String)> {
    if got.ne != want.ne {
        return Err((
            f64::INFINITY,
            format!("the reference has the shape {:?}, the result {:?}", want.ne, got.ne),
        ));
    }
    let (mut squares, mut total, mut largest, mut magnitude, mut worst) = (0.0, 0.0, 0.0, 0.0f64, 0);
    for (i, (&g, &w)) in got.data.iter().zip(&want.data).enumerate() {
        let w = round(dtype, w);
        if !g.is_finite() || !w.is_finite() {
            if g == w || g.is_nan() && w.is_nan() {
                continue;
            }
            return Err((f64::INFINITY, at(got.ne, i, g, w)));
        }
        let difference = (g - w).abs();
        squares += difference * difference;
        total += w * w;
        magnitude = magnitude.max(w.abs());
        if difference > largest {
            (largest, worst) = (difference, i);
        }
    }
    // Without any magnitude to measure by, only equality is no error.
    let share = |part: f64, whole: f64| if part == 0.0 { 0.0 } else { part / whole };
    let (error, limit) = match tolerance {
        Tolerance::Exact => (largest, 0.0),
        Tolerance::Nmse(limit) => (share(squares, total), limit),
        Tolerance::Relative(limit) => (share(largest, magnitude), limit),
    };
    if error <= limit {
        return Ok(error);
    }
    let what = at(got.ne, worst, got.data[worst], round(dtype, want.data[worst]));
    Err((error, format!("error {error:.3e} over {limit:.1e}; largest difference {what}")))
}

/// The nearest number of a type; blocks keep the value (their references give what the blocks decode to). It goes by way
/// of f32, in which devices compute: without an instruction for it, f64 to f16 looks at the upper half of the f64 only.
pub(super) fn round(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::F32 => f64::from(x as f32),
        DType::F16 => half::f16::from_f32(x as f32).to_f64(),
        DType::BF16 => half::bf16::from_f32(x as f32).to_f64(),
        _ => x,
    }
}

fn at(ne: [usize; 4], i: usize, got: f64, want: f64) -> String {
    let (i0, r) = (i % ne[0], i / ne[0]);
    let (i1, r) = (r % ne[1], r / ne[1]);
    format!("at [{i0},{i1},{},{}]: {got:e}, expected {want:e}", r % ne[2], r / ne[2])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(data: &[f64]) -> RefTensor {
        RefTensor { ne: [data.len(), 1, 1, 1], data: data.to_vec() }
    }

    #[test]
    fn exact_rounds_to_the_type_and_no_further() {
        let third = f64::from(1.0f32 / 3.0);
        assert_eq!(compare(DType::F32, &row(&[third]), &row(&[1.0 / 3.0]), Tolerance::Exact), Ok(0.0));
        let next = f64::from(f32::from_bits((1.0f32 / 3.0).to_bits() + 1));
        let (error, reason) =
            compare(DType::F32, &row(&[next]), &row(&[1.0 / 3.0]), Tolerance::Exact).unwrap_err();
        assert!(error > 0.0 && reason.contains("at [0,0,0,0]"), "{reason}");
    }

    #[test]
    fn nan_meets_nan_and_infinity_its_own_sign() {
        let loose = Tolerance::Nmse(1e9);
        assert!(compare(DType::F32, &row(&[f64::NAN, 1.0]), &row(&[f64::NAN, 1.0]), loose).is_ok());
        assert!(compare(DType::F32, &row(&[f64::NAN, 1.0]), &row(&[0.0, 1.0]), loose).is_err());
        assert!(compare(DType::F32, &row(&[0.0, 1.0]), &row(&[f64::NAN, 1.0]), loose).is_err());
        assert!(compare(DType::F32, &row(&[f64::INFINITY]), &row(&[f64::NEG_INFINITY]), loose).is_err());
        // beyond the largest f16, infinity is the right answer
        assert!(compare(DType::F16, &row(&[f64::INFINITY]), &row(&[1e6]), Tolerance::Exact).is_ok());
    }

    #[test]
    fn values_round_the_same_on_every_processor() {
        // The middle between two halves, and above it by the last bit of an f32.
        let middle = 1.53125f32 + 1.0 / 2048.0;
        let above = f32::from_bits(middle.to_bits() + 1);
        assert_eq!(round(DType::F16, middle.into()), 1.53125);
        assert_eq!(round(DType::F16, above.into()), 1.532_226_562_5);
        assert_eq!(round(DType::BF16, (1.0f32 + 1.0 / 256.0).into()), 1.0);
        assert_eq!(round(DType::BF16, f32::from_bits(0x3f80_8001).into()), 1.0 + 1.0 / 128.0);
    }

    #[test]
    fn measures() {
        let (got, want) = (row(&[1.0, 2.5]), row(&[1.0, 2.0]));
        assert_eq!(compare(DType::F32, &got, &want, Tolerance::Nmse(0.05)), Ok(0.05));
        assert!(compare(DType::F32, &got, &want, Tolerance::Nmse(0.049)).is_err());
        assert_eq!(compare(DType::F32, &got, &want, Tolerance::Relative(0.25)), Ok(0.25));
        assert!(compare(DType::F32, &got, &want, Tolerance::Relative(0.24)).is_err());
        assert!(compare(DType::F32, &row(&[1e-30]), &row(&[0.0]), Tolerance::Nmse(1e-3)).is_err());
        assert_eq!(compare(DType::F32, &row(&[]), &row(&[]), Tolerance::Exact), Ok(0.0));
        assert!(compare(DType::F32, &row(&[1.0]), &row(&[1.0, 1.0]), Tolerance::Nmse(1.0)).is_err());
    }
}
