//! The inner loops of attention.
//!
//! A prompt is computed in blocks of up to 64 query rows (tokens times the heads that share a KV head) against tiles of
//! cells. The query rows are the *lanes*: scores are kept as `[cell][lane]`, so the softmax runs down columns without
//! any reduction across a register, K and V are used in the order they lie in, and both matrix products have one form:
//! a broadcast element (of K, of a weight) times a vector (of lanes, of values) ([`product`]). A single token has too few rows for that: its
//! scores are dot products along the head ([`dots`], [`weigh`]), four cells and up to four heads at a time, so a cell is
//! converted once for all heads that share it.
//!
//! Scores are in units of log2(e): the exponentials are powers of two.

mod kernels;
mod lanes;
mod rounded;
pub(super) mod words;

pub use rounded::{Columns, Rounded, Rows};

use super::Isa;
use super::lanes::{Lanes, dispatch};
use std::marker::PhantomData;

/// Lanes are handled in groups of this many.
pub const LANE_GROUP: usize = 16;

/// How the elements of K and V rows are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellType {
    /// 32-bit floats.
    F32,
    /// IEEE halves.
    F16,
    /// bfloat16.
    Bf16,
    /// Blocks of 32 eight-bit codes with a scale.
    Q8_0,
}

impl CellType {
    /// Bytes of `len` elements.
    pub fn bytes(self, len: usize) -> usize {
        match self {
            CellType::F32 => 4 * len,
            CellType::F16 | CellType::Bf16 => 2 * len,
            CellType::Q8_0 => len.div_ceil(32) * 34,
        }
    }
}

/// Some rows of K or V (or of a mask) at equal distances. Nothing is assumed about alignment.
#[derive(Clone, Copy, Debug)]
pub struct CellRows<'a> {
    first: *const u8,
    stride: usize,
    count: usize,
    len: usize,
    ty: CellType,
    ahead: usize,
    life: PhantomData<&'a [u8]>,
}

impl<'a> CellRows<'a> {
    /// # Safety
    /// `len` is a multiple of 32 for `Q8_0`. For `'a`, `count` rows of `len` elements can be read, `stride` bytes apart from `first` on, and nobody writes them.
    pub unsafe fn new(
        first: *const u8,
        stride: usize,
        count: usize,
        len: usize,
        ty: CellType,
    ) -> CellRows<'a> {
        CellRows { first, stride, count, len, ty, ahead: 0, life: PhantomData }
    }

    /// Dense rows of floats.
    pub fn of(rows: &'a [f32], len: usize) -> CellRows<'a> {
        let count = rows.len() / len.max(1);
        CellRows {
            first: rows.as_ptr().cast(),
            stride: len * 4,
            count,
            len,
            ty: CellType::F32,
            ahead: 0,
            life: PhantomData,
        }
    }

    /// Rows `from .. from + count`.
    pub fn part(self, from: usize, count: usize) -> CellRows<'a> {
        assert!(from + count <= self.count, "rows {from} + {count} of {}", self.count);
        CellRows { first: self.first.wrapping_add(from * self.stride), count, ..self }
    }

    /// The same rows; while a row is used by [`dots`] or [`weigh`], the one as many bytes behind it is asked for.
    pub fn ahead(self, bytes: usize) -> CellRows<'a> {
        CellRows { ahead: bytes, ..self }
    }

    fn row_bytes(&self) -> usize {
        self.ty.bytes(self.len)
    }

    /// Rows there are.
    pub fn count(&self) -> usize {
        self.count
    }
}

/// Runs the function of `kernels` of that name with the vectors of an instruction set. The functions below check the
/// lengths that the kernel's addresses need before they come here; `CellRows` vouches for its own memory.
macro_rules! run {
    ($isa:expr, $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?) => {{
        #[inline(always)]
        fn body<V: Lanes>($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: the lengths were checked by the function that holds this one; `dispatch!` provides the
            // instructions.
            unsafe { kernels::$name::<V>($($arg),*) }
        }
        dispatch!($isa, body($($arg: $ty),*) $(-> $ret)?)
    }};
}

fn check_lanes(lanes: usize) {
    assert!(lanes.is_multiple_of(LANE_GROUP), "{lanes} lanes, expected a multiple of {LANE_GROUP}");
}

