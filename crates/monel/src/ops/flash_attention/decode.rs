//! Few query rows: the cells are divided over items, and a second kernel combines what they found.
//!
//! An item takes all query heads of one KV head, so a cell is converted once for them. How many items there are is fixed
//! when the kernels are built; where a token sees fewer cells than there are in the cache, the pieces are smaller and the
//! last ones may be empty. A partial result is a row of unnormalised values with its maximum and its sum.

use super::operands::{LOWEST, Operands, in_place, inverse};
use crate::device::software::simd::Isa;
use crate::device::software::simd::attention::{self, LANE_GROUP};
use crate::error::Result;
use crate::kernel::{Call, Input, Kernel, Output, Worker};
use crate::tensor::Desc;
use std::ops::Range;

/// Cells computed at once: scores and a converted tile stay in the first-level cache.
const TILE: usize = 128;
/// Pieces are at least this long.
const SHORTEST: usize = 128;
/// Items to aim for: enough for many threads, few enough that empty ones cost nothing.
const ITEMS: usize = 24;

/// Into how many pieces the cells of each row are divided. The number of threads has no say: sums of other pieces round
/// differently, and a text must not depend on the threads.
fn pieces(q: &Desc, k: &Desc) -> usize {
    let rows = q.ne[1] * k.ne[2] * q.ne[3];
    ITEMS.div_ceil(rows.max(1)).min(k.ne[1].div_ceil(SHORTEST)).max(1)
}

/// Floats of a partial result: the values, the maximum and the sum.
fn partial_len(head_v: usize) -> usize {
    (head_v + 2).next_multiple_of(LANE_GROUP)
}

/// Bytes for the partial results.
pub(super) fn scratch(inputs: &[Desc], output: &Desc) -> usize {
    let (q, k) = (&inputs[0], &inputs[1]);
    let few = Operands::are_few_rows(q, k);
    match pieces(q, k) {
        n if few && n > 1 => output.rows() * n * partial_len(output.ne[0]) * 4,
        _ => 0,
    }
}

/// Where the partial results are: for each row of the result, its pieces.
#[derive(Clone, Copy)]
struct Partials {
    memory: Output,
    pieces: usize,
    len: usize,
}

impl Partials {
    fn offset(&self, row: usize, piece: usize, pieces: usize) -> usize {
        let offset = (row * self.pieces + piece) * self.len;
        assert!(piece + pieces <= self.pieces && (offset + pieces * self.len) * 4 <= self.memory.desc.span());
        offset
    }

    /// # Safety
    /// The piece belongs to the item being run.
    #[allow(clippy::mut_from_ref)]
    unsafe fn piece_mut(&self, row: usize, piece: usize) -> &mut [f32] {
        let offset = self.offset(row, piece, 1);
        // SAFETY: inside the scratch memory; the caller promises that it is alone there.
        unsafe { std::slice::from_raw_parts_mut(self.memory.ptr().cast::<f32>().add(offset), self.len) }
    }

    /// # Safety
    /// Nobody writes the pieces of the row.
    unsafe fn row(&self, row: usize) -> &[f32] {
        let offset = self.offset(row, 0, self.pieces);
        // SAFETY: inside the scratch memory, and written by the kernel before.
        unsafe {
            std::slice::from_raw_parts(self.memory.ptr().cast::<f32>().add(offset), self.len * self.pieces)
        }
    }
}

pub(super) fn kernels(operands: Operands, call: &Call<'_>) -> Vec<Kernel> {
    let (q, k, head_v) = (operands.q.desc, operands.k.desc, operands.v.desc.ne[0]);
    let pieces = pieces(&q, &k);
    let partials =
        (pieces > 1).then_some(Partials { memory: call.scratch, pieces, len: partial_len(head_v) });
    let (tokens, kv_heads, batches) = (q.ne[1], k.ne[2], q.ne[3]);
    let compute = Kernel::new(tokens * kv_heads * batches * pieces, 1, move |items, worker| {
        items.into_iter().try_for_each(|i| {
            let (piece, row) = (i % pieces, i / pieces);
            let (kv_head, token, batch) = (row % kv_heads, row / kv_heads % tokens, row / kv_heads / tokens);
            let cells = cut(operands.visible(token)?, piece, pieces);
            Item { operands, token, kv_head, batch, cells }.run(worker, partials.map(|p| (p, piece)))
        })
    });
    let Some(partials) = partials else {
        return vec![compute];
    };
    let rows = call.output.desc.rows();
    let combine = Kernel::new(rows, rows.div_ceil(call.threads.max(1)), move |range, _| {
        range.into_iter().for_each(|r| combine(&partials, operands.out, r));
        Ok(())
    });
    vec![compute, combine]
}

