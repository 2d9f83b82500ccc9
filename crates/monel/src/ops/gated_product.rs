//! The first half of a gated feed-forward block as one op of CPUs: `act(gate x) * (up x)`, quantized for the next product.
//!
//! A thread makes both products for some rows and columns in memory of its own, and what leaves its caches are eight bits of
//! the unit: neither product is ever written whole. Part of no model's formula: the software device puts it into
//! graphs, with the bits that the separate ops give.

use super::matmul::{Pieces, panel_columns};
use super::{Cost, Glu, MatMul, Op};
use crate::check::{Case, Operand, Tolerance};
use crate::device::software::simd;
use crate::error::{Error, Result};
use crate::kernel::{Call, Input, Kernel, Output, RefTensor, Worker};
use crate::quant::BlockType;
use crate::tensor::{DType, Desc};
use std::ops::Range;

/// Rows of the result that are made together: a block of the quantized row.
const BLOCK: usize = simd::ACT_BLOCK;
const TILES: usize = BLOCK / simd::TILE_ROWS;
/// Floats between the columns of a product in a thread's memory, beyond its rows: columns a power of two apart would fall on
/// the same few places of the caches.
const APART: usize = 16;

/// Gate and up (packed, `[k, n]`, n a multiple of 32) and x (Q8A `[k, m, b2, b3]`) to Q8A `[n, m, b2, b3]`.
#[derive(Clone, Copy, Debug)]
pub struct GatedProduct {
    /// The unit.
    pub glu: Glu,
}

impl Op for GatedProduct {
    fn name(&self) -> &'static str {
        "gated_product"
    }

    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        let [gate, up, x] = inputs else {
            let found = inputs.len();
            return Err(Error::shape("gated_product", format!("gate, up and x, found {found} inputs")));
        };
        let [gate, up] = [MatMul.output(&[*gate, *x])?, MatMul.output(&[*up, *x])?];
        Desc::new(DType::Q8A, &self.glu.output(&[gate, up])?.ne)
    }

    fn supports(&self, inputs: &[Desc], output: &Desc) -> Result<(), String> {
        let [gate, up, x] = inputs else { return Err("no such inputs".into()) };
        let packed = [gate, up].iter().all(|w| matches!(w.dtype, DType::Packed(_)) && w.is_contiguous());
        if !packed || gate.ne[2] * gate.ne[3] * up.ne[2] * up.ne[3] != 1 {
            return Err(format!("gate and up are packed matrices, found {gate} and {up}"));
        }
        if x.dtype != DType::Q8A || !x.is_contiguous() || !output.is_contiguous() {
            return Err(format!("x and the result are contiguous Q8A, found {x} and {output}"));
        }
        if !output.ne[0].is_multiple_of(BLOCK) {
            return Err(format!("a multiple of {BLOCK} rows, found {gate}"));
        }
        Ok(())
    }

    fn cost(&self, inputs: &[Desc], output: &Desc) -> Cost {
        let bytes = inputs.iter().chain([output]).map(|d| d.span() as f64).sum();
        let each = 4.0 * inputs[0].ne[0] as f64 + 20.0;
        Cost { flops: each * output.elements() as f64, bytes }
    }

    fn kernels(&self, call: &Call<'_>) -> Vec<Kernel> {
        let [gate, up, x] = [call.inputs[0], call.inputs[1], call.inputs[2]];
        let (glu, out) = (self.glu, call.output);
        let [DType::Packed(gate_type), DType::Packed(up_type)] = [gate.desc.dtype, up.desc.dtype] else {
            return Vec::new();
        };
        let weights = [(gate, gate_type), (up, up_type)];
        let (k, cols) = (gate.desc.ne[0], x.desc.rows());
        let pieces = Pieces {
            // a block of both matrices
            tiles: out.desc.ne[0] / BLOCK,
            per_tile: 2 * BLOCK * k,
            height: 2 * TILES,
            panel: panel_columns(call.isa, k),
            cols,
            batches: 1,
        };
        let this = Unit { glu, weights, x, out };
        vec![
            pieces.kernel(call.isa, call.threads, move |worker, _, blocks, cols| {
                this.run(worker, blocks, cols)
            }),
        ]
    }

    fn reference(&self, inputs: &[RefTensor], output: &Desc) -> RefTensor {
        let [gate, up] = [0, 1].map(|w| MatMul.reference(&[inputs[w].clone(), inputs[2].clone()], output));
        self.glu.reference(&[gate, up], output)
    }
}

