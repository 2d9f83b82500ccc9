//! The loops of attention, over any [`Lanes`].
//!
//! All functions take raw addresses: the safe functions in `mod.rs` check lengths once per tile. Everything is inlined
//! into an entry of one instruction set.

// Loops over registers run over their numbers: with constant bounds they are unrolled into straight code.
#![allow(clippy::needless_range_loop)]

use super::lanes::{exp2, sub};
use super::{CellRows, CellType};
use crate::device::software::simd::lanes::Lanes;
use crate::device::software::simd::prefetch_line;
use std::ops::Range;

/// Vectors side by side in a product: with four rows of them the sums fit in the registers beside the operands.
const fn vectors_of<V: Lanes>() -> usize {
    if V::N == 16 { 4 } else { 2 }
}

/// Query rows that the decode kernels take at once; each keeps four sums in registers.
const fn heads_of<V: Lanes>() -> usize {
    if V::N == 16 { 4 } else { HEADS_NARROW }
}
const HEADS_NARROW: usize = 3;

/// How elements of a row become floats; `d` counts elements, and vectors begin at a multiple of their length.
pub(super) trait Source {
    unsafe fn vector<V: Lanes>(row: *const u8, d: usize) -> V;
    unsafe fn one(row: *const u8, d: usize) -> f32;
}

pub(super) struct F32;
pub(super) struct F16;
struct Bf16;
struct Q8_0;

impl Source for F32 {
    #[inline(always)]
    unsafe fn vector<V: Lanes>(row: *const u8, d: usize) -> V {
        // SAFETY: passed on to the caller; here and below.
        unsafe { V::load(row.cast::<f32>().add(d)) }
    }
    #[inline(always)]
    unsafe fn one(row: *const u8, d: usize) -> f32 {
        // SAFETY: as above.
        unsafe { row.cast::<f32>().add(d).read_unaligned() }
    }
}

impl Source for F16 {
    #[inline(always)]
    unsafe fn vector<V: Lanes>(row: *const u8, d: usize) -> V {
        // SAFETY: as above.
        unsafe { V::load_f16(row.cast::<u16>().add(d)) }
    }
    #[inline(always)]
    unsafe fn one(row: *const u8, d: usize) -> f32 {
        // SAFETY: as above.
        half::f16::from_bits(unsafe { row.cast::<u16>().add(d).read_unaligned() }).to_f32()
    }
}

impl Source for Bf16 {
    #[inline(always)]
    unsafe fn vector<V: Lanes>(row: *const u8, d: usize) -> V {
        // SAFETY: as above.
        unsafe { V::load_bf16(row.cast::<u16>().add(d)) }
    }
    #[inline(always)]
    unsafe fn one(row: *const u8, d: usize) -> f32 {
        // SAFETY: as above.
        f32::from_bits(u32::from(unsafe { row.cast::<u16>().add(d).read_unaligned() }) << 16)
    }
}

/// Blocks of a scale and 32 codes.
impl Source for Q8_0 {
    #[inline(always)]
    unsafe fn vector<V: Lanes>(row: *const u8, d: usize) -> V {
        // SAFETY: as above; a vector lies in one block, because its length divides a block's.
        unsafe {
            let block = row.add(d / 32 * 34);
            V::load_i8(block.add(2 + d % 32).cast()).mul(V::splat_f16(block.cast()))
        }
    }
    #[inline(always)]
    unsafe fn one(row: *const u8, d: usize) -> f32 {
        // SAFETY: as above.
        unsafe {
            let block = row.add(d / 32 * 34);
            let scale = half::f16::from_bits(block.cast::<u16>().read_unaligned()).to_f32();
            scale * f32::from(block.add(2 + d % 32).cast::<i8>().read())
        }
    }
}

/// Calls a function generic over [`Source`] for a cell type.
macro_rules! with_source {
    ($ty:expr, $S:ident => $call:expr) => {
        match $ty {
            CellType::F32 => {
                type $S = F32;
                $call
            }
            CellType::F16 => {
                type $S = F16;
                $call
            }
            CellType::Bf16 => {
                type $S = Bf16;
                $call
            }
            CellType::Q8_0 => {
                type $S = Q8_0;
                $call
            }
        }
    };
}

