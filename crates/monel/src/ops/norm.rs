//! Norms of rows: the root mean square (Zhang and Sennrich, arXiv 1910.07467) and the layer norm (Ba et al.,
//! arXiv 1607.06450), with their weights in the same pass.

use super::{Cost, Op};
use crate::check::{Case, Fill, Operand, Tolerance};
use crate::device::software::simd::{self, Isa};
use crate::error::{Error, Result};
use crate::gpu::{Dispatch, GpuCall, Shader};
use crate::kernel::{Call, Kernel, RefTensor};
use crate::tensor::{DType, Desc};

/// `x / sqrt(mean(x²) + eps)` of each row of x (F32), times the weight (F32 `[n]`) where given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// Keeps the root away from zero.
    pub eps: f32,
}

/// `(x - mean(x)) / sqrt(var(x) + eps)` of each row of x (F32), times the weight, plus the bias (F32 `[n]`); inputs are
/// x, the weight and, where given, the bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    /// Keeps the root away from zero.
    pub eps: f32,
}

/// The shape rule of both: x, then up to `most - 1` rows as long as x's.
fn output(op: &'static str, inputs: &[Desc], least: usize, most: usize) -> Result<Desc> {
    if !(least..=most).contains(&inputs.len()) {
        return Err(Error::shape(op, format!("{least} to {most} inputs, found {}", inputs.len())));
    }
    for row in &inputs[1..] {
        if row.ne != [inputs[0].ne[0], 1, 1, 1] {
            return Err(Error::shape(
                op,
                format!("a weight or bias as long as the rows of {}, found {row}", inputs[0]),
            ));
        }
    }
    Desc::new(DType::F32, &inputs[0].ne)
}

/// The GPU kernel of both, for rows of any length and stride.
fn shader(call: &GpuCall<'_>, eps: f32, centred: bool) -> Result<Vec<Dispatch>, String> {
    let (x, y) = (&call.inputs[0], &call.output);
    let mut shader = Shader::new("norm", include_str!("norm.wgsl"))
        .reductions(128)
        .number("rows", y.desc.rows())
        .dims("n", y.desc.ne)
        .input("x", x)
        .strides("x", x, true)
        .output("y", y)
        .strides("y", y, true)
        .float("eps", eps)
        .define("CENTRED", centred)
        .define("VALUE", if centred { "y[to + i] - mean" } else { "x[start + i] * unit" });
    if let Some(weight) = call.inputs.get(1) {
        shader = shader.input("w", weight);
    }
    if let Some(bias) = call.inputs.get(2) {
        shader = shader.input("b", bias);
    }
    let weight = if call.inputs.len() > 1 { " * w[p.w + i]" } else { "" };
    let bias = if call.inputs.len() > 2 { " + b[p.b + i]" } else { "" };
    Ok(vec![shader.define("WEIGHT", weight).define("BIAS", bias).groups(y.desc.rows())?])
}

/// Sums stay in f32 within runs of this length and in f64 across them: errors near 1e-7 for rows of any length.
const RUN: usize = 4096;

fn sum_of_squares(isa: Isa, x: &[f32]) -> f64 {
    let sum: f64 = x.chunks(RUN).map(|run| f64::from(simd::sum_sq(isa, run))).sum();
    if sum.is_finite() {
        sum
    } else {
        // squares beyond f32's range
        x.iter().map(|&x| f64::from(x) * f64::from(x)).sum()
    }
}

/// The sum in f64, in eight parts so that the additions overlap.
fn sum(x: &[f32]) -> f64 {
    let (eights, rest) = x.as_chunks::<8>();
    let mut parts = [0.0; 8];
    for eight in eights {
        parts.iter_mut().zip(eight).for_each(|(part, &x)| *part += f64::from(x));
    }
    parts.iter().sum::<f64>() + rest.iter().map(|&x| f64::from(x)).sum::<f64>()
}

