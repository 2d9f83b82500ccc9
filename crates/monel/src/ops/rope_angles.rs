//! The angles of a rotary position embedding, for all layers and heads that turn by them: sines and cosines cost more than
//! the rotation itself, and every layer has the same. Graphs are lowered to it (`device/lower.rs`); a model asks for
//! [`Rope`] alone.

use super::rope::Rope;
use super::unary::vectorized;
use super::{Cost, Op};
use crate::check::{Case, Fill, Operand, Tolerance};
use crate::error::{Error, Result};
use crate::gpu::{Dispatch, GpuCall, Shader};
use crate::kernel::{Call, Kernel, RefTensor};
use crate::tensor::{DType, Desc};

/// Of positions (I32 `[tokens]`), and perhaps factors (F32 `[dims / 2]`) that divide the frequencies, F32 `[dims, tokens]`:
/// the sines of a token's pairs and then their cosines, both times the magnitude of the rotation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeAngles {
    /// Whose angles.
    pub rope: Rope,
}

impl Op for RopeAngles {
    fn name(&self) -> &'static str {
        "rope_angles"
    }

    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        let Some(positions) = inputs.first() else {
            return Err(Error::shape("rope_angles", "positions and perhaps factors, found no inputs"));
        };
        let tokens = self.rope.of_positions("rope_angles", inputs, positions.ne[0])?;
        Desc::new(DType::F32, &[self.rope.dims, tokens])
    }

    fn supports(&self, inputs: &[Desc], output: &Desc) -> Result<(), String> {
        super::all_f32_rows(&[], output)?;
        self.rope.can_turn(inputs)
    }

    fn cost(&self, _: &[Desc], output: &Desc) -> Cost {
        Cost { flops: output.elements() as f64 * 15.0, bytes: output.span() as f64 }
    }

    fn kernels(&self, call: &Call<'_>) -> Vec<Kernel> {
        let (positions, factors) = (call.inputs[0], call.inputs.get(1).copied());
        let (rope, out) = (self.rope, call.output);
        let (frequencies, magnitude) = rope.frequencies();
        let magnitude = magnitude as f32;
        vec![Kernel::rows(out.desc.ne[1], out.desc.nb[1] * 4, move |token, worker| {
            // SAFETY: each token is one item.
            let (sin, cos) = unsafe { out.row_mut::<f32>(token) }.split_at_mut(rope.dims / 2);
            let position = positions.at::<i32>([token, 0, 0, 0]);
            let factors = factors.as_ref().map(|f| f.row::<f32>(0));
            vectorized(worker.isa, || {
                rope.turns((&frequencies, magnitude), position, factors, (&mut *sin, &mut *cos));
            });
            Ok(())
        })]
    }

    fn shader(&self, call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
        let (positions, y) = (&call.inputs[0], &call.output);
        let pairs = self.rope.dims / 2;
        let count = pairs * y.desc.ne[1];
        let shader = Shader::new("rope_angles", include_str!("rope_angles.wgsl"))
            .number("count", count)
            .number("pairs", pairs)
            .input("positions", positions)
            .number("positions0", positions.desc.nb[0] / 4)
            .output("y", y)
            .strides("y", y, true);
        Ok(vec![self.rope.angles(shader, call.inputs.get(1))?.items(count, 64)?])
    }

    fn reference(&self, inputs: &[RefTensor], output: &Desc) -> RefTensor {
        let (frequencies, magnitude) = self.rope.frequencies();
        let mut out = RefTensor::zeros(output.ne);
        for token in 0..output.ne[1] {
            for (i, f) in frequencies.iter().enumerate() {
                let factor = inputs.get(1).map_or(1.0, |factors| factors.data[i]);
                let (sin, cos) = (inputs[0].data[token] * f / factor).sin_cos();
                out.row_mut(token)[i] = sin * magnitude;
                out.row_mut(token)[frequencies.len() + i] = cos * magnitude;
            }
        }
        out
    }
}

pub(super) fn cases() -> Vec<Case> {
    // good to 1e-7 of the largest sine or cosine
    let tolerance = Tolerance::Relative(3e-7);
    let mut cases = Vec::new();
    for rope in super::rope::samples() {
        let mut case = |operands| cases.push(Case::new(RopeAngles { rope }, DType::F32, operands, tolerance));
        let positions = |n: usize| Operand::normal(DType::I32, &[n]).fill(Fill::Ints(0, 1_000_001));
        case(vec![Operand::ints(&[1_000_000])]);
        case(vec![Operand::ints(&[0, 3, -5, 131_071])]);
        case(vec![positions(70)]);
        case(vec![positions(0)]);
        let factors = Operand::normal(DType::F32, &[rope.dims / 2]).fill(Fill::Uniform(1.0, 32.0));
        case(vec![positions(6), factors]);
    }
    cases
}
