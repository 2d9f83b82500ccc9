//! Softmax along rows, with a scale and an optional mask: attention taken apart, and routers of experts.
//!
//! softmax(y)_i = e^(y_i - max y) / Σ e^(y_j - max y) for y = scale x + mask; taking the maximum out first keeps the
//! exponentials in range.

use super::{Cost, Op};
use crate::check::{Case, Fill, Operand, Tolerance};
use crate::device::software::simd;
use crate::error::{Error, Result};
use crate::gpu::{Dispatch, GpuCall, Shader};
use crate::kernel::{Call, Input, Kernel, RefTensor, Worker};
use crate::tensor::{DType, Desc};

/// `softmax(x * scale + mask)` of the rows of x (F32). The mask (optional; F32 or F16) has rows of the same length, at
/// least as many as dimension 1 of x, and repeats over dimensions 2 and 3. A row of minus infinities gives zeros.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftMax {
    /// Multiplies x.
    pub scale: f32,
}

impl Op for SoftMax {
    fn name(&self) -> &'static str {
        "soft_max"
    }

    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        let (x, mask) = match inputs {
            [x] => (x, None),
            [x, mask] => (x, Some(mask)),
            _ => {
                return Err(Error::shape(
                    "soft_max",
                    format!("x and perhaps a mask, found {} inputs", inputs.len()),
                ));
            }
        };
        if let Some(mask) = mask {
            let float = matches!(mask.dtype, DType::F32 | DType::F16);
            let repeats = (2..4).all(|d| mask.ne[d] != 0 && x.ne[d].is_multiple_of(mask.ne[d]));
            if !float || mask.ne[0] != x.ne[0] || mask.ne[1] < x.ne[1] || !repeats {
                return Err(Error::shape(
                    "soft_max",
                    format!(
                        "a mask F32 or F16 of rows like {x}, repeating over dimensions 2 and 3, found {mask}"
                    ),
                ));
            }
        }
        Desc::new(DType::F32, &x.ne)
    }

    fn supports(&self, inputs: &[Desc], output: &Desc) -> Result<(), String> {
        super::all_f32_rows(&inputs[..1], output)?;
        match inputs.get(1) {
            Some(mask) if !mask.has_dense_rows() => Err(format!("the mask has dense rows, found {mask}")),
            _ => Ok(()),
        }
    }

    fn cost(&self, inputs: &[Desc], output: &Desc) -> Cost {
        let bytes = inputs.iter().chain([output]).map(|d| d.span() as f64).sum();
        Cost { flops: output.elements() as f64 * 16.0, bytes }
    }

    fn row_local(&self, inputs: &[Desc], output: &Desc) -> bool {
        // a mask with as many rows in another arrangement is read at other rows
        inputs.get(1).is_none_or(|mask| mask.rows() != output.rows() || mask.ne[1..] == output.ne[1..])
    }

    fn kernels(&self, call: &Call<'_>) -> Vec<Kernel> {
        let (scale, x, mask, out) = (self.scale, call.inputs[0], call.inputs.get(1).copied(), call.output);
        // the exponential costs about as much as moving ten times the bytes
        vec![Kernel::rows(out.desc.rows(), out.desc.nb[1] * 10, move |r, worker| {
            // SAFETY: row r belongs to item r.
            let out = unsafe { out.row_mut::<f32>(r) };
            out.iter_mut().zip(x.row::<f32>(r)).for_each(|(o, x)| *o = x * scale);
            if let Some(mask) = &mask {
                add_mask(mask, x.desc, r, out, worker);
            }
            let max = simd::max_f32(worker.isa, out);
            if max == f32::NEG_INFINITY {
                out.fill(0.0);
                return Ok(());
            }
            let sum = simd::exp_sub_sum(worker.isa, out, max);
            simd::scale(worker.isa, out, 1.0 / sum);
            Ok(())
        })]
    }

    fn shader(&self, call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
        let (x, y) = (&call.inputs[0], &call.output);
        let mut shader = Shader::new("soft_max", include_str!("softmax.wgsl"))
            .part(include_str!("../gpu/functions.wgsl"))
            .reductions(128)
            .number("rows", y.desc.rows())
            .dims("n", y.desc.ne)
            .input("x", x)
            .strides("x", x, true)
            .output("y", y)
            .strides("y", y, true)
            .float("scale", self.scale);
        shader = match call.inputs.get(1) {
            Some(mask) => shader
                .input("m", mask)
                .strides("m", mask, true)
                .number("repeat2", mask.desc.ne[2])
                .number("repeat3", mask.desc.ne[3])
                .define("MASK", " + get_m(mask + i)")
                .define(
                    "MASK_ROW",
                    "p.m + at.x * p.m1 + (at.y % p.repeat2) * p.m2 + (at.z % p.repeat3) * p.m3",
                ),
            None => shader.define("MASK", "").define("MASK_ROW", "0u"),
        };
        Ok(vec![shader.groups(y.desc.rows())?])
    }

    fn reference(&self, inputs: &[RefTensor], output: &Desc) -> RefTensor {
        let mut out = RefTensor::zeros(output.ne);
        for r in 0..out.rows() {
            let mut row: Vec<f64> = inputs[0].row(r).iter().map(|x| x * f64::from(self.scale)).collect();
            if let Some(mask) = inputs.get(1) {
                let [_, n1, n2, _] = output.ne;
                let (i1, i2, i3) = (r % n1, r / n1 % n2 % mask.ne[2], r / n1 / n2 % mask.ne[3]);
                (0..row.len()).for_each(|i| row[i] += mask.at([i, i1, i2, i3]));
            }
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if max > f64::NEG_INFINITY {
                let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
                out.row_mut(r).iter_mut().zip(&row).for_each(|(o, x)| *o = (x - max).exp() / sum);
            }
        }
        out
    }
}

