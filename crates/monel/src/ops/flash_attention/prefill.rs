//! Many query rows: blocks of 64 rows against tiles of 64 cells.
//!
//! The rows of a block are the tokens in order, each with all the query heads that share the KV head, so a tile is
//! converted once for all of them. They are the lanes of `simd::attention`, for which q is transposed once per block;
//! the second product has the values as its lanes, so the result comes out in rows.

use super::operands::{LOWEST, MaskTile, Operands, in_place, inverse};
use super::rounded::{self, Words};
use crate::device::software::simd::attention::{self, LANE_GROUP, Left};
use crate::device::software::simd::{self, Isa};
use crate::error::Result;
use crate::kernel::{Kernel, Worker};
use std::ops::Range;

/// Query rows of a block. Twice as many would share what is done once for a tile of cells, but also end elsewhere, which rounds
/// v otherwise where integers are used: SmolLM2's perplexity of a repeating text moves by 0.24 %.
const BLOCK: usize = 64;
/// Cells of a tile.
pub(super) const TILE: usize = 64;

pub(super) fn kernel(operands: Operands) -> Kernel {
    let [_, _, kv_heads, _] = operands.k.desc.ne;
    let batches = operands.q.desc.ne[3];
    let rows = operands.tokens() * operands.group;
    let blocks = rows.div_ceil(BLOCK);
    // all about as long
    let size = rows.div_ceil(blocks.max(1)).next_multiple_of(LANE_GROUP);
    Kernel::new(blocks * kv_heads * batches, 1, move |items, worker| {
        items.into_iter().try_for_each(|i| {
            // late blocks see the most cells: they go first, so that threads finish together
            let block = blocks - 1 - i / (kv_heads * batches);
            let rows = block * size..((block + 1) * size).min(rows);
            Block::new(operands, rows, i % kv_heads, i / kv_heads % batches).run(worker)
        })
    })
}

/// One item: some query rows of one KV head.
struct Block {
    operands: Operands,
    /// Query rows, counted as token * group + head within the group.
    rows: Range<usize>,
    lanes: usize,
    kv_head: usize,
    batch: usize,
}

/// A block's working memory.
struct Space<'a> {
    /// The integers, where the step is rounded.
    words: Option<Words<'a>>,
    /// q transposed: `[head][lane]`; empty until floats are needed.
    q: &'a mut [f32],
    /// Whether `q` is there.
    floats: bool,
    /// The result, in rows of whole vectors: `[row][head_v]`.
    o: &'a mut [f32],
    /// Scores, then weights: `[cell][lane]`.
    s: &'a mut [f32],
    /// A tile of k, then of v, as floats.
    tile: &'a mut [f32],
    /// The mask of each row: `[row][cell]`.
    mask: &'a mut [f32],
    max: &'a mut [f32],
    sum: &'a mut [f32],
    carry: &'a mut [f32],
    /// First and past the last cell each lane sees.
    lo: &'a mut [f32],
    hi: &'a mut [f32],
    /// The same, from the tile's first cell.
    bounds: &'a mut [f32],
}

/// Values of a row of the result, padded to whole vectors.
fn width(head_v: usize) -> usize {
    head_v.next_multiple_of(LANE_GROUP)
}

impl<'a> Space<'a> {
    fn of(worker: &'a mut Worker, operands: &Operands, lanes: usize) -> Space<'a> {
        let (head, head_v) = operands.head_sizes();
        let rounded = rounded::instructions(worker.isa, operands);
        let words = rounded.map_or([0; 8], |_| Words::sizes(lanes, (head, head_v)));
        let width = width(head_v);
        let sizes = [
            head * lanes,
            width * lanes,
            TILE * lanes,
            TILE * head.max(width),
            if operands.mask().is_some() { lanes * TILE } else { 0 },
            7 * lanes,
        ];
        // every part is a whole number of cache lines
        let whole = |n: usize| n.next_multiple_of(LANE_GROUP);
        let len = sizes.iter().chain(&words).map(|&n| whole(n)).sum();
        let mut rest = worker.aligned_floats(len);
        let mut take = |n: usize| {
            let (part, tail) = std::mem::take(&mut rest).split_at_mut(whole(n));
            rest = tail;
            &mut part[..n]
        };
        let [q, o, s, tile, mask] =
            [take(sizes[0]), take(sizes[1]), take(sizes[2]), take(sizes[3]), take(sizes[4])];
        let [max, sum, carry, lo, hi] = [(); 5].map(|()| take(lanes));
        let bounds = take(2 * lanes);
        let words = rounded.map(|by| Words::new(by, words.map(take)));
        Space { words, q, floats: false, o, s, tile, mask, max, sum, carry, lo, hi, bounds }
    }
}

impl Block {
    fn new(operands: Operands, rows: Range<usize>, kv_head: usize, batch: usize) -> Block {
        Block { operands, lanes: rows.len().next_multiple_of(LANE_GROUP), rows, kv_head, batch }
    }

