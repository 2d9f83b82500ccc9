//! Every way to cut the work: compiled for a large device, and run on the one at hand.

#![allow(clippy::unwrap_used, reason = "a test's way to fail")]

use super::*;
use crate::check::{self, Case, Tolerance};
use crate::device::vulkan;
use crate::device::vulkan::shader::{Target, compile};
use crate::gpu::Memory;
use crate::kernel::{Call, Kernel, RefTensor};
use crate::ops::{MatMul, Op};

/// A product of w and x, or with `up` before x a gated one, cut in a given way.
#[derive(Clone, Copy, Debug)]
struct Forced {
    /// `None` for the best one.
    cut: Option<Cut>,
    to: DType,
    /// Whether x is a row that is normed first, as a large device does it. The last input is then the norm's weight.
    normed: bool,
}

const EPS: f32 = 1e-5;

impl Op for Forced {
    fn name(&self) -> &'static str {
        "mat_mul"
    }

    fn output(&self, inputs: &[Desc]) -> crate::error::Result<Desc> {
        let x = inputs[inputs.len() - 1 - usize::from(self.normed)];
        Desc::new(self.to, &[inputs[0].ne[1], x.ne[1]])
    }

    fn supports(&self, _: &[Desc], _: &Desc) -> Result<(), String> {
        Ok(())
    }

    fn kernels(&self, _: &Call<'_>) -> Vec<Kernel> {
        Vec::new()
    }

    fn shader(&self, call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
        let (inputs, weight) = match call.inputs {
            [inputs @ .., weight] if self.normed => (inputs, Some(weight)),
            inputs => (inputs, None),
        };
        let [w, up @ .., x] = inputs else { return Err("two or three inputs, and a norm's weight".into()) };
        let gated = up.first().map(|up| (up, UnaryKind::Silu));
        let normed = weight.map(|_| Normed { x, weight, eps: EPS });
        let codes = Operand { desc: Desc::new(takes(&w.desc).unwrap(), &x.desc.ne).unwrap(), ..*x };
        let limits = Limits { software: call.limits.software && !self.normed, ..call.limits };
        let product = Product { w, gated, x: &codes, normed, bias: None, residual: None, y: &call.output };
        product.dispatch_as(&limits, self.cut).map(|d| vec![d])
    }

    fn reference(&self, inputs: &[RefTensor], output: &Desc) -> RefTensor {
        let (inputs, x) = match inputs {
            [inputs @ .., x, weight] if self.normed => {
                let op = crate::ops::RmsNorm { eps: EPS };
                let desc = Desc::new(DType::F32, &x.ne).unwrap();
                (inputs, op.reference(&[x.clone(), weight.clone()], &desc))
            }
            [inputs @ .., x] => (inputs, x.clone()),
            [] => return RefTensor::zeros(output.ne),
        };
        let product = |w: &RefTensor| MatMul.reference(&[w.clone(), x.clone()], output);
        let mut y = product(&inputs[0]);
        if let [_, up] = inputs {
            for (y, up) in y.data.iter_mut().zip(product(up).data) {
                *y *= up / (1.0 + (-*y).exp());
            }
        }
        y
    }
}

/// Runs the cases; all of them have to pass.
fn all_pass(device: &crate::Device, cases: &[Case]) {
    let report = check::run_cases(device, cases);
    for row in report.results.iter().filter(|row| row.outcome != "ok").take(20) {
        println!("{} {:?} {:?}", row.shape, row.error, row.reason);
    }
    assert_eq!(report.passed, cases.len(), "{} failed, {} refused", report.failed, report.refused);
}

fn types() -> Vec<DType> {
    let quantized = BlockType::ALL.into_iter().filter(|b| !b.is_float());
    quantized.map(DType::Planar).chain([DType::F16, DType::BF16, DType::F32]).collect()
}

fn cuts(lanes: &[usize], threads: usize) -> Vec<Cut> {
    let of = |rows| move |steps| (rows, steps);
    let shapes = [1, 2, 4].into_iter().flat_map(|rows| [1, 2, 3, 4].into_iter().map(of(rows)));
    shapes
        .flat_map(|(rows, steps)| {
            lanes.iter().map(move |&lanes| Cut { rows, steps, lanes, sets: 1, threads })
        })
        .collect()
}

