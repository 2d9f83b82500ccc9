//! `x * scale + bias` with two constants: attention scales, embeddings scaled by a model, logit scales.

use super::{Cost, Op};
use crate::check::{Case, Operand, Tolerance};
use crate::error::{Error, Result};
use crate::gpu::{Dispatch, GpuCall, Shader};
use crate::kernel::{Call, Kernel, RefTensor};
use crate::ops::unary::vectorized;
use crate::tensor::{DType, Desc};

/// `x * scale + bias` for each element of x (F32, dense rows); the product is rounded before the sum.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// The factor.
    pub scale: f32,
    /// What is added.
    pub bias: f32,
}

impl Op for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        let [x] = inputs else {
            return Err(Error::shape("scale", format!("one input, found {}", inputs.len())));
        };
        Desc::new(DType::F32, &x.ne)
    }

    fn supports(&self, inputs: &[Desc], output: &Desc) -> Result<(), String> {
        super::all_f32_rows(inputs, output)
    }

    fn cost(&self, inputs: &[Desc], output: &Desc) -> Cost {
        let bytes = inputs.iter().chain([output]).map(|d| d.span() as f64).sum();
        Cost { flops: output.elements() as f64 * 2.0, bytes }
    }

    fn row_local(&self, _: &[Desc], _: &Desc) -> bool {
        true
    }

    fn kernels(&self, call: &Call<'_>) -> Vec<Kernel> {
        let (Scale { scale, bias }, x, out) = (*self, call.inputs[0], call.output);
        vec![Kernel::rows(out.desc.rows(), out.desc.ne[0] * 8, move |r, worker| {
            // SAFETY: row r belongs to item r.
            let (out, x) = (unsafe { out.row_mut::<f32>(r) }, x.row::<f32>(r));
            vectorized(worker.isa, || out.iter_mut().zip(x).for_each(|(o, x)| *o = x * scale + bias));
            Ok(())
        })]
    }

    fn shader(&self, call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
        let (x, y) = (&call.inputs[0], &call.output);
        let shader = Shader::new("scale", include_str!("scale.wgsl"))
            .number("count", y.desc.elements())
            .dims("n", y.desc.ne)
            .input("x", x)
            .strides("x", x, true)
            .output("y", y)
            .strides("y", y, true)
            .float("scale", self.scale)
            .float("bias", self.bias);
        Ok(vec![shader.items(y.desc.elements(), 128)?])
    }

    fn reference(&self, inputs: &[RefTensor], output: &Desc) -> RefTensor {
        let data = inputs[0].data.iter().map(|x| x * f64::from(self.scale) + f64::from(self.bias)).collect();
        RefTensor { ne: output.ne, data }
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for op in
        [Scale { scale: 0.125, bias: 0.0 }, Scale { scale: -3.7, bias: 0.3 }, Scale { scale: 0.0, bias: 1.0 }]
    {
        // Rounded twice, or once where a device fuses the two.
        let tolerance = Tolerance::Nmse(1e-13);
        let mut case = |x| cases.push(Case::new(op, DType::F32, vec![x], tolerance));
        for ne in [&[0, 3][..], &[3, 0], &[1], &[17, 3], &[640, 7], &[64, 3, 2, 2]] {
            case(Operand::normal(DType::F32, ne));
        }
        case(Operand::normal(DType::F32, &[96, 5]).slice(0, 48, 31));
        case(Operand::normal(DType::F32, &[16, 5, 3]).permuted([0, 2, 1, 3]));
        let into = Case::new(op, DType::F32, vec![Operand::normal(DType::F32, &[9, 4])], tolerance);
        cases.push(into.into(Operand::normal(DType::F32, &[20, 4]).slice(0, 3, 9)));
    }
    cases
}