/// Piece `i` of `n` of the cells.
fn cut(cells: Range<usize>, i: usize, n: usize) -> Range<usize> {
    let len = cells.len().div_ceil(n).max(SHORTEST).next_multiple_of(32);
    let at = |i: usize| (cells.start + i * len).min(cells.end);
    at(i)..at(i + 1)
}

/// One item: a token's query heads of one KV head, over some cells.
struct Item {
    operands: Operands,
    token: usize,
    kv_head: usize,
    batch: usize,
    cells: Range<usize>,
}

/// An item's working memory.
struct Space<'a> {
    q: &'a mut [f32],
    /// The results, not yet divided by the sums.
    o: &'a mut [f32],
    /// Scores, then weights: `[head][cell]`.
    s: &'a mut [f32],
    /// Converted cells of quantized types.
    tile: &'a mut [f32],
    /// `[head][cell]`.
    mask: &'a mut [f32],
    max: &'a mut [f32],
    sum: &'a mut [f32],
}

impl Item {
    fn run(&self, worker: &mut Worker, partials: Option<(Partials, usize)>) -> Result<()> {
        let isa = worker.isa;
        let Operands { q, k, v, q_scale, group, .. } = self.operands;
        let (head, head_v) = self.operands.head_sizes();
        let mask = self.operands.mask();
        let converted = |d: Desc| if in_place(d.dtype) { 0 } else { TILE * d.ne[0] };
        let sizes = [
            group * head,
            group * head_v,
            group * TILE,
            converted(k.desc).max(converted(v.desc)),
            if mask.is_some() { group * TILE } else { 0 },
            group,
            group,
        ]
        .map(|n| n.next_multiple_of(LANE_GROUP));
        let len = sizes.iter().sum();
        let mut rest = worker.aligned_floats(len);
        let [q_space, o, s, tile, mask_space, max, sum] = sizes.map(|n| {
            let (part, tail) = std::mem::take(&mut rest).split_at_mut(n);
            rest = tail;
            part
        });
        let mut space = Space { q: q_space, o, s, tile, mask: mask_space, max, sum };
        let first = self.cells.start..(self.cells.start + TILE).min(self.cells.end);
        for of in [&k, &v] {
            self.operands.prefetch(of, [self.kv_head, self.batch], &first);
        }
        for h in 0..group {
            let row = q.row3::<f32>(self.token, self.kv_head * group + h, self.batch);
            space.q[h * head..(h + 1) * head].iter_mut().zip(row).for_each(|(to, x)| *to = x * q_scale);
        }
        space.o.fill(0.0);
        space.max.fill(LOWEST);
        space.sum.fill(0.0);

        for first in self.cells.clone().step_by(TILE) {
            let tile = first..(first + TILE).min(self.cells.end);
            match &mask {
                None => self.step(isa, tile, None, &mut space)?,
                Some(mask) => self.masked(isa, mask, tile, &mut space)?,
            }
        }

        for h in 0..group {
            let row = self.operands.out_row(self.kv_head * group + h, self.token, self.batch);
            let o = &space.o[h * head_v..(h + 1) * head_v];
            if let Some((partials, piece)) = partials {
                // SAFETY: this piece of this row belongs to this item alone.
                let to = unsafe { partials.piece_mut(row, piece) };
                to[..head_v].copy_from_slice(o);
                (to[head_v], to[head_v + 1]) = (space.max[h], space.sum[h]);
            } else {
                // SAFETY: the row belongs to this token and head, which belong to this item alone.
                let to = unsafe { self.operands.out.row_mut::<f32>(row) };
                let factor = inverse(space.sum[h]);
                to.iter_mut().zip(o).for_each(|(to, x)| *to = x * factor);
            }
        }
        Ok(())
    }