/// A device's kernel of weights `[k, n]` with m columns, or with one that is normed first.
fn made(
    limits: &Limits,
    w: DType,
    [k, n, m]: [usize; 3],
    gated: bool,
    to: DType,
    cut: Option<Cut>,
    normed: bool,
) -> Result<Dispatch, String> {
    let operand = |dtype, ne: &[usize], input| Operand {
        desc: Desc::new(dtype, ne).unwrap(),
        offset: 0,
        memory: Memory::Input(input),
    };
    let (w, up) = (operand(w, &[k, n], 0), operand(w, &[k, n], 1));
    let x = operand(takes(&w.desc).unwrap(), &[k, m], 2);
    let (row, weight) = (operand(DType::F32, &[k, 1], 3), operand(DType::F32, &[k], 4));
    let y = operand(to, &[n, m], 5);
    let gated = gated.then_some((&up, UnaryKind::Silu));
    let normed = normed.then_some(Normed { x: &row, weight: Some(&weight), eps: EPS });
    Product { w: &w, gated, x: &x, normed, bias: None, residual: None, y: &y }.dispatch_as(limits, cut)
}

fn dispatch(w: DType, shape: [usize; 3], gated: bool, to: DType, cut: Option<Cut>) -> Dispatch {
    made(&Limits::LARGE, w, shape, gated, to, cut, false).unwrap()
}

/// Compiles a large device's kernel.
fn check_text(d: Dispatch) {
    let text = d.source.text().unwrap();
    compile(&text, Target::LARGE).unwrap_or_else(|e| panic!("{e}\n{text}"));
}

#[test]
fn kernels_of_a_large_device_are_valid() {
    for dtype in types() {
        for m in [1, 2, 3, 8] {
            check_text(dispatch(dtype, [4096, 14_336, m], true, DType::Q8P, None));
            check_text(dispatch(dtype, [14_336, 4096, m], false, DType::F32, None));
            check_text(dispatch(dtype, [4096, 128_256, m], false, DType::F32, None));
        }
    }
    for dtype in [DType::Planar(BlockType::Q4_K), DType::F16] {
        for (cut, gated) in cuts(&[8, 32], 256).into_iter().flat_map(|cut| [(cut, false), (cut, true)]) {
            check_text(dispatch(dtype, [1536, 100, 1], gated, DType::F32, Some(cut)));
            check_text(dispatch(dtype, [1536, 128, 2], gated, DType::Q8P, Some(cut)));
        }
    }
}

#[test]
fn products_of_a_normed_row_are_right_as_a_large_device_computes_them() {
    let Some((device, _holder)) = vulkan::tests::device(vulkan::Forced::default()) else { return };
    let mut cases = Vec::new();
    for dtype in types() {
        let unit = if let DType::Planar(block) = dtype { DType::of(block).block_len() } else { 8 };
        let weights = |ne: &[usize]| check::Operand::normal(dtype, ne).aligned();
        let floats = |ne: &[usize]| check::Operand::normal(DType::F32, ne).aligned();
        // The norm rounds to eight bits as the products of rows do; floats are exact. Rows shorter and longer than a turn.
        let limit = if let DType::Planar(_) = dtype { 1e-3 } else { 1e-9 };
        for k in [unit * 3, unit * 13, unit.max(32) * 40] {
            let mut case = |to, inputs, limit| {
                cases.push(Case::new(
                    Forced { cut: None, to, normed: true },
                    dtype,
                    inputs,
                    Tolerance::Nmse(limit),
                ));
            };
            case(DType::F32, vec![weights(&[k, 75]), floats(&[k, 1]), floats(&[k])], limit);
            let gated = vec![weights(&[k, 96]), weights(&[k, 96]), floats(&[k, 1]), floats(&[k])];
            case(DType::Q8P, gated, 4e-3);
        }
    }
    all_pass(&device, &cases);
}