/// Adds the mask's row for row `r` of x.
fn add_mask(mask: &Input, x: Desc, r: usize, out: &mut [f32], worker: &mut Worker) {
    let [_, n1, n2, _] = x.ne;
    let (i1, i2, i3) = (r % n1, r / n1 % n2 % mask.desc.ne[2], r / n1 / n2 % mask.desc.ne[3]);
    if mask.desc.dtype == DType::F16 {
        let isa = worker.isa;
        let row = worker.floats(out.len());
        simd::f16_to_f32(isa, mask.row3::<u16>(i1, i2, i3), row);
        out.iter_mut().zip(row).for_each(|(o, m)| *o += *m);
    } else {
        out.iter_mut().zip(mask.row3::<f32>(i1, i2, i3)).for_each(|(o, m)| *o += m);
    }
}

pub(super) fn cases() -> Vec<Case> {
    // errors of the vector exponential (1e-6 at most, mostly 1e-7)
    let tolerance = Tolerance::Nmse(1e-11);
    let mut cases = Vec::new();
    let x = |ne: &[usize]| Operand::normal(DType::F32, ne).fill(Fill::Normal(3.0));
    for ne in [&[0, 3][..], &[1], &[7, 0], &[17, 3], &[333, 5, 2], &[64, 3, 2, 2], &[40_000]] {
        cases.push(Case::new(SoftMax { scale: 0.7 }, DType::F32, vec![x(ne)], tolerance));
    }
    cases.push(Case::new(SoftMax { scale: 1.0 }, DType::F32, vec![x(&[80, 9]).slice(0, 16, 33)], tolerance));
    cases.push(Case::new(
        SoftMax { scale: 1.0 },
        DType::F32,
        vec![x(&[16, 3, 5]).permuted([0, 2, 1, 3])],
        tolerance,
    ));
    // far apart: all but one underflow
    let far = Operand::normal(DType::F32, &[50, 4]).fill(Fill::Normal(1000.0));
    cases.push(Case::new(SoftMax { scale: 1.0 }, DType::F32, vec![far], tolerance));
    for dtype in [DType::F32, DType::F16] {
        for mask in [&[65, 6][..], &[65, 9], &[65, 6, 4], &[65, 6, 2, 1], &[65, 6, 4, 3], &[65, 24, 3]] {
            let operands =
                vec![x(&[65, 6, if mask[1] == 24 { 12 } else { 4 }, 3]), Operand::normal(dtype, mask)];
            cases.push(Case::new(SoftMax { scale: 0.125 }, dtype, operands, tolerance));
        }
        // one row in five is hidden altogether
        let hide = |i: usize| if (i / 33) % 5 == 2 || i.is_multiple_of(3) { f64::NEG_INFINITY } else { 0.0 };
        let mask = Operand::normal(dtype, &[33, 10]).fill(Fill::Values((0..330).map(hide).collect()));
        cases.push(Case::new(SoftMax { scale: 2.0 }, dtype, vec![x(&[33, 10, 2]), mask], tolerance));
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Outcome, run_direct};
    use crate::device::software::simd::Isa;

    #[test]
    fn all_cases_on_every_instruction_set() {
        for (case, isa) in cases().iter().flat_map(|c| Isa::available().map(move |isa| (c, isa))) {
            let outcome = run_direct(case, isa);
            assert!(matches!(outcome, Outcome::Ok { .. }), "{}: {outcome:?}: {case:?}", isa.name());
        }
    }

    #[test]
    fn masks_of_other_shapes_are_refused() {
        let desc = |dtype, ne: &[usize]| Desc::new(dtype, ne).unwrap();
        let x = desc(DType::F32, &[65, 6, 4]);
        let op = SoftMax { scale: 1.0 };
        for mask in [
            desc(DType::F32, &[64, 6]),
            desc(DType::F32, &[65, 5]),
            desc(DType::F32, &[65, 6, 3]),
            desc(DType::BF16, &[65, 6]),
        ] {
            assert!(op.output(&[x, mask]).is_err(), "{mask}");
        }
        // as many rows, another arrangement
        let x = desc(DType::F32, &[65, 6, 4]);
        assert!(!op.row_local(&[x, desc(DType::F32, &[65, 24])], &x));
        assert!(op.row_local(&[x, desc(DType::F32, &[65, 6])], &x));
    }
}