/// Asks for a row that will be wanted.
#[inline(always)]
fn ask(row: *const u8, bytes: usize) {
    let mut at = 0;
    while at < bytes {
        prefetch_line(row.wrapping_add(at));
        at += 64;
    }
}

/// Rows to dense floats.
#[inline(always)]
pub(super) unsafe fn widen<V: Lanes>(rows: CellRows<'_>, to: *mut f32) {
    // SAFETY: the caller vouches for the rows and for as many floats behind `to`.
    unsafe { with_source!(rows.ty, S => widen_from::<V, S>(rows, to)) }
}

#[inline(always)]
unsafe fn widen_from<V: Lanes, S: Source>(rows: CellRows<'_>, to: *mut f32) {
    // SAFETY: as in `widen`.
    unsafe {
        for c in 0..rows.count {
            let (from, to) = (rows.first.add(c * rows.stride), to.add(c * rows.len));
            let mut d = 0;
            while d + V::N <= rows.len {
                S::vector::<V>(from, d).store(to.add(d));
                d += V::N;
            }
            while d < rows.len {
                *to.add(d) = S::one(from, d);
                d += 1;
            }
        }
    }
}

/// `c[i][lane] (+)= Σ a(i, k) b[k][lane]` with `a(i, k)` at `a[i * step_i + k * step_k]`.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn product<V: Lanes>(
    a: *const f32,
    step: (usize, usize),
    b: *const f32,
    c: *mut f32,
    size: (usize, usize),
    lanes: usize,
    add: bool,
) {
    let mut at = 0;
    while at < lanes {
        let vectors = ((lanes - at) / V::N).min(vectors_of::<V>());
        // SAFETY: the caller vouches for size.0 x size.1 elements of a and for rows of `lanes` in b and c.
        unsafe {
            let (b, c) = (b.add(at), c.add(at));
            match vectors {
                1 => panel::<V, 8, 1>(a, step, b, c, size, lanes, add),
                2 => panel::<V, 4, 2>(a, step, b, c, size, lanes, add),
                3 => panel::<V, 4, 3>(a, step, b, c, size, lanes, add),
                _ => panel::<V, 4, 4>(a, step, b, c, size, lanes, add),
            }
        }
        at += vectors * V::N;
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn panel<V: Lanes, const ROWS: usize, const VECTORS: usize>(
    a: *const f32,
    step: (usize, usize),
    b: *const f32,
    c: *mut f32,
    (rows, terms): (usize, usize),
    lanes: usize,
    add: bool,
) {
    let mut i = 0;
    // SAFETY: as in `product`.
    unsafe {
        while i + ROWS <= rows {
            block::<V, ROWS, VECTORS>(a.add(i * step.0), step, b, c.add(i * lanes), terms, lanes, add);
            i += ROWS;
        }
        while i < rows {
            block::<V, 1, VECTORS>(a.add(i * step.0), step, b, c.add(i * lanes), terms, lanes, add);
            i += 1;
        }
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn block<V: Lanes, const ROWS: usize, const VECTORS: usize>(
    a: *const f32,
    step: (usize, usize),
    b: *const f32,
    c: *mut f32,
    terms: usize,
    lanes: usize,
    add: bool,
) {
    // SAFETY: as in `product`.
    unsafe {
        let mut sums = [[V::splat(0.0); VECTORS]; ROWS];
        if add {
            for r in 0..ROWS {
                for v in 0..VECTORS {
                    sums[r][v] = V::load(c.add(r * lanes + v * V::N));
                }
            }
        }
        let (mut a, mut b) = (a, b);
        for _ in 0..terms {
            let mut right = [V::splat(0.0); VECTORS];
            for v in 0..VECTORS {
                right[v] = V::load(b.add(v * V::N));
            }
            for r in 0..ROWS {
                let left = V::splat(*a.add(r * step.0));
                for v in 0..VECTORS {
                    sums[r][v] = left.fma(right[v], sums[r][v]);
                }
            }
            a = a.wrapping_add(step.1);
            b = b.add(lanes);
        }
        for r in 0..ROWS {
            for v in 0..VECTORS {
                sums[r][v].store(c.add(r * lanes + v * V::N));
            }
        }
    }
}

/// One step of the online softmax down the columns of `s[cell][lane]`: scores become 2^(s - max), `max` and `sum` go on,
/// and `carry` tells by what earlier results have to be multiplied.
#[inline(always)]
pub(super) unsafe fn softmax_columns<V: Lanes>(
    s: *mut f32,
    cells: usize,
    lanes: usize,
    max: *mut f32,
    sum: *mut f32,
    carry: *mut f32,
) {
    let mut at = 0;
    while at < lanes {
        // SAFETY: the caller vouches for `cells` rows of `lanes` in s and one row in the others; lanes are whole vectors.
        unsafe {
            let s = s.add(at);
            let old = V::load(max.add(at));
            // several maxima side by side hide the latency
            let mut top = [old; 4];
            let mut c = 0;
            while c + 4 <= cells {
                for i in 0..4 {
                    top[i] = V::load(s.add((c + i) * lanes)).max(top[i]);
                }
                c += 4;
            }
            while c < cells {
                top[0] = V::load(s.add(c * lanes)).max(top[0]);
                c += 1;
            }
            let new = top[0].max(top[1]).max(top[2].max(top[3]));
            let factor = exp2(sub(old, new));
            let mut total = V::load(sum.add(at)).mul(factor);
            for c in 0..cells {
                let p = exp2(sub(V::load(s.add(c * lanes)), new));
                p.store(s.add(c * lanes));
                total = total.add(p);
            }
            new.store(max.add(at));
            total.store(sum.add(at));
            factor.store(carry.add(at));
        }
        at += V::N;
    }
}

/// Hides the cells outside `[lo, hi)` of each lane: `s[cell][lane]` becomes minus infinity. A plain loop that the
/// compiler turns into vectors.
#[inline(always)]
pub(super) unsafe fn hide_outside<V: Lanes>(
    s: *mut f32,
    cells: usize,
    lanes: usize,
    lo: *const f32,
    hi: *const f32,
) {
    // SAFETY: the caller vouches for `cells` rows of `lanes` in s and one row in lo and hi.
    let (s, lo, hi) = unsafe {
        let row = |p| std::slice::from_raw_parts(p, lanes);
        (std::slice::from_raw_parts_mut(s, cells * lanes), row(lo), row(hi))
    };
    for (c, s) in s.chunks_exact_mut(lanes.max(1)).enumerate() {
        let c = c as f32;
        for ((s, lo), hi) in s.iter_mut().zip(lo).zip(hi) {
            *s = if (*lo <= c) & (c < *hi) { *s } else { f32::NEG_INFINITY };
        }
    }
}

/// `x = limit tanh(y)` where x holds `2 log2(e) y`, as `limit (1 - 2 / (1 + 2^x))`. `len` is a multiple of 16.
#[inline(always)]
pub(super) unsafe fn soft_cap<V: Lanes>(x: *mut f32, len: usize, limit: f32) {
    let mut at = 0;
    while at < len {
        // SAFETY: the caller vouches for `len` floats.
        unsafe {
            let zero = V::splat(0.0);
            let bounded = sub(zero, V::splat(-126.0).max(sub(zero, V::load(x.add(at)))));
            let rest = V::splat(-2.0 * limit).div(exp2(bounded).add(V::splat(1.0)));
            rest.add(V::splat(limit)).store(x.add(at));
        }
        at += V::N;
    }
}

/// `out[head * out_step + cell] = q[head] · row[cell]`.
#[inline(always)]
pub(super) unsafe fn dots<V: Lanes>(
    q: *const f32,
    heads: usize,
    rows: CellRows<'_>,
    out: *mut f32,
    out_step: usize,
) {
    let mut h = 0;
    while h < heads {
        let n = (heads - h).min(heads_of::<V>());
        // SAFETY: the caller vouches for `heads` rows of q and out.
        unsafe {
            let (q, out) = (q.add(h * rows.len), out.add(h * out_step));
            let rows = if h == 0 { rows } else { rows.ahead(0) };
            with_source!(rows.ty, S => match n {
                1 => dots_of::<V, S, 1>(q, rows, out, out_step),
                2 => dots_of::<V, S, 2>(q, rows, out, out_step),
                3 => dots_of::<V, S, 3>(q, rows, out, out_step),
                _ => dots_of::<V, S, 4>(q, rows, out, out_step),
            });
        }
        h += n;
    }
}

#[inline(always)]
unsafe fn dots_of<V: Lanes, S: Source, const HEADS: usize>(
    q: *const f32,
    rows: CellRows<'_>,
    out: *mut f32,
    out_step: usize,
) {
    let bytes = rows.row_bytes();
    let mut c = 0;
    // SAFETY: as in `dots`.
    unsafe {
        while c < rows.count {
            // the last group may name its last row more than once
            let group = (rows.count - c).min(4);
            let mut row = [rows.first; 4];
            for i in 0..4 {
                row[i] = rows.first.add((c + i.min(group - 1)) * rows.stride);
            }
            if rows.ahead != 0 {
                row.iter().for_each(|row| ask(row.wrapping_add(rows.ahead), bytes));
            }
            let mut sums = [[V::splat(0.0); 4]; HEADS];
            let mut d = 0;
            while d + V::N <= rows.len {
                // One vector of k at a time: three heads' sums and rows of q leave one of sixteen registers.
                let mut of = [V::splat(0.0); HEADS];
                for h in 0..HEADS {
                    of[h] = V::load(q.add(h * rows.len + d));
                }
                for i in 0..4 {
                    let k = S::vector::<V>(row[i], d);
                    for h in 0..HEADS {
                        sums[h][i] = of[h].fma(k, sums[h][i]);
                    }
                }
                d += V::N;
            }
            // Written out, so that the sums stay in registers.
            let out = out.add(c);
            macro_rules! head {
                ($h:literal) => {
                    if $h < HEADS {
                        let total = V::sum4(sums[$h]);
                        if d < rows.len || group < 4 {
                            let q = q.add($h * rows.len);
                            rest_of_dots::<S>(q, row, d..rows.len, total, out.add($h * out_step), group);
                        } else {
                            out.add($h * out_step).cast::<[f32; 4]>().write_unaligned(total);
                        }
                    }
                };
            }
            head!(0);
            head!(1);
            head!(2);
            head!(3);
            c += 4;
        }
    }
}

/// Adds what does not fill a vector, and writes as many dots as there are rows.
#[cold]
unsafe fn rest_of_dots<S: Source>(
    q: *const f32,
    row: [*const u8; 4],
    rest: Range<usize>,
    mut total: [f32; 4],
    out: *mut f32,
    group: usize,
) {
    // SAFETY: as in `dots`: q and the rows have `rest.end` elements, and there is room for `group` results.
    unsafe {
        for d in rest {
            for i in 0..4 {
                total[i] += *q.add(d) * S::one(row[i], d);
            }
        }
        for i in 0..group {
            *out.add(i) = total[i];
        }
    }
}

/// `o[head] += Σ weights[head * step + cell] row[cell]`.
#[inline(always)]
pub(super) unsafe fn weigh<V: Lanes>(
    weights: *const f32,
    step: usize,
    heads: usize,
    rows: CellRows<'_>,
    o: *mut f32,
) {
    let mut h = 0;
    while h < heads {
        let n = (heads - h).min(heads_of::<V>());
        // SAFETY: the caller vouches for `heads` rows of weights and o.
        unsafe {
            let (weights, o) = (weights.add(h * step), o.add(h * rows.len));
            let rows = if h == 0 { rows } else { rows.ahead(0) };
            with_source!(rows.ty, S => match n {
                1 => weigh_of::<V, S, 1>(weights, step, rows, o),
                2 => weigh_of::<V, S, 2>(weights, step, rows, o),
                3 => weigh_of::<V, S, 3>(weights, step, rows, o),
                _ => weigh_of::<V, S, 4>(weights, step, rows, o),
            });
        }
        h += n;
    }
}

#[inline(always)]
unsafe fn weigh_of<V: Lanes, S: Source, const HEADS: usize>(
    weights: *const f32,
    step: usize,
    rows: CellRows<'_>,
    o: *mut f32,
) {
    let mut d = 0;
    // SAFETY: as in `weigh`.
    unsafe {
        while d + 4 * V::N <= rows.len {
            let rows = if d == 0 { rows } else { rows.ahead(0) };
            weigh_part::<V, S, HEADS, 4>(weights, step, rows, o, d);
            d += 4 * V::N;
        }
        while d + V::N <= rows.len {
            let rows = if d == 0 { rows } else { rows.ahead(0) };
            weigh_part::<V, S, HEADS, 1>(weights, step, rows, o, d);
            d += V::N;
        }
        for d in d..rows.len {
            for c in 0..rows.count {
                let x = S::one(rows.first.add(c * rows.stride), d);
                for h in 0..HEADS {
                    *o.add(h * rows.len + d) += *weights.add(h * step + c) * x;
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn weigh_part<V: Lanes, S: Source, const HEADS: usize, const VECTORS: usize>(
    weights: *const f32,
    step: usize,
    rows: CellRows<'_>,
    o: *mut f32,
    d: usize,
) {
    // SAFETY: as in `weigh`; `d` to `d + VECTORS * N` lies in the row.
    unsafe {
        let mut sums = [[V::splat(0.0); VECTORS]; HEADS];
        for h in 0..HEADS {
            for v in 0..VECTORS {
                sums[h][v] = V::load(o.add(h * rows.len + d + v * V::N));
            }
        }
        let (mut row, bytes) = (rows.first, rows.row_bytes());
        for c in 0..rows.count {
            if rows.ahead != 0 {
                ask(row.wrapping_add(rows.ahead), bytes);
            }
            let mut w = [V::splat(0.0); HEADS];
            for h in 0..HEADS {
                w[h] = V::splat(*weights.add(h * step + c));
            }
            for v in 0..VECTORS {
                let x = S::vector::<V>(row, d + v * V::N);
                for h in 0..HEADS {
                    sums[h][v] = w[h].fma(x, sums[h][v]);
                }
            }
            row = row.wrapping_add(rows.stride);
        }
        for h in 0..HEADS {
            for v in 0..VECTORS {
                sums[h][v].store(o.add(h * rows.len + d + v * V::N));
            }
        }
    }
}

/// The largest of `len` floats and of `least`.
#[inline(always)]
pub(super) unsafe fn largest<V: Lanes>(x: *const f32, len: usize, least: f32) -> f32 {
    // SAFETY: the caller vouches for `len` floats.
    unsafe {
        let mut top = V::splat(least);
        let mut at = 0;
        while at + V::N <= len {
            top = V::load(x.add(at)).max(top);
            at += V::N;
        }
        let mut parts = [least; 16];
        top.store(parts.as_mut_ptr());
        for at in at..len {
            parts[0] = parts[0].max(*x.add(at));
        }
        parts.iter().fold(least, |a, &b| a.max(b))
    }
}

/// `x = 2^(x - max)`; gives the sum. `x` has room for a whole number of sixteens, which may be overwritten.
#[inline(always)]
pub(super) unsafe fn exp2_sum<V: Lanes>(x: *mut f32, len: usize, max: f32) -> f32 {
    // SAFETY: the caller vouches for `len` floats, rounded up to sixteen.
    unsafe {
        let (mut total, max) = (V::splat(0.0), V::splat(max));
        let mut at = 0;
        for at in len..len.next_multiple_of(V::N) {
            *x.add(at) = f32::NEG_INFINITY;
        }
        while at < len {
            let p = exp2(sub(V::load(x.add(at)), max));
            p.store(x.add(at));
            total = total.add(p);
            at += V::N;
        }
        total.sum()
    }
}
