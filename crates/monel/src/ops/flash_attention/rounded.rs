//! Many query rows against F16 cells, in 16-bit integers: what a block of `prefill` keeps for that, and a tile's step.
//!
//! Where there are many tokens, F16 cells allow results that are as exact as the cells are (see `cases`), and machines with
//! wide integer products gain by it. A tile whose cells do not fit - one is not finite, say - is left to the floats.

use super::operands::Operands;
use super::prefill::TILE;
use crate::device::software::simd::Isa;
use crate::device::software::simd::attention::{CellRows, Columns, Rounded, Rows};
use crate::error::Result;
use crate::tensor::DType;
use std::ops::Range;

/// Fewer tokens are computed in floats.
const TOKENS: usize = 16;

/// Whether an attention step may be rounded, and the instructions for it.
pub(super) fn instructions(isa: Isa, operands: &Operands) -> Option<Rounded> {
    let cells = [operands.k, operands.v].iter().all(|of| of.desc.dtype == DType::F16);
    let (head, head_v) = operands.head_sizes();
    let fits = cells && operands.mask().is_none() && operands.tokens() >= TOKENS;
    if fits { Rounded::new(isa, [head, head_v]) } else { None }
}

/// A block's integers: pairs, and the scales that belong to them.
pub(super) struct Words<'a> {
    by: Rounded,
    /// `[head / 2][lane]`.
    q: &'a mut [i32],
    /// A tile of k: `[cell][head / 2]`.
    k: &'a mut [i32],
    /// A tile of v: `[cell / 2][head_v]`.
    v: &'a mut [i32],
    /// `[cell / 2][lane]`.
    weights: &'a mut [i32],
    q_scales: &'a mut [f32],
    k_scales: &'a mut [f32],
    v_scales: &'a mut [f32],
    weight_scales: &'a mut [f32],
}

impl<'a> Words<'a> {
    /// How much [`Words::new`] takes, part by part.
    pub(super) fn sizes(lanes: usize, (head, head_v): (usize, usize)) -> [usize; 8] {
        let pairs = [head / 2 * lanes, TILE * head / 2, TILE / 2 * head_v, TILE / 2 * lanes];
        let scales = [lanes, TILE, head_v, lanes];
        std::array::from_fn(|i| if i < 4 { pairs[i] } else { scales[i - 4] })
    }

    /// In memory of [`Words::sizes`].
    pub(super) fn new(by: Rounded, parts: [&'a mut [f32]; 8]) -> Words<'a> {
        let [q, k, v, weights, q_scales, k_scales, v_scales, weight_scales] = parts;
        let [q, k, v, weights] = [q, k, v, weights].map(pairs_of);
        Words { by, q, k, v, weights, q_scales, k_scales, v_scales, weight_scales }
    }

    /// Rounds the block's query rows; false where one does not fit.
    pub(super) fn round_queries<'q>(&mut self, rows: impl Iterator<Item = &'q [f32]>, scale: f32) -> bool {
        let lanes = self.q_scales.len();
        self.q.fill(0);
        self.q_scales.fill(0.0);
        for (lane, row) in rows.enumerate() {
            let mut unit = [0.0];
            let pairs = &mut self.k[..row.len() / 2];
            if !self.by.rows(CellRows::of(row, row.len()), pairs, &mut unit) {
                return false;
            }
            self.q_scales[lane] = unit[0] * scale;
            for (to, &pair) in self.q[lane..].iter_mut().step_by(lanes).zip(&*pairs) {
                *to = pair;
            }
        }
        true
    }

    /// Rounds a tile of k and v; false where it does not fit.
    pub(super) fn round_tile(
        &mut self,
        isa: Isa,
        operands: &Operands,
        place: [usize; 2],
        cells: &Range<usize>,
    ) -> Result<bool> {
        let k = operands.rows(isa, &operands.k, place, cells, &mut [])?;
        let v = operands.rows(isa, &operands.v, place, cells, &mut [])?;
        Ok(self.by.rows(k, self.k, self.k_scales) && self.by.columns(v, self.v, self.v_scales))
    }

    /// The scores of the rounded tile.
    pub(super) fn scores(&self, cells: usize, s: &mut [f32]) {
        let half = self.q.len() / self.q_scales.len();
        let k = Rows { pairs: self.k, step: (half, 1), size: (cells, half), scales: self.k_scales };
        self.by.product(k, Columns { pairs: self.q, scales: self.q_scales }, s, false);
    }

    /// From scores to weights: the step of the online softmax. What was summed up before has to be multiplied by `carry`.
    pub(super) fn softmax(&mut self, cells: usize, s: &[f32], [max, sum, carry]: [&mut [f32]; 3]) {
        self.by.softmax_columns(s, cells, self.weights, [max, sum, carry, self.weight_scales]);
    }

    /// Adds the weighted values to `o[row][head_v]`.
    pub(super) fn add_values(&self, rows: usize, cells: usize, o: &mut [f32]) {
        let (step, size) = ((1, self.weight_scales.len()), (rows, cells.div_ceil(2)));
        let weights = Rows { pairs: self.weights, step, size, scales: self.weight_scales };
        self.by.product(weights, Columns { pairs: self.v, scales: self.v_scales }, o, true);
    }
}

/// A worker's floats as integers.
fn pairs_of(floats: &mut [f32]) -> &mut [i32] {
    // SAFETY: of one size and alignment, and any bits are a number of either.
    unsafe { std::slice::from_raw_parts_mut(floats.as_mut_ptr().cast(), floats.len()) }
}
