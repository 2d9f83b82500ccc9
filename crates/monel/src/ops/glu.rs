//! Gated linear units: `act(gate) * up`, the middle of a feed-forward block.
//!
//! SiLU(x) = x / (1 + e^-x); the tanh form of GELU is 0.5 x (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))
//! (Hendrycks and Gimpel, arXiv 1606.08415); GLU variants after Shazeer, arXiv 2002.05202.

use super::unary::{UnaryKind, wgsl};
use super::{Cost, Op};
use crate::check::{Case, Operand, Tolerance};
use crate::device::software::simd;
use crate::error::{Error, Result};
use crate::gpu::{Dispatch, GpuCall, Shader};
use crate::kernel::{Call, Kernel, RefTensor};
use crate::tensor::{DType, Desc};

/// Which activation gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GluKind {
    /// SiLU (SwiGLU).
    Swiglu,
    /// GELU in its tanh form (GeGLU).
    Geglu,
    /// max(x, 0) (ReGLU).
    Reglu,
}

/// `act(gate) * up`, element by element; both F32 `[n, rows..]` of the same shape.
#[derive(Clone, Copy, Debug)]
pub struct Glu {
    /// The activation.
    pub kind: GluKind,
}

impl Glu {
    /// The function of the gate.
    pub(crate) fn activation(&self) -> UnaryKind {
        match self.kind {
            GluKind::Swiglu => UnaryKind::Silu,
            GluKind::Geglu => UnaryKind::Gelu,
            GluKind::Reglu => UnaryKind::Relu,
        }
    }

    /// A row of the result, or a part of one.
    pub(super) fn row(&self, isa: simd::Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
        match self.kind {
            GluKind::Swiglu => simd::silu_mul(isa, gate, up, out),
            GluKind::Geglu => simd::gelu_tanh_mul(isa, gate, up, out),
            GluKind::Reglu => out.iter_mut().zip(gate).zip(up).for_each(|((o, g), u)| *o = g.max(0.0) * u),
        }
    }
}

impl Op for Glu {
    fn name(&self) -> &'static str {
        "glu"
    }

    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        let [gate, up] = inputs else {
            return Err(Error::shape("glu", format!("gate and up, found {} inputs", inputs.len())));
        };
        if !gate.same_shape(up) {
            return Err(Error::shape("glu", format!("gate and up of one shape, found {gate} and {up}")));
        }
        Desc::new(DType::F32, &gate.ne)
    }

    fn supports(&self, inputs: &[Desc], output: &Desc) -> Result<(), String> {
        super::all_f32_rows(inputs, output)
    }

    fn cost(&self, inputs: &[Desc], output: &Desc) -> Cost {
        let bytes = inputs.iter().chain([output]).map(|d| d.span() as f64).sum();
        Cost { flops: output.elements() as f64 * 20.0, bytes }
    }

    fn row_local(&self, _: &[Desc], _: &Desc) -> bool {
        true
    }

    fn kernels(&self, call: &Call<'_>) -> Vec<Kernel> {
        let (glu, gate, up, out) = (*self, call.inputs[0], call.inputs[1], call.output);
        vec![Kernel::rows(out.desc.rows(), out.desc.nb[1] * 3, move |r, worker| {
            // SAFETY: row r belongs to item r.
            let out = unsafe { out.row_mut::<f32>(r) };
            let (gate, up) = (gate.row(r), up.row(r));
            glu.row(worker.isa, gate, up, out);
            Ok(())
        })]
    }

    fn shader(&self, call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
        let (gate, up, y) = (&call.inputs[0], &call.inputs[1], &call.output);
        let shader = Shader::new("glu", include_str!("glu.wgsl"))
            .part(include_str!("../gpu/functions.wgsl"))
            .number("count", y.desc.elements())
            .dims("n", y.desc.ne)
            .input("gate", gate)
            .strides("gate", gate, true)
            .input("up", up)
            .strides("up", up, true)
            .output("y", y)
            .strides("y", y, true)
            .define("F", wgsl(self.activation()));
        Ok(vec![shader.items(y.desc.elements(), 128)?])
    }

    fn reference(&self, inputs: &[RefTensor], output: &Desc) -> RefTensor {
        let mut out = RefTensor::zeros(output.ne);
        for ((o, &g), &u) in out.data.iter_mut().zip(&inputs[0].data).zip(&inputs[1].data) {
            let act = match self.kind {
                GluKind::Swiglu => g / (1.0 + (-g).exp()),
                GluKind::Geglu => {
                    0.5 * g
                        * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3))).tanh())
                }
                GluKind::Reglu => g.max(0.0),
            };
            *o = act * u;
        }
        out
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [GluKind::Swiglu, GluKind::Geglu, GluKind::Reglu] {
        for ne in [&[0, 3][..], &[1], &[17, 3], &[1536, 2], &[64, 3, 2, 2]] {
            let (gate, up) = (Operand::normal(DType::F32, ne), Operand::normal(DType::F32, ne));
            // f32 throughout; the vector exp is good to about 1e-6.
            cases.push(Case::new(Glu { kind }, DType::F32, vec![gate, up], Tolerance::Nmse(1e-10)));
        }
        // gate and up as halves of one matrix
        let half = |i: usize| Operand::normal(DType::F32, &[96, 5]).slice(0, i * 48, 48);
        cases.push(Case::new(Glu { kind }, DType::F32, vec![half(0), half(1)], Tolerance::Nmse(1e-10)));
    }
    cases
}
