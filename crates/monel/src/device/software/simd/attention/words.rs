//! Attention of prompts in 16-bit integers, which multiply twice as fast as floats: two products and their sum in a lane.
//!
//! Rows of q and k are scaled to a length of [`LENGTH`], whatever they hold, and rounded; so no sum of products of two rows,
//! nor a part of it, exceeds `(LENGTH + √head / 2)²` (Cauchy and Schwarz; rounding moves a row by half a unit an element),
//! which fits 32 bits for any head there is. An element is off by 1/64,000 of its row's length: less than by being an f16.
//!
//! Weights are 2^(score - largest of the tile), as integers up to [`ONE`]. A column of v in a tile is scaled to a sum of
//! magnitudes of [`MASS`] at most, and elements below 2^15. A tile has up to [`CELLS`] cells, so a weighted sum is at most
//! `ONE * (MASS + CELLS / 2) < 2^31`. Since the tile's own largest score stands at the top of the range, what the
//! weights lose does not depend on scores elsewhere.
//!
//! Two neighbours (in a row of q and k, of cells in v and in the weights) share a lane: a *pair*, the first one low.
//! What is not finite has no place here: the functions that round say so, and the caller goes on in floats.

// As in `kernels`: loops over registers.
#![allow(clippy::needless_range_loop)]

use super::kernels::{F16, F32, Source};
use super::lanes::{exp2, sub};
use super::{CellRows, CellType};
use crate::device::software::simd::lanes::Lanes;

/// The length (Euclid's) of a row of q or k.
const LENGTH: f32 = 32_700.0;
/// The weight of a tile's largest score.
const ONE: f32 = (1 << ONE_BITS) as f32;
const ONE_BITS: u32 = 14;
/// Most of the magnitudes of a column of v, together.
const MASS: f32 = 130_900.0;
/// Cells of a tile, at most.
pub(super) const CELLS: usize = 64;

const _: () = assert!((ONE as u64) * (MASS as u64 + CELLS as u64 / 2) < 1 << 31);
// the longest row that the bound allows is far longer than any head
const _: () = assert!((LENGTH as u64 + 256 / 2) * (LENGTH as u64 + 256 / 2) < 1 << 31);

/// Squares and sums that are neither lost nor too large.
const ORDINARY: std::ops::Range<f32> = 1e-30..1e30;

/// Vectors whose lanes also hold pairs of 16-bit integers, or 32-bit sums. The contract is that of [`Lanes`].
pub(in crate::device::software::simd) trait Words: Lanes {
    /// As many pairs, or sums, as there are floats.
    type Pairs: Copy;

    unsafe fn load_pairs(p: *const i32) -> Self::Pairs;
    /// One pair in all lanes.
    unsafe fn splat_pair(p: *const i32) -> Self::Pairs;
    unsafe fn no_sums() -> Self::Pairs;
    /// `sums + a.low * b.low + a.high * b.high`; with `VNNI`, which the caller then has too, in one instruction.
    unsafe fn add_products<const VNNI: bool>(
        a: Self::Pairs,
        b: Self::Pairs,
        sums: Self::Pairs,
    ) -> Self::Pairs;
    unsafe fn of_sums(sums: Self::Pairs) -> Self;
    /// Rounds to words side by side, N of them; all lie in -32768..=32767.
    unsafe fn store_words(self, p: *mut i16);
    /// Rounds to the low and the high words of N pairs.
    unsafe fn store_pairs(low: Self, high: Self, p: *mut i32);
}

/// Rounds rows of `rows.len` values (a multiple of 16) to words, and gives their scales. False where a row is too large, too
/// small or not finite.
#[inline(always)]
pub(super) unsafe fn round_rows<V: Words>(rows: CellRows<'_>, to: *mut i32, scales: *mut f32) -> bool {
    // SAFETY: the caller vouches for the rows, for as many words behind `to` and a scale for each row.
    unsafe {
        match rows.ty {
            CellType::F16 => round_rows_of::<V, F16>(rows, to, scales),
            CellType::F32 => round_rows_of::<V, F32>(rows, to, scales),
            _ => false,
        }
    }
}

#[inline(always)]
unsafe fn round_rows_of<V: Words, S: Source>(rows: CellRows<'_>, to: *mut i32, scales: *mut f32) -> bool {
    let (mut fit, mut c) = (true, 0);
    // SAFETY: as in `round_rows`.
    unsafe {
        while c < rows.count {
            let (first, scales) = (rows.first.add(c * rows.stride), scales.add(c));
            let to = to.cast::<i16>().add(c * rows.len);
            if c + 4 <= rows.count {
                fit &= round_group::<V, S, 4>(first, rows, to, scales);
                c += 4;
            } else {
                fit &= round_group::<V, S, 1>(first, rows, to, scales);
                c += 1;
            }
        }
    }
    fit
}

