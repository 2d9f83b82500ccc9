//! Quantizing rows of activations to eight bits: the right-hand side of integer products (see `DType::Q8A`).
//!
//! In blocks of 32: d = max|x| / 127, q = round(x / d). Inserted by the software device before products with quantized
//! weights; part of no model's formula.

use super::{Cost, Op};
use crate::check::{Case, Fill, Operand, Tolerance};
use crate::device::software::simd;
use crate::error::{Error, Result};
use crate::kernel::{Call, Kernel, RefTensor};
use crate::tensor::{DType, Desc};

/// x F32 `[k, rows..]`, k a multiple of 32, to Q8A of the same shape.
#[derive(Clone, Copy, Debug)]
pub struct QuantizeRows;

impl Op for QuantizeRows {
    fn name(&self) -> &'static str {
        "quantize_rows"
    }

    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        match inputs {
            [x] if x.dtype == DType::F32 => Desc::new(DType::Q8A, &x.ne),
            _ => Err(Error::shape("quantize_rows", format!("one F32 tensor, found {inputs:?}"))),
        }
    }

    fn supports(&self, inputs: &[Desc], output: &Desc) -> Result<(), String> {
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
        let (x, out) = (call.inputs[0], call.output);
        vec![Kernel::rows(x.desc.rows(), x.desc.nb[1], move |r, worker| {
            // SAFETY: row r belongs to item r.
            let row = unsafe { out.row_mut::<u8>(r) };
            simd::quantize_act_row(worker.isa, x.row(r), row).map_err(|e| Error::Kernel(e.to_string()))
        })]
    }

    fn reference(&self, inputs: &[RefTensor], _: &Desc) -> RefTensor {
        inputs[0].clone()
    }
}

pub(super) fn cases() -> Vec<Case> {
    // Half a step of 1/127 of each block's largest value: about 1e-5 of the energy of normal numbers.
    let case = |x: Operand| Case::new(QuantizeRows, DType::F32, vec![x], Tolerance::Nmse(1e-4));
    let mut cases: Vec<Case> = [&[32][..], &[64, 3], &[576, 2, 2], &[0, 4]]
        .iter()
        .map(|ne| case(Operand::normal(DType::F32, ne)))
        .collect();
    cases.push(case(Operand::normal(DType::F32, &[96, 4]).slice(0, 32, 64)));
    cases.push(case(Operand::normal(DType::F32, &[64, 3]).fill(Fill::Uniform(1e-20, 1e-18))));
    cases
}