#[test]
fn norms_before_products_of_a_large_device_are_valid() {
    for dtype in types() {
        for (shape, gated, to) in [([4096, 14_336, 1], true, DType::Q8P), ([768, 192, 1], false, DType::F32)]
        {
            check_text(made(&Limits::LARGE, dtype, shape, gated, to, None, true).unwrap());
        }
    }
    // Logits are better off without.
    let logits = [4096, 128_256, 1];
    assert!(made(&Limits::LARGE, DType::F16, logits, false, DType::F32, None, true).is_err());
}

#[test]
fn kernels_keep_to_the_workgroups_of_a_narrow_device() {
    for dtype in types() {
        for (shape, gated, to, normed) in [
            ([4096, 14_336, 1], true, DType::Q8P, true),
            ([768, 1536, 1], true, DType::Q8P, true),
            ([768, 192, 1], false, DType::F32, true),
            ([14_336, 4096, 1], false, DType::F32, false),
            ([2048, 512, 1], false, DType::F32, false),
            ([768, 1536, 2], true, DType::Q8P, false),
        ] {
            let made = made(&Limits::NARROW, dtype, shape, gated, to, None, normed).unwrap();
            let text = made.source.text().unwrap();
            compile(&text, Target::NARROW).unwrap_or_else(|e| panic!("{e}\n{text}"));
        }
    }
}

#[test]
fn large_products_have_more_under_way() {
    let best = |k, n, m, gated| {
        let source = dispatch(DType::F16, [k, n, m], gated, DType::F32, None).source;
        source.text().unwrap().matches("= load_").count()
    };
    assert!(best(4096, 128_256, 1, false) >= 4 && best(4096, 14_336, 1, true) >= 4);
    assert!(best(4096, 4096, 1, false) >= 4);
    // One group for a lane: there is nothing else to ask for.
    assert_eq!(best(64, 64, 1, false), 1);
    assert_eq!(best(4096, 4096, 8, false), 1);
}

#[test]
fn every_cut_is_right() {
    let Some((device, _holder)) = vulkan::tests::device(vulkan::Forced::default()) else { return };
    let mut cases = Vec::new();
    for dtype in types() {
        let unit = if let DType::Planar(block) = dtype { DType::of(block).block_len() } else { 8 };
        let x = takes(&Desc::new(dtype, &[256, 1]).unwrap()).unwrap();
        // Of two types all ways, of the others two.
        let all = matches!(dtype, DType::Planar(BlockType::Q4_K) | DType::F16);
        let chosen = |cut: &Cut| all || (cut.rows, cut.steps) == (2, 3);
        for (i, cut) in cuts(&[4], 16).into_iter().filter(chosen).enumerate() {
            let float = |ne: &[usize]| check::Operand::normal(x, ne).aligned();
            let weights = |ne: &[usize]| check::Operand::normal(dtype, ne).aligned();
            for sets in [2, 4] {
                // Rows with fewer turns than sets, as many, and more.
                for turns in [1, 3, 13] {
                    let inputs = vec![weights(&[unit * turns, 9]), float(&[unit * turns, 2])];
                    let forced = Forced { cut: Some(Cut { sets, ..cut }), to: DType::F32, normed: false };
                    cases.push(Case::new(forced, dtype, inputs, Tolerance::Nmse(1e-9)));
                }
            }
            let mut case = |to, inputs, limit| {
                cases.push(Case::new(
                    Forced { cut: Some(cut), to, normed: false },
                    dtype,
                    inputs,
                    Tolerance::Nmse(limit),
                ));
            };
            // Ends of rows within a turn of the loop and at its end; the last rows of a set missing.
            case(DType::F32, vec![weights(&[unit * 13, 9]), float(&[unit * 13, 3])], 1e-9);
            let whole = 32 * 24;
            let k = if unit == 256 { 3 * 1024 } else { whole };
            let gated = vec![weights(&[k, 22]), weights(&[k, 22]), float(&[k, 1])];
            case(DType::F32, gated, 1e-8);
            if i == 0 {
                // Rounded to 1/127 of a block's largest.
                let ne = [unit * 5, 96];
                case(DType::Q8P, vec![weights(&ne), weights(&ne), float(&[unit * 5, 2])], 1e-3);
            }
        }
    }
    all_pass(&device, &cases);
}