/// `ROWS` rows side by side: what is done once for a row takes long.
#[inline(always)]
unsafe fn round_group<V: Words, S: Source, const ROWS: usize>(
    first: *const u8,
    rows: CellRows<'_>,
    to: *mut i16,
    scales: *mut f32,
) -> bool {
    let mut fit = true;
    // SAFETY: as in `round_rows`.
    unsafe {
        let mut squares = [V::splat(0.0); 4];
        for d in (0..rows.len).step_by(V::N) {
            for i in 0..ROWS {
                let x = S::vector::<V>(first.add(i * rows.stride), d);
                squares[i] = x.fma(x, squares[i]);
            }
        }
        let squares = if ROWS == 1 { [squares[0].sum(); 4] } else { V::sum4(squares) };
        for i in 0..ROWS {
            fit &= (squares[i] == 0.0) | ORDINARY.contains(&squares[i]);
            let length = squares[i].sqrt();
            *scales.add(i) = length * (1.0 / LENGTH);
            let by = V::splat(if length > 0.0 { LENGTH / length } else { 0.0 });
            for d in (0..rows.len).step_by(V::N) {
                S::vector::<V>(first.add(i * rows.stride), d).mul(by).store_words(to.add(i * rows.len + d));
            }
        }
    }
    fit
}

/// Rounds at most [`CELLS`] F16 rows to pairs of cells, `[cells / 2][value]`, and gives each column's scale. False as in
/// [`round_rows`]; columns that are nearly zero are.
#[inline(always)]
pub(super) unsafe fn round_columns<V: Words>(rows: CellRows<'_>, to: *mut i32, scales: *mut f32) -> bool {
    // SAFETY: the caller vouches for the rows, whose length is a multiple of 16, and as many pairs and scales.
    unsafe {
        let zero = V::splat(0.0);
        let mut largest = zero;
        let row = |c: usize| rows.first.add(c * rows.stride);
        for d in (0..rows.len).step_by(V::N) {
            let (mut mass, mut most) = (zero, zero);
            for c in 0..rows.count {
                let x = F16::vector::<V>(row(c), d).abs();
                (mass, most) = (mass.add(x), most.max_bits(x));
            }
            largest = largest.max_bits(mass);
            let unit = mass.mul(V::splat(1.0 / MASS)).max(most.mul(V::splat(1.0 / LENGTH)));
            let unit = unit.max(V::splat(ORDINARY.start));
            unit.store(scales.add(d));
            let by = V::splat(1.0).div(unit);
            for c in (0..rows.count).step_by(2) {
                let low = F16::vector::<V>(row(c), d).mul(by);
                let high = if c + 1 < rows.count { F16::vector::<V>(row(c + 1), d).mul(by) } else { zero };
                V::store_pairs(low, high, to.add(c / 2 * rows.len + d));
            }
        }
        largest.reduce_max_bits() < ORDINARY.end
    }
}

/// One operand of a product by rows: pair (i, k) lies at `pairs[i * step.0 + k * step.1]`.
#[derive(Clone, Copy)]
pub(in crate::device::software::simd) struct Rows {
    pub pairs: *const i32,
    pub step: (usize, usize),
    /// How many i and how many k.
    pub size: (usize, usize),
    /// A scale for each i.
    pub scales: *const f32,
}

impl Rows {
    /// Without the first rows.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn from(self, first: usize) -> Rows {
        Rows {
            pairs: self.pairs.wrapping_add(first * self.step.0),
            size: (self.size.0 - first, self.size.1),
            scales: self.scales.wrapping_add(first),
            ..self
        }
    }
}

/// The other: `pairs[k][lane]`, and a scale for each lane.
#[derive(Clone, Copy)]
pub(in crate::device::software::simd) struct Columns {
    pub pairs: *const i32,
    pub lanes: usize,
    pub scales: *const f32,
}

/// `c[i][lane] (+)= scales Σ a(i, k) b[k][lane]`.
#[inline(always)]
pub(super) unsafe fn product<V: Words, const VNNI: bool>(a: Rows, b: Columns, c: *mut f32, add: bool) {
    // Vectors side by side: with four rows of them the sums fit in the registers beside the operands.
    let wide = if V::N == 16 { 4 } else { 2 };
    let mut at = 0;
    while at < b.lanes {
        let vectors = ((b.lanes - at) / V::N).min(wide);
        // SAFETY: the caller vouches for a and b, and for rows of `lanes` in c.
        unsafe {
            match vectors {
                1 => panel::<V, VNNI, 1>(a, b, c, at, add),
                2 => panel::<V, VNNI, 2>(a, b, c, at, add),
                3 => panel::<V, VNNI, 3>(a, b, c, at, add),
                _ => panel::<V, VNNI, 4>(a, b, c, at, add),
            }
        }
        at += vectors * V::N;
    }
}

