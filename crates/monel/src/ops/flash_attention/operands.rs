//! What both ways of computing attention share: the operands, which cells a token sees, and cells as floats.

use super::{FlashAttention, Masking};
use crate::device::software::simd::attention::{self, CellRows, CellType};
use crate::device::software::simd::{self, Isa};
use crate::error::{Error, Result};
use crate::kernel::{Call, Input, Output};
use crate::quant::{self, BlockType};
use crate::tensor::{DType, Desc};
use std::ops::Range;

/// Below this many query rows per KV head (tokens times heads) a row is computed by itself.
const FEW_ROWS: usize = 12;

/// The lowest score there is: a finite number, so that differences of two are one.
pub(super) const LOWEST: f32 = -1e30;

/// The operands of one attention step.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    pub q: Input,
    pub k: Input,
    pub v: Input,
    /// Positions or mask.
    bound: Option<Input>,
    pub out: Output,
    masking: Masking,
    /// What q is multiplied with, so that a score is in units of log2(e) (or what `attention::soft_cap` wants).
    pub q_scale: f32,
    /// The cap in units of log2(e).
    cap: Option<f32>,
    /// Query heads of one KV head.
    pub group: usize,
}

/// What is added to the scores of a tile.
pub(super) enum MaskTile {
    /// Every cell is hidden from every row.
    Hidden,
    /// Nothing.
    Zero,
    /// The numbers in the buffer.
    Values,
}

impl Operands {
    pub(super) fn new(op: FlashAttention, call: &Call<'_>) -> Operands {
        let log2e = std::f32::consts::LOG2_E;
        let [q, k, v] = [call.inputs[0], call.inputs[1], call.inputs[2]];
        Operands {
            q,
            k,
            v,
            bound: call.inputs.get(3).copied(),
            out: call.output,
            masking: op.masking,
            q_scale: op.scale * op.softcap.map_or(log2e, |cap| 2.0 * log2e / cap),
            cap: op.softcap.map(|cap| cap * log2e),
            group: q.desc.ne[2] / k.desc.ne[2].max(1),
        }
    }

    pub(super) fn few_rows(&self) -> bool {
        Operands::are_few_rows(&self.q.desc, &self.k.desc)
    }

    /// Whether each row is computed by itself.
    pub(super) fn are_few_rows(q: &Desc, k: &Desc) -> bool {
        q.ne[1] * (q.ne[2] / k.ne[2].max(1)) < FEW_ROWS
    }

    pub(super) fn tokens(&self) -> usize {
        self.q.desc.ne[1]
    }

    pub(super) fn cells(&self) -> usize {
        self.k.desc.ne[1]
    }

    /// Elements of a row of q and k, and of v.
    pub(super) fn head_sizes(&self) -> (usize, usize) {
        (self.q.desc.ne[0], self.v.desc.ne[0])
    }

    /// The batch of k and v that serves batch `b` of q.
    fn kv_batch(&self, b: usize) -> usize {
        b / (self.q.desc.ne[3] / self.k.desc.ne[3])
    }

    /// The row of the result that belongs to a token's head.
    pub(super) fn out_row(&self, head: usize, token: usize, batch: usize) -> usize {
        head + self.q.desc.ne[2] * (token + self.tokens() * batch)
    }

    /// The cells that a token sees, as far as positions tell.
    pub(super) fn visible(&self, token: usize) -> Result<Range<usize>> {
        let cells = self.cells();
        let (Masking::Causal { window }, Some(positions)) = (self.masking, self.bound) else {
            return Ok(0..cells);
        };
        let position = positions.at::<i32>([token, 0, 0, 0]);
        match usize::try_from(position) {
            Ok(p) if p < cells => Ok(window.map_or(0, |w| (p + 1).saturating_sub(w))..p + 1),
            _ => Err(Error::Kernel(format!("position {position} of a cache of {cells} cells"))),
        }
    }

    /// The mask, where there is one.
    pub(super) fn mask(&self) -> Option<Input> {
        self.bound.filter(|_| self.masking == Masking::Mask)
    }

    /// The mask of some cells for a token's head, as floats.
    pub(super) fn widen_mask(
        &self,
        isa: Isa,
        mask: &Input,
        [token, head, batch]: [usize; 3],
        cells: &Range<usize>,
        to: &mut [f32],
    ) {
        let [_, _, heads, batches] = mask.desc.ne;
        let (i2, i3) = (head % heads, batch % batches);
        if mask.desc.dtype == DType::F16 {
            let row = &mask.row3::<u16>(token, i2, i3)[cells.clone()];
            // SAFETY: one row, a slice that is borrowed.
            let row = unsafe { CellRows::new(row.as_ptr().cast(), 0, 1, row.len(), CellType::F16) };
            attention::widen(isa, row, to);
        } else {
            to[..cells.len()].copy_from_slice(&mask.row3::<f32>(token, i2, i3)[cells.clone()]);
        }
    }

    /// Applies the soft cap to scores; the length is a multiple of sixteen.
    pub(super) fn soft_cap(&self, isa: Isa, scores: &mut [f32]) {
        if let Some(cap) = self.cap {
            attention::soft_cap(isa, scores, cap);
        }
    }

    /// Asks for the cells of a head of k or v that are about to be used.
    pub(super) fn prefetch(&self, of: &Input, [head, batch]: [usize; 2], cells: &Range<usize>) {
        simd::prefetch(of.bytes_of(cells, [head, self.kv_batch(batch)]));
    }

    /// Cells of a head of k or v as rows: in place where [`in_place`] says so, otherwise converted into `space`.
    pub(super) fn rows<'a>(
        &self,
        isa: Isa,
        of: &'a Input,
        [head, batch]: [usize; 2],
        cells: &Range<usize>,
        space: &'a mut [f32],
    ) -> Result<CellRows<'a>> {
        let (len, batch) = (of.desc.ne[0], self.kv_batch(batch));
        let ty = match of.desc.dtype {
            DType::F32 => CellType::F32,
            DType::F16 => CellType::F16,
            DType::BF16 => CellType::Bf16,
            DType::Q8_0 => CellType::Q8_0,
            other => {
                let space = &mut space[..cells.len() * len];
                if let Some(block) = other.block().filter(|_| len > 0) {
                    for (cell, to) in cells.clone().zip(space.chunks_exact_mut(len)) {
                        let row = of.row3::<u8>(cell, head, batch);
                        match block {
                            BlockType::Q4_0 => attention::widen_q4_0(isa, row, to),
                            _ => quant::dequantize_row(block, row, to)
                                .map_err(|e| Error::Kernel(e.to_string()))?,
                        }
                    }
                }
                return Ok(CellRows::of(space, len));
            }
        };
        let [_, n1, n2, n3] = of.desc.ne;
        assert!(cells.start <= cells.end && cells.end <= n1 && head < n2 && batch < n3);
        let [_, b1, b2, b3] = of.desc.nb;
        let first = of.ptr().wrapping_add(cells.start * b1 + head * b2 + batch * b3);
        // SAFETY: the rows lie in the span of the operand (checked above), which is readable while the step runs.
        Ok(unsafe { CellRows::new(first, b1, cells.len(), len, ty) })
    }
}

/// Whether kernels read cells of this type as they are.
pub(super) fn in_place(dtype: DType) -> bool {
    dtype.is_float() || dtype == DType::Q8_0
}

/// 1 / sum; zero where nothing was seen, NaN where NaN was.
pub(super) fn inverse(sum: f32) -> f32 {
    if sum == 0.0 { 0.0 } else { 1.0 / sum }
}