    /// A tile with a mask: only runs of cells that some head sees are touched.
    fn masked(&self, isa: Isa, mask: &Input, tile: Range<usize>, space: &mut Space<'_>) -> Result<()> {
        let group = self.operands.group;
        for h in 0..group {
            let place = [self.token, self.kv_head * group + h, self.batch];
            self.operands.widen_mask(isa, mask, place, &tile, &mut space.mask[h * TILE..(h + 1) * TILE]);
        }
        let seen =
            |space: &Space<'_>, c: usize| (0..group).any(|h| space.mask[h * TILE + c] != f32::NEG_INFINITY);
        let mut c = 0;
        while c < tile.len() {
            let start = c;
            while c < tile.len() && seen(space, c) {
                c += 1;
            }
            if c > start {
                self.step(isa, tile.start + start..tile.start + c, Some(start), space)?;
            }
            c += 1;
        }
        Ok(())
    }

    /// One step of the online softmax. `mask` is where the cells' mask begins in its tile.
    fn step(&self, isa: Isa, cells: Range<usize>, mask: Option<usize>, space: &mut Space<'_>) -> Result<()> {
        let Operands { k, v, group, .. } = &self.operands;
        let (_, head_v) = self.operands.head_sizes();
        let place = [self.kv_head, self.batch];
        let Space { q, o, s, tile, mask: mask_space, max, sum } = space;
        let count = cells.len();
        // At depth the cache comes from memory: while a tile is computed with, the next one is on its way.
        let more = cells.end < self.cells.end;
        let ahead = |of: &Input| if more && in_place(of.desc.dtype) { TILE * of.desc.nb[1] } else { 0 };
        let rows = self.operands.rows(isa, k, place, &cells, tile)?.ahead(ahead(k));
        attention::dots(isa, q, *group, rows, s, TILE);
        for (h, s) in s.chunks_exact_mut(TILE).take(*group).enumerate() {
            self.operands.soft_cap(isa, &mut s[..count.next_multiple_of(LANE_GROUP)]);
            if let Some(start) = mask {
                let mask = &mask_space[h * TILE + start..][..count];
                for (s, &m) in s.iter_mut().zip(mask) {
                    // a hidden cell's score may be NaN
                    *s = if m == f32::NEG_INFINITY { m } else { *s + m * std::f32::consts::LOG2_E };
                }
            }
            let top = attention::largest(isa, &s[..count], max[h]);
            let total = attention::exp2_sum(isa, s, count, top);
            if top > max[h] {
                let carry = (max[h] - top).exp2();
                sum[h] *= carry;
                o[h * head_v..(h + 1) * head_v].iter_mut().for_each(|x| *x *= carry);
                max[h] = top;
            }
            sum[h] += total;
        }
        let rows = self.operands.rows(isa, v, place, &cells, tile)?.ahead(ahead(v));
        attention::weigh(isa, s, TILE, *group, rows, o);
        Ok(())
    }
}

/// Puts the pieces of a row together.
fn combine(partials: &Partials, out: Output, row: usize) {
    // SAFETY: the kernel that wrote the pieces has finished.
    let pieces = unsafe { partials.row(row) };
    // SAFETY: the row belongs to this item.
    let to = unsafe { out.row_mut::<f32>(row) };
    let head_v = to.len();
    let parts = || pieces.chunks_exact(partials.len).map(|p| (&p[..head_v], p[head_v], p[head_v + 1]));
    let max = parts().fold(LOWEST, |a, (_, max, _)| a.max(max));
    let weight = |max_here: f32| (max_here - max).exp2();
    let factor = inverse(parts().map(|(_, max, sum)| weight(max) * sum).sum());
    to.fill(0.0);
    for (values, max, sum) in parts().filter(|&(_, _, sum)| sum != 0.0) {
        let weight = weight(max) * factor;
        debug_assert!(sum.is_nan() || sum > 0.0);
        to.iter_mut().zip(values).for_each(|(to, x)| *to += weight * x);
    }
}