impl Op for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        output("rms_norm", inputs, 1, 2)
    }

    fn supports(&self, inputs: &[Desc], output: &Desc) -> Result<(), String> {
        super::all_f32_rows(inputs, output)
    }

    fn cost(&self, inputs: &[Desc], output: &Desc) -> Cost {
        let bytes = inputs.iter().chain([output]).map(|d| d.span() as f64).sum();
        Cost { flops: output.elements() as f64 * 4.0, bytes }
    }

    fn row_local(&self, _: &[Desc], _: &Desc) -> bool {
        true
    }

    fn kernels(&self, call: &Call<'_>) -> Vec<Kernel> {
        let (eps, x, weight, out) = (self.eps, call.inputs[0], call.inputs.get(1).copied(), call.output);
        vec![Kernel::rows(out.desc.rows(), out.desc.nb[1] * 3, move |r, worker| {
            // SAFETY: row r belongs to item r.
            let out = unsafe { out.row_mut::<f32>(r) };
            let x = x.row::<f32>(r);
            let mean = sum_of_squares(worker.isa, x) / x.len().max(1) as f64;
            let factor = (1.0 / (mean + f64::from(eps)).sqrt()) as f32;
            match &weight {
                Some(weight) => {
                    let weight = weight.row::<f32>(0);
                    out.iter_mut().zip(x).zip(weight).for_each(|((o, x), w)| *o = x * factor * w);
                }
                None => out.iter_mut().zip(x).for_each(|(o, x)| *o = x * factor),
            }
            Ok(())
        })]
    }

    fn shader(&self, call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
        // Rows that fit in registers are read once; others as often as it takes.
        crate::gpu::fuse::row(self, call).or_else(|_| shader(call, self.eps, false))
    }

    fn reference(&self, inputs: &[RefTensor], output: &Desc) -> RefTensor {
        let mut out = RefTensor::zeros(output.ne);
        for r in 0..out.rows() {
            let x = inputs[0].row(r);
            let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
            let factor = 1.0 / (mean + f64::from(self.eps)).sqrt();
            for (i, o) in out.row_mut(r).iter_mut().enumerate() {
                *o = x[i] * factor * inputs.get(1).map_or(1.0, |w| w.data[i]);
            }
        }
        out
    }
}

impl Op for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        output("layer_norm", inputs, 2, 3)
    }

    fn supports(&self, inputs: &[Desc], output: &Desc) -> Result<(), String> {
        super::all_f32_rows(inputs, output)
    }

    fn cost(&self, inputs: &[Desc], output: &Desc) -> Cost {
        let bytes = inputs.iter().chain([output]).map(|d| d.span() as f64).sum();
        Cost { flops: output.elements() as f64 * 7.0, bytes }
    }

    fn row_local(&self, _: &[Desc], _: &Desc) -> bool {
        true
    }

    fn kernels(&self, call: &Call<'_>) -> Vec<Kernel> {
        let (eps, x, weight, out) = (self.eps, call.inputs[0], call.inputs[1], call.output);
        let bias = call.inputs.get(2).copied();
        vec![Kernel::rows(out.desc.rows(), out.desc.nb[1] * 4, move |r, worker| {
            // SAFETY: row r belongs to item r.
            let out = unsafe { out.row_mut::<f32>(r) };
            let (x, weight) = (x.row::<f32>(r), weight.row::<f32>(0));
            let n = x.len().max(1) as f64;
            // the mean first, then the squares of what is left: nothing cancels
            let mean = sum(x) / n;
            out.iter_mut().zip(x).for_each(|(o, &x)| *o = (f64::from(x) - mean) as f32);
            let variance = sum_of_squares(worker.isa, out) / n;
            let factor = (1.0 / (variance + f64::from(eps)).sqrt()) as f32;
            out.iter_mut().zip(weight).for_each(|(o, w)| *o *= factor * w);
            if let Some(bias) = &bias {
                out.iter_mut().zip(bias.row::<f32>(0)).for_each(|(o, b)| *o += b);
            }
            Ok(())
        })]
    }

    fn shader(&self, call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
        shader(call, self.eps, true)
    }

    fn reference(&self, inputs: &[RefTensor], output: &Desc) -> RefTensor {
        let mut out = RefTensor::zeros(output.ne);
        for r in 0..out.rows() {
            let x = inputs[0].row(r);
            let mean = x.iter().sum::<f64>() / x.len() as f64;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
            let factor = 1.0 / (variance + f64::from(self.eps)).sqrt();
            for (i, o) in out.row_mut(r).iter_mut().enumerate() {
                *o = (x[i] - mean) * factor * inputs[1].data[i] + inputs.get(2).map_or(0.0, |b| b.data[i]);
            }
        }
        out
    }
}

