//! Rows of activations made ready for matrix products: the right-hand side in fewer bits.
//!
//! Eight bits in blocks of 32: d = max|x| / 127, q = round(x / d); CPUs take `DType::Q8A`, GPUs `DType::Q8P`. GPUs with
//! cooperative matrices take F16 for many columns; what F16 cannot hold becomes its largest number. Inserted by devices
//! before products; part of no model's formula.

use super::{Cost, Op};
use crate::check::{Case, Fill, Operand, Tolerance};
use crate::device::software::simd;
use crate::error::{Error, Result};
use crate::gpu::{Dispatch, GpuCall, Shader};
use crate::kernel::{Call, Kernel, RefTensor};
use crate::tensor::{DType, Desc};

/// The largest number of F16.
const LARGEST: f32 = 65504.0;
/// Values that share a scale.
const BLOCK: usize = 32;

/// x F32 `[k, rows..]` to rows of the same shape in fewer bits; eight bits take k a multiple of 32.
#[derive(Clone, Copy, Debug)]
pub struct QuantizeRows {
    /// `Q8A`, `Q8P` or `F16`.
    pub to: DType,
}

/// One row to `Q8P`. `row` is exactly as long as the type says.
pub(crate) fn quantize_q8p(x: &[f32], row: &mut [u8]) {
    let (codes, scales) = row.split_at_mut(x.len());
    scales.fill(0);
    for ((x, codes), scale) in
        x.chunks_exact(BLOCK).zip(codes.chunks_exact_mut(BLOCK)).zip(scales.chunks_exact_mut(8))
    {
        let largest = x.iter().fold(0.0f32, |m, x| if x.is_nan() { f32::NAN } else { m.max(x.abs()) });
        let d = if largest.is_finite() { largest / 127.0 } else { f32::NAN };
        // 127 / a subnormal overflows: such a block is all zeros at this precision.
        let inverse = Some(127.0 / largest).filter(|i| i.is_finite()).unwrap_or(0.0);
        let mut sum = 0.0;
        for (code, x) in codes.iter_mut().zip(x) {
            let steps = (x * inverse).round_ties_even();
            *code = steps as i8 as u8;
            sum += steps;
        }
        scale[..4].copy_from_slice(&d.to_le_bytes());
        scale[4..].copy_from_slice(&(d * sum).to_le_bytes());
    }
}

/// The values of a row of `Q8P` in f32.
pub(crate) fn q8p_floats(row: &[u8], values: &mut [f32]) {
    let (codes, scales) = row.split_at(values.len());
    for ((values, codes), s) in
        values.chunks_exact_mut(BLOCK).zip(codes.chunks_exact(BLOCK)).zip(scales.chunks_exact(8))
    {
        let d = f32::from_le_bytes([s[0], s[1], s[2], s[3]]);
        values.iter_mut().zip(codes).for_each(|(v, &c)| *v = d * f32::from(c as i8));
    }
}

/// The values of a row of `Q8P`.
pub(crate) fn q8p_values(row: &[u8], values: &mut [f64]) {
    let (codes, scales) = row.split_at(values.len());
    for ((values, codes), s) in
        values.chunks_exact_mut(BLOCK).zip(codes.chunks_exact(BLOCK)).zip(scales.chunks_exact(8))
    {
        let d = f64::from(f32::from_le_bytes([s[0], s[1], s[2], s[3]]));
        values.iter_mut().zip(codes).for_each(|(v, &c)| *v = d * f64::from(c as i8));
    }
}