/// The rows as dense floats, in `to[count * len]`.
pub fn widen(isa: Isa, rows: CellRows<'_>, to: &mut [f32]) {
    assert!(to.len() >= rows.count * rows.len);
    let to = to.as_mut_ptr();
    run!(isa, widen(rows: CellRows<'_>, to: *mut f32))
}

/// The left operand of [`product`]: element (i, k) lies at `data[i * step_i + k * step_k]`.
#[derive(Clone, Copy, Debug)]
pub struct Left<'a> {
    /// The elements.
    pub data: &'a [f32],
    /// Distances of neighbours in i and in k.
    pub step: (usize, usize),
    /// How many i and how many k.
    pub size: (usize, usize),
}

/// `c[i][lane] = Σ_k a(i, k) b[k][lane]`, added to c if `add`.
pub fn product(isa: Isa, a: Left<'_>, b: &[f32], c: &mut [f32], lanes: usize, add: bool) {
    check_lanes(lanes);
    let (rows, terms) = a.size;
    assert!(b.len() >= terms * lanes && c.len() >= rows * lanes);
    assert!(rows * terms == 0 || (rows - 1) * a.step.0 + (terms - 1) * a.step.1 < a.data.len());
    let (step, size) = (a.step, a.size);
    let (a, b, c) = (a.data.as_ptr(), b.as_ptr(), c.as_mut_ptr());
    run!(isa, product(
        a: *const f32, step: (usize, usize), b: *const f32, c: *mut f32, size: (usize, usize), lanes: usize, add: bool,
    ))
}

/// One step of the online softmax down the columns of `s[cell][lane]`: each score becomes 2^(s - largest so far);
/// `max` and `sum` (one per lane) go on, and `carry` gives the factors for results of earlier steps. `max` starts with a
/// finite number, so that a column of minus infinities gives zeros.
pub fn softmax_columns(isa: Isa, s: &mut [f32], cells: usize, [max, sum, carry]: [&mut [f32]; 3]) {
    let lanes = max.len();
    check_lanes(lanes);
    assert!(s.len() >= cells * lanes && sum.len() == lanes && carry.len() == lanes);
    let (s, max, sum, carry) = (s.as_mut_ptr(), max.as_mut_ptr(), sum.as_mut_ptr(), carry.as_mut_ptr());
    run!(isa, softmax_columns(
        s: *mut f32, cells: usize, lanes: usize, max: *mut f32, sum: *mut f32, carry: *mut f32,
    ))
}

/// Scores of cells outside `lo[lane] .. hi[lane]` become minus infinity; the bounds count from the first row of
/// `s[cell][lane]`.
pub fn hide_outside(isa: Isa, s: &mut [f32], cells: usize, lo: &[f32], hi: &[f32]) {
    let lanes = lo.len();
    check_lanes(lanes);
    assert!(s.len() >= cells * lanes && hi.len() == lanes);
    let (s, lo, hi) = (s.as_mut_ptr(), lo.as_ptr(), hi.as_ptr());
    run!(isa, hide_outside(s: *mut f32, cells: usize, lanes: usize, lo: *const f32, hi: *const f32))
}

/// `limit tanh(y)` of each element, which comes as `2 log2(e) y`. The length is a multiple of sixteen.
pub fn soft_cap(isa: Isa, x: &mut [f32], limit: f32) {
    check_lanes(x.len());
    let (x, len) = (x.as_mut_ptr(), x.len());
    run!(isa, soft_cap(x: *mut f32, len: usize, limit: f32))
}

/// `out[head * step + cell] = q[head] · row[cell]` for the dense rows `q`.
pub fn dots(isa: Isa, q: &[f32], heads: usize, rows: CellRows<'_>, out: &mut [f32], step: usize) {
    assert!(q.len() >= heads * rows.len && rows.count <= step && out.len() >= heads * step);
    let (q, out) = (q.as_ptr(), out.as_mut_ptr());
    run!(isa, dots(q: *const f32, heads: usize, rows: CellRows<'_>, out: *mut f32, step: usize))
}

/// `o[head] += Σ weights[head * step + cell] row[cell]` for the dense rows `o`.
pub fn weigh(isa: Isa, weights: &[f32], step: usize, heads: usize, rows: CellRows<'_>, o: &mut [f32]) {
    assert!(o.len() >= heads * rows.len && rows.count <= step && weights.len() >= heads * step);
    let (weights, o) = (weights.as_ptr(), o.as_mut_ptr());
    run!(isa, weigh(weights: *const f32, step: usize, heads: usize, rows: CellRows<'_>, o: *mut f32))
}

/// The largest element, at least `least`.
pub fn largest(isa: Isa, x: &[f32], least: f32) -> f32 {
    let (x, len) = (x.as_ptr(), x.len());
    run!(isa, largest(x: *const f32, len: usize, least: f32) -> f32)
}

/// `x = 2^(x - max)` for the first `len` elements; gives their sum. What follows up to a multiple of sixteen is
/// overwritten.
pub fn exp2_sum(isa: Isa, x: &mut [f32], len: usize, max: f32) -> f32 {
    assert!(x.len() >= len.next_multiple_of(LANE_GROUP));
    let x = x.as_mut_ptr();
    run!(isa, exp2_sum(x: *mut f32, len: usize, max: f32) -> f32)
}

/// A row of Q4_0 blocks as floats; the shorter of both counts.
pub fn widen_q4_0(isa: Isa, row: &[u8], to: &mut [f32]) {
    dispatch!(isa, q4_0(row: &[u8], to: &mut [f32]));
}

// The compiler turns this loop into vector code for the instruction set of the function it is inlined into.

#[inline(always)]
fn q4_0<V: Lanes>(row: &[u8], to: &mut [f32]) {
    for (block, to) in row.as_chunks::<18>().0.iter().zip(to.as_chunks_mut::<32>().0) {
        let scale = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
        let (low, high) = to.split_at_mut(16);
        for ((low, high), &q) in low.iter_mut().zip(high).zip(&block[2..]) {
            *low = scale * f32::from((q & 15) as i8 - 8);
            *high = scale * f32::from((q >> 4) as i8 - 8);
        }
    }
}