pub(super) fn cases() -> Vec<Case> {
    // Every element is rounded three times and the root's argument is good to 1e-7.
    let tolerance = Tolerance::Relative(5e-7);
    let mut cases = Vec::new();
    let row = |n| Operand::normal(DType::F32, &[n]);
    let both = |cases: &mut Vec<Case>, x: Operand, n: usize| {
        let rms = RmsNorm { eps: 1e-5 };
        cases.push(Case::new(rms, DType::F32, vec![x.clone()], tolerance));
        cases.push(Case::new(rms, DType::F32, vec![x.clone(), row(n)], tolerance));
        let layer = LayerNorm { eps: 1e-5 };
        cases.push(Case::new(layer, DType::F32, vec![x.clone(), row(n)], tolerance));
        cases.push(Case::new(layer, DType::F32, vec![x, row(n), row(n)], tolerance));
    };
    for ne in [
        &[0, 3][..],
        &[5, 0],
        &[2],
        &[17, 3],
        &[576, 2],
        &[64, 9, 4],
        &[33, 3, 2, 2],
        &[4, 2],
        &[1000, 3],
        &[16_384],
        &[16_388],
        &[100_003],
    ] {
        both(&mut cases, Operand::normal(DType::F32, ne), ne[0]);
    }
    // where vectors can be read: GPUs keep such rows in registers
    for (ne, fill) in [
        (&[4, 2][..], Fill::Normal(1.0)),
        (&[1000, 3], Fill::Normal(1.0)),
        (&[4096], Fill::Normal(1.0)),
        (&[16_384], Fill::Normal(1.0)),
        (&[16_388], Fill::Normal(1.0)),
        (&[40, 2], Fill::Normal(1e-4)),
        (&[40, 2], Fill::Normal(1e12)),
        (&[40, 2], Fill::Normal(1e30)),
    ] {
        let aligned = |ne: &[usize]| Operand::normal(DType::F32, ne).aligned();
        let rms = RmsNorm { eps: 1e-5 };
        let x = aligned(ne).fill(fill);
        for inputs in [vec![x.clone()], vec![x, aligned(&ne[..1])]] {
            cases.push(Case::new(rms, DType::F32, inputs, tolerance).into(aligned(ne)));
        }
    }
    // heads inside a wider row, rows in another order
    both(&mut cases, Operand::normal(DType::F32, &[96, 7]).slice(0, 32, 64), 64);
    both(&mut cases, Operand::normal(DType::F32, &[64, 3, 5]).permuted([0, 2, 1, 3]), 64);
    // all equal: the variance is zero
    both(&mut cases, Operand::normal(DType::F32, &[40, 2]).fill(Fill::Uniform(3.0, 3.0)), 40);
    // tiny and large numbers
    both(&mut cases, Operand::normal(DType::F32, &[40, 2]).fill(Fill::Normal(1e-4)), 40);
    both(&mut cases, Operand::normal(DType::F32, &[40, 2]).fill(Fill::Normal(1e12)), 40);
    both(&mut cases, Operand::normal(DType::F32, &[40, 2]).fill(Fill::Normal(1e30)), 40);
    // a large mean, small differences
    let shifted = Operand::normal(DType::F32, &[700, 2]).fill(Fill::Uniform(1000.0, 1001.0));
    cases.push(Case::new(LayerNorm { eps: 1e-6 }, DType::F32, vec![shifted, row(700)], tolerance));
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Outcome, run_direct};

    #[test]
    fn all_cases_on_every_instruction_set() {
        for (case, isa) in cases().iter().flat_map(|c| Isa::available().map(move |isa| (c, isa))) {
            let outcome = run_direct(case, isa);
            assert!(matches!(outcome, Outcome::Ok { .. }), "{}: {outcome:?}: {case:?}", isa.name());
        }
    }

    #[test]
    fn weights_of_other_shapes_are_refused() {
        let desc = |ne: &[usize]| Desc::new(DType::F32, ne).unwrap();
        let (x, weight) = (desc(&[64, 3]), desc(&[64]));
        assert!(RmsNorm { eps: 0.0 }.output(&[x, desc(&[63])]).is_err());
        assert!(RmsNorm { eps: 0.0 }.output(&[x, desc(&[64, 3])]).is_err());
        assert!(RmsNorm { eps: 0.0 }.output(&[]).is_err());
        assert!(LayerNorm { eps: 0.0 }.output(&[x]).is_err());
        assert!(LayerNorm { eps: 0.0 }.output(&[x, weight, weight]).is_ok());
        let turned = x.permute([1, 0, 2, 3]).unwrap();
        assert!(RmsNorm { eps: 0.0 }.supports(&[turned], &turned).is_err());
    }
}