#[inline(always)]
unsafe fn panel<V: Words, const VNNI: bool, const VECTORS: usize>(
    a: Rows,
    b: Columns,
    c: *mut f32,
    at: usize,
    add: bool,
) {
    let mut i = 0;
    // SAFETY: as in `product`.
    unsafe {
        while i + 4 <= a.size.0 {
            block::<V, VNNI, 4, VECTORS>(a, b, c, (i, at), add);
            i += 4;
        }
        while i < a.size.0 {
            block::<V, VNNI, 1, VECTORS>(a, b, c, (i, at), add);
            i += 1;
        }
    }
}

#[inline(always)]
unsafe fn block<V: Words, const VNNI: bool, const ROWS: usize, const VECTORS: usize>(
    a: Rows,
    b: Columns,
    c: *mut f32,
    (i, at): (usize, usize),
    add: bool,
) {
    // SAFETY: as in `product`.
    unsafe {
        let mut sums = [[V::no_sums(); VECTORS]; ROWS];
        let (mut left, mut right) = (a.pairs.add(i * a.step.0), b.pairs.add(at));
        for _ in 0..a.size.1 {
            let mut columns = [V::no_sums(); VECTORS];
            for v in 0..VECTORS {
                columns[v] = V::load_pairs(right.add(v * V::N));
            }
            for r in 0..ROWS {
                let row = V::splat_pair(left.add(r * a.step.0));
                for v in 0..VECTORS {
                    sums[r][v] = V::add_products::<VNNI>(row, columns[v], sums[r][v]);
                }
            }
            left = left.wrapping_add(a.step.1);
            right = right.wrapping_add(b.lanes);
        }
        for v in 0..VECTORS {
            let scale = V::load(b.scales.add(at + v * V::N));
            for r in 0..ROWS {
                let by = scale.mul(V::splat(*a.scales.add(i + r)));
                let to = c.add((i + r) * b.lanes + at + v * V::N);
                let x = V::of_sums(sums[r][v]);
                if add { x.fma(by, V::load(to)) } else { x.mul(by) }.store(to);
            }
        }
    }
}

/// One step of the online softmax, as [`super::kernels::softmax_columns`]: the weights become pairs of cells,
/// `[cells / 2][lane]`, in units of `unit` (one per lane). A lane with a NaN has a NaN for its sum.
#[inline(always)]
pub(super) unsafe fn softmax_columns<V: Words>(
    s: *const f32,
    cells: usize,
    lanes: usize,
    weights: *mut i32,
    [max, sum, carry, unit]: [*mut f32; 4],
) {
    let mut at = 0;
    while at < lanes {
        // SAFETY: the caller vouches for `cells` rows of `lanes` in s, half as many (rounded up) in weights, and one row in
        // the others; lanes are whole vectors.
        unsafe {
            let score = |c: usize| V::load(s.add(c * lanes + at));
            let mut top = [V::splat(LOWEST); 4];
            let mut c = 0;
            while c + 4 <= cells {
                for i in 0..4 {
                    top[i] = score(c + i).max(top[i]);
                }
                c += 4;
            }
            while c < cells {
                top[0] = score(c).max(top[0]);
                c += 1;
            }
            let top = top[0].max(top[1]).max(top[2].max(top[3]));
            let old = V::load(max.add(at));
            let new = old.max(top);
            let factor = exp2(sub(old, new));
            let size = exp2(sub(top, new)).mul(V::splat(1.0 / ONE));
            // 2^(score - top), ONE times as large
            let zero = sub(top, V::splat(ONE_BITS as f32));
            let mut total = V::splat(0.0);
            for c in (0..cells).step_by(2) {
                let low = exp2(sub(score(c), zero)).round();
                let high = if c + 1 < cells { exp2(sub(score(c + 1), zero)).round() } else { V::splat(0.0) };
                V::store_pairs(low, high, weights.add(c / 2 * lanes + at));
                total = total.add(low.add(high));
            }
            new.store(max.add(at));
            total.fma(size, V::load(sum.add(at)).mul(factor)).store(sum.add(at));
            factor.store(carry.add(at));
            size.store(unit.add(at));
        }
        at += V::N;
    }
}

/// Below any score but minus infinity, so that a column of those gives zeros.
const LOWEST: f32 = -1e30;
