//! Arithmetic on two tensors: residual sums, biases, weights of norms, positions that advance on the device.
//!
//! The second operand may be smaller and is then repeated, as ggml does it: every dimension of b divides that of a.

use super::Op;
use super::unary::{row_indices, vectorized};
use crate::check::{Case, Fill, Operand, Tolerance};
use crate::device::software::simd::{self, Isa};
use crate::error::{Error, Result};
use crate::gpu::{Dispatch, GpuCall, Shader};
use crate::kernel::{Call, Element, Input, Kernel, Output, RefTensor, Worker};
use crate::tensor::{DType, Desc};

/// Which arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryKind {
    /// a + b.
    Add,
    /// a - b.
    Sub,
    /// a * b.
    Mul,
    /// a / b.
    Div,
}

/// Arithmetic, element by element. a and the result have one type and shape: F32 (b F32 or F16), F16 (b F16, computed
/// in f32 and rounded once), or I32 (b I32, wrapping; no division). b is repeated to a's shape.
#[derive(Clone, Copy, Debug)]
pub struct Binary {
    /// The operation.
    pub kind: BinaryKind,
}

impl Op for Binary {
    fn name(&self) -> &'static str {
        match self.kind {
            BinaryKind::Add => "add",
            BinaryKind::Sub => "sub",
            BinaryKind::Mul => "mul",
            BinaryKind::Div => "div",
        }
    }

    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        let [a, b] = inputs else {
            return Err(Error::shape(self.name(), format!("a and b, found {} inputs", inputs.len())));
        };
        if !b.repeats_to(a) {
            return Err(Error::shape(self.name(), format!("b that repeats to a's shape, found {a} and {b}")));
        }
        Desc::new(a.dtype, &a.ne)
    }

    fn supports(&self, inputs: &[Desc], _: &Desc) -> Result<(), String> {
        match (inputs[0].dtype, inputs[1].dtype) {
            (DType::F32, DType::F32 | DType::F16) | (DType::F16, DType::F16) => Ok(()),
            (DType::I32, DType::I32) if self.kind != BinaryKind::Div => Ok(()),
            (DType::I32, DType::I32) => Err("integers are not divided".into()),
            (a, b) => Err(format!("F32 with F32 or F16, F16 with F16, I32 with I32, found {a} and {b}")),
        }
    }

    fn row_local(&self, _: &[Desc], _: &Desc) -> bool {
        // b has a's rows (and then row r meets row r, because each dimension divides) or fewer
        true
    }

    fn kernels(&self, call: &Call<'_>) -> Vec<Kernel> {
        let (kind, a, b, out) = (self.kind, call.inputs[0], call.inputs[1], call.output);
        let bytes = out.desc.ne[0] * out.desc.dtype.block_bytes() * 3;
        vec![Kernel::rows(out.desc.rows(), bytes, move |r, worker| {
            // A function for each operation, so that the loops hold no choice.
            match (kind, out.desc.dtype) {
                (BinaryKind::Add, DType::I32) => integers(&a, &b, &out, r, worker.isa, i32::wrapping_add),
                (BinaryKind::Sub, DType::I32) => integers(&a, &b, &out, r, worker.isa, i32::wrapping_sub),
                (BinaryKind::Mul, DType::I32) => integers(&a, &b, &out, r, worker.isa, i32::wrapping_mul),
                (BinaryKind::Add, _) => floats(&a, &b, &out, r, worker, |a, b| a + b),
                (BinaryKind::Sub, _) => floats(&a, &b, &out, r, worker, |a, b| a - b),
                (BinaryKind::Mul, _) => floats(&a, &b, &out, r, worker, |a, b| a * b),
                (BinaryKind::Div, _) => floats(&a, &b, &out, r, worker, |a, b| a / b),
            }
            Ok(())
        })]
    }

    fn shader(&self, call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
        let (a, b, y) = (&call.inputs[0], &call.inputs[1], &call.output);
        // Integers wrap around, as i32 does in WGSL.
        let integers = y.desc.dtype == DType::I32;
        let names = if integers { ["a_int", "b_int", "put_int"] } else { ["get_a", "get_b", "put_y"] };
        let op = match self.kind {
            BinaryKind::Add => "+",
            BinaryKind::Sub => "-",
            BinaryKind::Mul => "*",
            BinaryKind::Div => "/",
        };
        let shader = Shader::new("binary", include_str!("binary.wgsl"))
            .number("count", y.desc.elements())
            .dims("n", y.desc.ne)
            .dims("m", b.desc.ne)
            .input("a", a)
            .strides("a", a, false)
            .input("b", b)
            .strides("b", b, false)
            .output("y", y)
            .strides("y", y, false)
            .define("GET_A", names[0])
            .define("GET_B", names[1])
            .define("PUT", names[2])
            .define("OP", op);
        let shader = if integers { shader.part(INTEGERS) } else { shader };
        Ok(vec![shader.items(y.desc.elements(), 128)?])
    }

    fn reference(&self, inputs: &[RefTensor], output: &Desc) -> RefTensor {
        let (a, b) = (&inputs[0], &inputs[1]);
        let mut out = RefTensor::zeros(output.ne);
        for r in 0..out.rows() {
            let [i1, i2, i3] = row_indices(output, r);
            for (i, (o, &x)) in out.row_mut(r).iter_mut().zip(a.row(r)).enumerate() {
                let y = b.at([i % b.ne[0], i1 % b.ne[1], i2 % b.ne[2], i3 % b.ne[3]]);
                *o = match self.kind {
                    BinaryKind::Add => x + y,
                    BinaryKind::Sub => x - y,
                    BinaryKind::Mul => x * y,
                    BinaryKind::Div => x / y,
                };
                if output.dtype == DType::I32 {
                    // exact in f64 up to 2^53; larger products of the cases stay below 2^62
                    *o = f64::from((*o as i64) as i32);
                }
            }
        }
        out
    }
}