impl Op for QuantizeRows {
    fn name(&self) -> &'static str {
        "quantize_rows"
    }

    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        match inputs {
            [x] if x.dtype == DType::F32 => Desc::new(self.to, &x.ne),
            _ => Err(Error::shape("quantize_rows", format!("one F32 tensor, found {inputs:?}"))),
        }
    }

    fn supports(&self, inputs: &[Desc], output: &Desc) -> Result<(), String> {
        if !matches!(self.to, DType::Q8A | DType::Q8P | DType::F16) {
            return Err(format!("rows become Q8A, Q8P or F16, found {}", self.to));
        }
        if inputs[0].has_dense_rows() && output.is_contiguous() {
            return Ok(());
        }
        Err(format!("rows have to be dense, found {} and {output}", inputs[0]))
    }

    fn cost(&self, inputs: &[Desc], output: &Desc) -> Cost {
        Cost { flops: output.elements() as f64 * 4.0, bytes: (inputs[0].span() + output.span()) as f64 }
    }

    fn row_local(&self, _: &[Desc], _: &Desc) -> bool {
        true
    }

    fn kernels(&self, call: &Call<'_>) -> Vec<Kernel> {
        let (x, out, to) = (call.inputs[0], call.output, self.to);
        vec![Kernel::rows(x.desc.rows(), x.desc.nb[1], move |r, worker| {
            if to == DType::F16 {
                let isa = worker.isa;
                let wide = worker.floats(x.desc.ne[0]);
                let clamp = |x: f32| if x.abs() > LARGEST { LARGEST.copysign(x) } else { x };
                wide.iter_mut().zip(x.row::<f32>(r)).for_each(|(w, &x)| *w = clamp(x));
                // SAFETY: row r belongs to item r.
                simd::f32_to_f16(isa, wide, unsafe { out.row_mut(r) });
                return Ok(());
            }
            // SAFETY: row r belongs to item r.
            let row = unsafe { out.row_mut::<u8>(r) };
            if to == DType::Q8P {
                quantize_q8p(x.row(r), row);
                return Ok(());
            }
            simd::quantize_act_row(worker.isa, x.row(r), row).map_err(|e| Error::Kernel(e.to_string()))
        })]
    }

    fn shader(&self, call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
        let (x, y) = (&call.inputs[0], &call.output);
        if y.desc.dtype == DType::F16 {
            if !x.desc.is_contiguous() {
                return Err(format!("rows without gaps, found {}", x.desc));
            }
            let shader = Shader::new("rows_to_f16", include_str!("rows_to_f16.wgsl"))
                .number("count", y.desc.elements())
                .raw("x", "read", "f32", x)
                .raw("y", "read_write", "u16", y);
            return Ok(vec![shader.items(y.desc.elements(), 128)?]);
        }
        if y.desc.dtype != DType::Q8P {
            return Err(format!("{} is a layout of CPUs", y.desc.dtype));
        }
        let blocks = y.desc.ne[0] / BLOCK;
        let count = y.desc.rows() * blocks;
        let shader = Shader::new("quantize_rows", include_str!("quantize_rows.wgsl"))
            .part(include_str!("../gpu/quantize.wgsl"))
            .number("count", count)
            .number("blocks", blocks)
            .number("n1", y.desc.ne[1])
            .number("n2", y.desc.ne[2])
            .input("x", x)
            .strides("x", x, true)
            .output("y", y)
            .strides("y", y, true);
        Ok(vec![shader.items(count * 8, 64)?])
    }

    fn reference(&self, inputs: &[RefTensor], _: &Desc) -> RefTensor {
        let mut out = inputs[0].clone();
        if self.to == DType::F16 {
            out.data.iter_mut().for_each(|x| *x = x.clamp(-f64::from(LARGEST), f64::from(LARGEST)));
        }
        out
    }
}

pub(super) fn cases() -> Vec<Case> {
    // Half a step of 1/127 of each block's largest value: about 1e-5 of the energy of normal numbers.
    let case = |to, x: Operand| Case::new(QuantizeRows { to }, to, vec![x], Tolerance::Nmse(1e-4));
    let mut cases = Vec::new();
    let half = |x| Case::new(QuantizeRows { to: DType::F16 }, DType::F16, vec![x], Tolerance::Exact);
    cases.push(half(Operand::normal(DType::F32, &[576, 3])));
    cases.push(half(Operand::normal(DType::F32, &[64, 3, 2])));
    let large = Fill::Values(vec![1e9, -1e9, 65504.0, -65519.0, 65520.0, 1e-9, 0.0, 1.0]);
    cases.push(half(Operand::normal(DType::F32, &[8]).fill(large)));
    for to in [DType::Q8A, DType::Q8P] {
        for ne in [&[32][..], &[64, 3], &[576, 2, 2], &[0, 4], &[96, 5]] {
            cases.push(case(to, Operand::normal(DType::F32, ne)));
        }
        cases.push(case(to, Operand::normal(DType::F32, &[96, 4]).slice(0, 32, 64)));
        cases.push(case(to, Operand::normal(DType::F32, &[64, 3]).fill(Fill::Uniform(1e-20, 1e-18))));
        cases.push(case(to, Operand::normal(DType::F32, &[64, 3]).fill(Fill::Values(vec![0.0; 192]))));
    }
    cases
}