    /// Token and head of each row.
    fn places(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (group, first) = (self.operands.group, self.kv_head * self.operands.group);
        self.rows.clone().map(move |row| (row / group, first + row % group))
    }

    fn run(&self, worker: &mut Worker) -> Result<()> {
        let isa = worker.isa;
        let mut space = Space::of(worker, &self.operands, self.lanes);
        let cells = self.start(&mut space)?;
        let everyone = self.seen_by_all(&space);

        for first in cells.clone().step_by(TILE) {
            let tile = first..(first + TILE).min(cells.end);
            let mask = self.read_mask(isa, &tile, &mut space);
            if matches!(mask, MaskTile::Hidden) {
                continue;
            }
            let place = [self.kv_head, self.batch];
            let rounded = match &mut space.words {
                Some(words) => words.round_tile(isa, &self.operands, place, &tile)?,
                None => false,
            };
            self.scores(isa, &tile, rounded, &mut space)?;
            self.operands.soft_cap(isa, &mut space.s[..tile.len() * self.lanes]);
            if tile.start < everyone.start || tile.end > everyone.end {
                self.hide(isa, &tile, &mut space);
            }
            if matches!(mask, MaskTile::Values) {
                self.add_mask(tile.len(), &mut space);
            }
            self.add_values(isa, &tile, rounded, &mut space)?;
        }
        self.finish(&space);
        Ok(())
    }

    /// Reads q and the positions; gives the cells that any row sees.
    fn start(&self, space: &mut Space<'_>) -> Result<Range<usize>> {
        space.o.fill(0.0);
        space.max.fill(LOWEST);
        space.sum.fill(0.0);
        space.lo.fill(0.0);
        space.hi.fill(0.0);
        let (mut from, mut to) = (usize::MAX, 0);
        for (lane, (token, _)) in self.places().enumerate() {
            let seen = self.operands.visible(token)?;
            (space.lo[lane], space.hi[lane]) = (seen.start as f32, seen.end as f32);
            (from, to) = (from.min(seen.start), to.max(seen.end));
        }
        let Operands { q, q_scale, .. } = self.operands;
        let rows = self.places().map(|(token, head)| q.row3::<f32>(token, head, self.batch));
        space.words.take_if(|words| !words.round_queries(rows, q_scale));
        Ok(from.min(to)..to)
    }

    /// q as floats, for the first tile that needs them.
    fn float_queries(&self, space: &mut Space<'_>) {
        if std::mem::replace(&mut space.floats, true) {
            return;
        }
        let Operands { q, q_scale, .. } = self.operands;
        space.q.fill(0.0);
        for (lane, (token, head)) in self.places().enumerate() {
            let row = q.row3::<f32>(token, head, self.batch);
            for (x, to) in row.iter().zip(space.q[lane..].iter_mut().step_by(self.lanes)) {
                *to = x * q_scale;
            }
        }
    }

    /// The scores of a tile.
    fn scores(&self, isa: Isa, tile: &Range<usize>, rounded: bool, space: &mut Space<'_>) -> Result<()> {
        if let Some(words) = space.words.as_ref().filter(|_| rounded) {
            words.scores(tile.len(), space.s);
            return Ok(());
        }
        let (head, _) = self.operands.head_sizes();
        self.float_queries(space);
        self.widen(isa, tile, false, space)?;
        let k = Left { data: space.tile, step: (head, 1), size: (tile.len(), head) };
        attention::product(isa, k, space.q, space.s, self.lanes, false);
        Ok(())
    }

    /// The step of the online softmax, and the values by its weights.
    fn add_values(&self, isa: Isa, tile: &Range<usize>, rounded: bool, space: &mut Space<'_>) -> Result<()> {
        let (_, head_v) = self.operands.head_sizes();
        let Space { words, s, o, max, sum, carry, .. } = space;
        let mut words = words.as_mut().filter(|_| rounded);
        match &mut words {
            Some(words) => words.softmax(tile.len(), s, [max, sum, carry]),
            None => attention::softmax_columns(isa, s, tile.len(), [max, sum, carry]),
        }
        let width = width(head_v);
        for (row, &carry) in
            o.chunks_exact_mut(width.max(1)).zip(&**carry).filter(|(_, carry)| **carry != 1.0)
        {
            simd::scale(isa, row, carry);
        }
        if let Some(words) = words {
            words.add_values(self.rows.len(), tile.len(), o);
            return Ok(());
        }
        self.widen(isa, tile, true, space)?;
        let weights = Left { data: space.s, step: (1, self.lanes), size: (self.rows.len(), tile.len()) };
        attention::product(isa, weights, space.tile, space.o, width, true);
        Ok(())
    }