/// The operands.
#[derive(Clone, Copy)]
struct Unit {
    glu: Glu,
    weights: [(Input, BlockType); 2],
    x: Input,
    out: Output,
}

impl Unit {
    /// Some blocks of rows of some columns.
    fn run(&self, worker: &mut Worker, blocks: Range<usize>, cols: Range<usize>) -> Result<()> {
        let isa = worker.isa;
        let (rows, tiles) = (blocks.len() * BLOCK, blocks.len() * TILES);
        let stride = rows + APART;
        let memory = worker.aligned_floats((2 * cols.len() + 1) * stride);
        let (unit, products) = memory.split_at_mut(stride);
        let (gate, up) = products.split_at_mut(cols.len() * stride);
        let x = &self.x.desc;
        for ((w, ty), to) in self.weights.iter().zip([&mut *gate, &mut *up]) {
            let k = w.desc.ne[0];
            // SAFETY: the blocks and columns lie inside the operands, whose spans `Input::new` was promised to be valid; `to`
            // has a row of `stride` floats for each column.
            let done = unsafe {
                let tile = w.ptr().add(blocks.start * TILES * simd::tile_bytes(*ty, k));
                let x_at = self.x.ptr().add(cols.start * x.nb[1]);
                simd::gemm_packed(
                    isa,
                    *ty,
                    k,
                    tile,
                    tiles,
                    rows,
                    x_at,
                    x.nb[1],
                    cols.len(),
                    to.as_mut_ptr(),
                    stride,
                )
            };
            if !done {
                return Err(Error::Kernel(format!("no product kernel for {}", w.desc)));
            }
        }
        let columns = gate.chunks_exact(stride).zip(up.chunks_exact(stride));
        for (c, (gate, up)) in cols.zip(columns) {
            let unit = &mut unit[..rows];
            self.glu.row(isa, &gate[..rows], &up[..rows], unit);
            let (from, len) = (blocks.start * simd::ACT_BYTES, blocks.len() * simd::ACT_BYTES);
            // SAFETY: these blocks of the row belong to this item, and the row to the span that `Output::new` was promised.
            let to = unsafe {
                std::slice::from_raw_parts_mut(self.out.ptr().add(self.out.desc.row_offset(c) + from), len)
            };
            simd::quantize_act_blocks(isa, unit, to).map_err(|e| Error::Kernel(e.to_string()))?;
        }
        Ok(())
    }
}

pub(super) fn cases() -> Vec<Case> {
    use super::GluKind::{Geglu, Reglu, Swiglu};
    // The result is off by up to half a step of 1/127 of its block's largest value, whose square is at most 32 times
    // the block's mean: 32 / (12 * 127^2) of the energy.
    let tolerance = Tolerance::Nmse(2e-4);
    let mut cases = Vec::new();
    let mut case = |kind, types: [BlockType; 2], [k, n]: [usize; 2], x: &[usize]| {
        let [gate, up] = types.map(|ty| Operand::normal(DType::Packed(ty), &[k, n]));
        let op = GatedProduct { glu: Glu { kind } };
        let operands = vec![gate, up, Operand::normal(DType::Q8A, x)];
        cases.push(Case::new(op, DType::Packed(types[0]), operands, tolerance));
    };
    for ty in BlockType::ALL.into_iter().filter(|ty| !ty.is_float()) {
        let k = 2 * DType::of(ty).block_len().max(32);
        for (kind, n, m) in
            [(Swiglu, 32, 1), (Geglu, 96, 2), (Reglu, 64, 0), (Swiglu, 192, 33), (Geglu, 1024, 17)]
        {
            case(kind, [ty; 2], [k, n], &[k, m]);
        }
    }
    case(Swiglu, [BlockType::Q4_K, BlockType::Q6_K], [512, 416], &[512, 70]);
    case(Swiglu, [BlockType::Q4_1; 2], [576, 1536], &[576, 150]);
    case(Geglu, [BlockType::Q8_0, BlockType::Q5_0], [64, 320], &[64, 3, 2, 2]);
    cases
}