/// Accessors of I32 operands in WGSL.
const INTEGERS: &str = "fn a_int(i: u32) -> i32 { return a[i]; }
fn b_int(i: u32) -> i32 { return b[i]; }
fn put_int(i: u32, v: i32) { y[i] = v; }
";

/// One row of I32.
fn integers(a: &Input, b: &Input, out: &Output, r: usize, isa: Isa, f: impl Fn(i32, i32) -> i32 + Copy) {
    if all_dense(a, b, out) {
        // SAFETY: row r belongs to item r.
        return repeat(isa, a.row(r), meets(b, &a.desc, r), unsafe { out.row_mut(r) }, f);
    }
    let [i1, i2, i3] = row_indices(&out.desc, r);
    for i in 0..out.desc.ne[0] {
        let at = [i, i1, i2, i3];
        // SAFETY: row r belongs to item r.
        unsafe { out.set(at, f(a.at(at), b.at(wrap(at, &b.desc)))) };
    }
}

/// One row of floats.
fn floats(
    a: &Input,
    b: &Input,
    out: &Output,
    r: usize,
    worker: &mut Worker,
    f: impl Fn(f32, f32) -> f32 + Copy,
) {
    let (isa, n, nb) = (worker.isa, a.desc.ne[0], b.desc.ne[0]);
    if all_dense(a, b, out) {
        if a.desc.dtype == DType::F32 {
            // SAFETY: row r belongs to item r.
            let out = unsafe { out.row_mut(r) };
            if b.desc.dtype == DType::F32 {
                return repeat(isa, a.row(r), meets(b, &a.desc, r), out, f);
            }
            let wide = worker.floats(nb);
            simd::f16_to_f32(isa, meets(b, &a.desc, r), wide);
            return repeat(isa, a.row(r), wide, out, f);
        }
        let (wide, result) = worker.floats(2 * n + nb).split_at_mut(n + nb);
        let (wide_a, wide_b) = wide.split_at_mut(n);
        simd::f16_to_f32(isa, a.row(r), wide_a);
        simd::f16_to_f32(isa, meets(b, &a.desc, r), wide_b);
        repeat(isa, wide_a, wide_b, result, f);
        // SAFETY: row r belongs to item r.
        return simd::f32_to_f16(isa, result, unsafe { out.row_mut(r) });
    }
    let [i1, i2, i3] = row_indices(&out.desc, r);
    let number = |x: &Input, at| match x.desc.dtype {
        DType::F16 => half::f16::from_bits(x.at(at)).to_f32(),
        _ => x.at::<f32>(at),
    };
    for i in 0..out.desc.ne[0] {
        let at = [i, i1, i2, i3];
        let value = f(number(a, at), number(b, wrap(at, &b.desc)));
        // SAFETY: row r belongs to item r.
        unsafe {
            match out.desc.dtype {
                DType::F16 => out.set(at, half::f16::from_f32(value).to_bits()),
                _ => out.set(at, value),
            }
        }
    }
}