    /// The cells that all rows see.
    fn seen_by_all(&self, space: &Space<'_>) -> Range<usize> {
        let (lo, hi) = (&space.lo[..self.rows.len()], &space.hi[..self.rows.len()]);
        let from = lo.iter().fold(0.0, |a: f32, &b| a.max(b)) as usize;
        from..hi.iter().fold(f32::MAX, |a, &b| a.min(b)) as usize
    }

    /// A tile of k, or of v in rows of whole vectors, as floats; cells that the mask hides from every row are zero.
    fn widen(&self, isa: Isa, cells: &Range<usize>, v: bool, space: &mut Space<'_>) -> Result<()> {
        let of = if v { self.operands.v } else { self.operands.k };
        let (len, place) = (of.desc.ne[0], [self.kv_head, self.batch]);
        let width = if v { width(len) } else { len };
        if in_place(of.desc.dtype) {
            let rows = self.operands.rows(isa, &of, place, cells, &mut [])?;
            attention::widen(isa, rows, space.tile);
        } else {
            self.operands.rows(isa, &of, place, cells, space.tile)?;
        }
        if width > len {
            // from the last row on, so that none is overwritten before it has moved
            for c in (0..cells.len()).rev() {
                space.tile.copy_within(c * len..(c + 1) * len, c * width);
                space.tile[c * width + len..(c + 1) * width].fill(0.0);
            }
        }
        if !space.mask.is_empty() {
            for c in (0..cells.len()).filter(|&c| self.hidden(space.mask, c)) {
                space.tile[c * width..(c + 1) * width].fill(0.0);
            }
        }
        Ok(())
    }

    fn hidden(&self, mask: &[f32], cell: usize) -> bool {
        mask.iter().skip(cell).step_by(TILE).take(self.rows.len()).all(|&m| m == f32::NEG_INFINITY)
    }

    fn read_mask(&self, isa: Isa, cells: &Range<usize>, space: &mut Space<'_>) -> MaskTile {
        let Some(mask) = self.operands.mask() else {
            return MaskTile::Zero;
        };
        let (mut hidden, mut zero) = (true, true);
        let shared = mask.desc.ne[2] == 1;
        for (row, (token, head)) in self.places().enumerate() {
            if shared && row > 0 && !(self.rows.start + row).is_multiple_of(self.operands.group) {
                // the same numbers as for the head before
                space.mask.copy_within((row - 1) * TILE..row * TILE, row * TILE);
                continue;
            }
            let to = &mut space.mask[row * TILE..(row + 1) * TILE];
            self.operands.widen_mask(isa, &mask, [token, head, self.batch], cells, to);
            hidden &= to[..cells.len()].iter().all(|&m| m == f32::NEG_INFINITY);
            zero &= to[..cells.len()].iter().all(|&m| m == 0.0);
        }
        match (hidden, zero) {
            (true, _) => MaskTile::Hidden,
            (_, true) => MaskTile::Zero,
            _ => MaskTile::Values,
        }
    }

    fn add_mask(&self, cells: usize, space: &mut Space<'_>) {
        for (lane, mask) in space.mask.chunks_exact(TILE).take(self.rows.len()).enumerate() {
            for (s, &m) in space.s[lane..].iter_mut().step_by(self.lanes).zip(&mask[..cells]) {
                // a hidden cell's score may be NaN
                *s = if m == f32::NEG_INFINITY { m } else { *s + m * std::f32::consts::LOG2_E };
            }
        }
    }

    fn hide(&self, isa: Isa, cells: &Range<usize>, space: &mut Space<'_>) {
        let (lo, hi) = space.bounds.split_at_mut(self.lanes);
        let first = cells.start as f32;
        lo.iter_mut().zip(&*space.lo).for_each(|(to, x)| *to = x - first);
        hi.iter_mut().zip(&*space.hi).for_each(|(to, x)| *to = x - first);
        attention::hide_outside(isa, space.s, cells.len(), lo, hi);
    }

    fn finish(&self, space: &Space<'_>) {
        let (_, head_v) = self.operands.head_sizes();
        let rows = space.o.chunks_exact(width(head_v).max(1));
        for ((token, head), (o, &sum)) in self.places().zip(rows.zip(&*space.sum)) {
            // SAFETY: the row belongs to this token and head, which belong to this item.
            let to =
                unsafe { self.operands.out.row_mut::<f32>(self.operands.out_row(head, token, self.batch)) };
            let factor = inverse(sum);
            to.iter_mut().zip(o).for_each(|(to, x)| *to = x * factor);
        }
    }
}