fn all_dense(a: &Input, b: &Input, out: &Output) -> bool {
    [&a.desc, &b.desc, &out.desc].iter().all(|d| d.has_dense_rows())
}

fn wrap(at: [usize; 4], b: &Desc) -> [usize; 4] {
    [at[0] % b.ne[0], at[1] % b.ne[1], at[2] % b.ne[2], at[3] % b.ne[3]]
}

/// The row of `x`, repeated to `like`'s shape, that meets row `r`.
fn meets<'a, T: Element>(x: &'a Input, like: &Desc, r: usize) -> &'a [T] {
    let [i1, i2, i3] = row_indices(like, r);
    x.row3(i1 % x.desc.ne[1], i2 % x.desc.ne[2], i3 % x.desc.ne[3])
}

/// `out = f(a, b)` with b repeated along the row.
#[inline(always)]
fn repeat<T: Element>(isa: Isa, a: &[T], b: &[T], out: &mut [T], f: impl Fn(T, T) -> T + Copy) {
    vectorized(isa, || {
        if let [b] = *b {
            out.iter_mut().zip(a).for_each(|(o, &a)| *o = f(a, b));
        } else {
            for (out, a) in out.chunks_mut(b.len().max(1)).zip(a.chunks(b.len().max(1))) {
                out.iter_mut().zip(a).zip(b).for_each(|((o, &a), &b)| *o = f(a, b));
            }
        }
    });
}

pub(super) fn cases() -> Vec<Case> {
    use BinaryKind::{Add, Div, Mul, Sub};
    let mut cases = Vec::new();
    for kind in [Add, Sub, Mul, Div] {
        for (ta, tb) in [(DType::F32, DType::F32), (DType::F16, DType::F16), (DType::F32, DType::F16)] {
            // Sums and products of f32 are the rounded exact ones, also where f16 goes through f32. GPUs divide
            // within a few units in the last place.
            let tolerance = match (kind, ta) {
                (Div, DType::F16) => Tolerance::Nmse(1e-6),
                (Div, _) => Tolerance::Nmse(1e-12),
                _ => Tolerance::Exact,
            };
            let a = |ne: &[usize]| Operand::normal(ta, ne);
            // away from zero, so that quotients stay in range
            let b = |ne: &[usize]| Operand::normal(tb, ne).fill(Fill::Uniform(0.5, 4.0));
            let mut case = |a, b| cases.push(Case::new(Binary { kind }, ta, vec![a, b], tolerance));
            for ne in [&[0, 3][..], &[1], &[17, 3], &[576, 5], &[10, 3, 2, 4]] {
                case(a(ne), b(ne));
            }
            for ne in [&[1][..], &[12], &[3], &[12, 3], &[1, 6, 1, 2], &[4, 2, 4], &[12, 6, 1, 2]] {
                case(a(&[12, 6, 4, 2]), b(ne));
            }
            case(a(&[9, 7]).permuted([1, 0, 2, 3]), b(&[7, 9]));
            case(a(&[7, 9]), b(&[9, 7]).permuted([1, 0, 2, 3]));
            case(a(&[40, 6]).slice(0, 8, 20), b(&[20, 12]).slice(1, 3, 6));
            let into = Case::new(Binary { kind }, ta, vec![a(&[9, 4]), b(&[9])], tolerance);
            cases.push(into.clone().into(Operand::normal(ta, &[20, 4]).slice(0, 3, 9)));
            cases.push(into.into(Operand::normal(ta, &[4, 9]).permuted([1, 0, 2, 3])));
        }
    }
    for kind in [Add, Sub, Mul] {
        let ints = |ne: &[usize], to: i64| Operand::normal(DType::I32, ne).fill(Fill::Ints(-to, to));
        let mut case =
            |a, b| cases.push(Case::new(Binary { kind }, DType::I32, vec![a, b], Tolerance::Exact));
        case(ints(&[1], 1000), ints(&[1], 2));
        case(ints(&[19, 3], 1 << 31), ints(&[19], 1 << 20));
        case(ints(&[6, 5], 9), ints(&[5, 6], 9).permuted([1, 0, 2, 3]));
    }
    let (a, b) = (Operand::normal(DType::F32, &[2048, 65]), Operand::normal(DType::F32, &[2048, 65]));
    cases.push(Case::new(Binary { kind: Add }, DType::F32, vec![a, b], Tolerance::Exact));
    cases
}
