//! The largest elements of rows: greedy decoding, and the front half of sampling.
//!
//! A row of logits has up to some hundred thousand elements and often stands alone, so long rows are cut into pieces
//! that threads take; a second kernel combines what the pieces found. The order is total: larger first, the lower
//! index first among equals, NaN after everything. It is the order of one integer, the *key* of a candidate.

mod shader;

use super::unary::{row_indices, vectorized};
use super::{Cost, Op};
use crate::check::{Case, Fill, Operand, Tolerance};
use crate::device::software::simd::Isa;
use crate::error::{Error, Result};
use crate::gpu::{Dispatch, GpuCall};
use crate::kernel::{Call, Kernel, Output, RefTensor};
use crate::tensor::{DType, Desc};
use std::ops::Range;

/// Elements of a piece.
pub(super) const PIECE: usize = 8192;

/// The index of the largest element of each row: x F32 `[n, a, b, c]` gives I32 `[a, b, c]`. The first of equals; NaN
/// only where a row has nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Argmax;

/// The indices of the k largest elements of each row: x F32 `[n, a, b, c]` gives I32 `[k, a, b, c]`, largest first, lower
/// indices first among equals, NaN last.
#[derive(Clone, Copy, Debug)]
pub struct TopK {
    /// How many, at most n.
    pub k: usize,
}

impl Op for Argmax {
    fn name(&self) -> &'static str {
        "argmax"
    }

    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        let [x] = inputs else {
            return Err(Error::shape("argmax", format!("one input, found {}", inputs.len())));
        };
        if x.ne[0] == 0 || i32::try_from(x.ne[0]).is_err() {
            return Err(Error::shape("argmax", format!("rows of 1 to 2^31 - 1 elements, found {x}")));
        }
        Desc::new(DType::I32, &x.ne[1..])
    }

    fn supports(&self, inputs: &[Desc], _: &Desc) -> Result<(), String> {
        super::all_f32_rows(inputs, &inputs[0])
    }

    fn cost(&self, inputs: &[Desc], _: &Desc) -> Cost {
        Cost { flops: inputs[0].elements() as f64, bytes: inputs[0].span() as f64 }
    }

    fn scratch(&self, inputs: &[Desc], _: &Desc) -> usize {
        // the index of the winner of each piece; a GPU's pieces are shorter and keep two words each
        if inputs[0].ne[0] > PIECE { pieces(inputs[0].ne[0]) * inputs[0].rows() * 4 * 8 } else { 0 }
    }

    fn kernels(&self, call: &Call<'_>) -> Vec<Kernel> {
        let (x, out, scratch) = (call.inputs[0], call.output, call.scratch);
        let (n, rows) = (x.desc.ne[0], x.desc.rows());
        let (ne, count) = (x.desc, pieces(n));
        if count == 1 {
            return vec![Kernel::rows(rows, n * 4, move |r, worker| {
                let winner = largest(worker.isa, x.row(r)).unwrap_or(0);
                let [i1, i2, i3] = row_indices(&ne, r);
                // SAFETY: the result's element for row r belongs to item r.
                unsafe { out.set([i1, i2, i3, 0], winner as i32) };
                Ok(())
            })];
        }
        vec![
            Kernel::rows(rows * count, PIECE * 4, move |item, worker| {
                let (r, piece) = (item / count, range(n, item % count));
                let winner = largest(worker.isa, &x.row::<f32>(r)[piece.clone()]);
                let winner = winner.map_or(-1, |i| (piece.start + i) as i32);
                // SAFETY: the scratch memory's element `item` belongs to this item.
                unsafe { scratch.set([item, 0, 0, 0], winner) };
                Ok(())
            }),
            Kernel::rows(rows, count * 4, move |r, _| {
                let row = x.row::<f32>(r);
                // SAFETY: the first kernel is done with the scratch memory, nobody writes it any more.
                let winners = unsafe { scratch_ints(&scratch, r * count..(r + 1) * count) };
                let mut best = -1;
                for &winner in winners {
                    if winner >= 0 && (best < 0 || row[winner as usize] > row[best as usize]) {
                        best = winner;
                    }
                }
                let [i1, i2, i3] = row_indices(&ne, r);
                // SAFETY: the result's element for row r belongs to item r.
                unsafe { out.set([i1, i2, i3, 0], best.max(0)) };
                Ok(())
            }),
        ]
    }

    fn shader(&self, call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
        shader::argmax(call)
    }

    fn reference(&self, inputs: &[RefTensor], output: &Desc) -> RefTensor {
        let x = &inputs[0];
        let data = (0..x.rows()).map(|r| ranked(x.row(r))[0] as f64).collect();
        RefTensor { ne: output.ne, data }
    }
}

impl Op for TopK {
    fn name(&self) -> &'static str {
        "top_k"
    }

    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        let [x] = inputs else {
            return Err(Error::shape("top_k", format!("one input, found {}", inputs.len())));
        };
        if self.k > x.ne[0] || i32::try_from(x.ne[0]).is_err() {
            return Err(Error::shape("top_k", format!("rows of {} to 2^31 - 1 elements, found {x}", self.k)));
        }
        Desc::new(DType::I32, &[self.k, x.ne[1], x.ne[2], x.ne[3]])
    }

    fn supports(&self, inputs: &[Desc], output: &Desc) -> Result<(), String> {
        super::all_f32_rows(inputs, &inputs[0])?;
        if output.has_dense_rows() {
            Ok(())
        } else {
            Err(format!("a result with dense rows, found {output}"))
        }
    }

    fn cost(&self, inputs: &[Desc], output: &Desc) -> Cost {
        let bytes = inputs[0].span() + output.span();
        Cost { flops: inputs[0].elements() as f64 * 2.0, bytes: bytes as f64 }
    }

    fn scratch(&self, inputs: &[Desc], _: &Desc) -> usize {
        // the best keys of each piece
        if inputs[0].ne[0] > PIECE {
            pieces(inputs[0].ne[0]) * inputs[0].rows() * self.k.min(PIECE) * 8
        } else {
            0
        }
    }

    fn kernels(&self, call: &Call<'_>) -> Vec<Kernel> {
        let (k, x, out, scratch) = (self.k, call.inputs[0], call.output, call.scratch);
        let (n, rows) = (x.desc.ne[0], x.desc.rows());
        let count = pieces(n);
        if count == 1 {
            return vec![Kernel::rows(rows, n * 8, move |r, worker| {
                let mut best = Vec::new();
                select(worker.isa, x.row(r), 0, k, &mut best);
                // SAFETY: row r belongs to item r.
                write_indices(&best, unsafe { out.row_mut(r) });
                Ok(())
            })];
        }
        let kept = k.min(PIECE);
        vec![
            Kernel::rows(rows * count, PIECE * 4, move |item, worker| {
                let (r, piece) = (item / count, range(n, item % count));
                let mut best = Vec::new();
                select(worker.isa, &x.row::<f32>(r)[piece.clone()], piece.start, kept, &mut best);
                // SAFETY: these keys of the scratch memory belong to this item.
                let keys = unsafe { scratch_keys(&scratch, item * kept..(item + 1) * kept) };
                // the last piece may have fewer candidates; no candidate has the key 0
                keys.fill(0);
                keys[..best.len()].copy_from_slice(&best);
                Ok(())
            }),
            Kernel::rows(rows, count * kept * 8, move |r, _| {
                // SAFETY: the first kernel is done with the scratch memory; row r's part belongs to item r.
                let keys = unsafe { scratch_keys(&scratch, r * count * kept..(r + 1) * count * kept) };
                let mut best: Vec<u64> = keys.iter().copied().filter(|&key| key != 0).collect();
                keep_largest(&mut best, k);
                // SAFETY: row r belongs to item r.
                write_indices(&best, unsafe { out.row_mut(r) });
                Ok(())
            }),
        ]
    }

    fn shader(&self, call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
        shader::top_k(self.k, call)
    }

    fn reference(&self, inputs: &[RefTensor], output: &Desc) -> RefTensor {
        let mut out = RefTensor::zeros(output.ne);
        for r in 0..inputs[0].rows() {
            let order = ranked(inputs[0].row(r));
            out.row_mut(r).iter_mut().zip(order).for_each(|(o, i)| *o = i as f64);
        }
        out
    }
}

/// All indices of a row in the order of this file, for the references.
fn ranked(row: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    // a stable sort keeps lower indices first; NaN compares as smaller than everything
    let value = |i: usize| if row[i].is_nan() { None } else { Some(row[i]) };
    order.sort_by(|&a, &b| value(b).partial_cmp(&value(a)).unwrap_or(std::cmp::Ordering::Equal));
    order
}

/// Pieces of a row of n elements.
pub(super) fn pieces(n: usize) -> usize {
    n.div_ceil(PIECE)
}

/// The elements of a piece.
pub(super) fn range(n: usize, piece: usize) -> Range<usize> {
    piece * PIECE..((piece + 1) * PIECE).min(n)
}

/// # Safety
/// The keys belong to the item being run, and lie inside the scratch memory.
#[allow(clippy::mut_from_ref)]
pub(super) unsafe fn scratch_keys(scratch: &Output, keys: Range<usize>) -> &mut [u64] {
    assert!(keys.end * 8 <= scratch.desc.span(), "keys {keys:?} of {}", scratch.desc);
    assert!(scratch.ptr().cast::<u64>().is_aligned(), "scratch memory is aligned to 8 bytes");
    // SAFETY: inside and aligned, as checked; the caller is alone there.
    unsafe { std::slice::from_raw_parts_mut(scratch.ptr().cast::<u64>().add(keys.start), keys.len()) }
}

/// # Safety
/// Nobody writes these numbers meanwhile.
unsafe fn scratch_ints(scratch: &Output, range: Range<usize>) -> &[i32] {
    assert!(range.end * 4 <= scratch.desc.span(), "numbers {range:?} of {}", scratch.desc);
    // SAFETY: inside, as checked, and I32 elements are aligned.
    unsafe { std::slice::from_raw_parts(scratch.ptr().cast::<i32>().add(range.start), range.len()) }
}

/// The first of the largest elements; `None` where all are NaN.
pub(super) fn largest(isa: Isa, row: &[f32]) -> Option<usize> {
    const BLOCK: usize = 1024;
    let (mut best, mut at) = (f32::NEG_INFINITY, None);
    for (i, block) in row.chunks(BLOCK).enumerate() {
        let top = block_max(isa, block);
        if top > best {
            (best, at) = (top, Some(i));
        }
    }
    match at {
        Some(i) => row[i * BLOCK..].iter().position(|&x| x == best).map(|j| i * BLOCK + j),
        // nothing above minus infinity
        None => row.iter().position(|x| !x.is_nan()),
    }
}

/// The largest element, minus infinity where there is none; NaN is skipped.
fn block_max(isa: Isa, block: &[f32]) -> f32 {
    #[inline(always)]
    fn max(a: f32, b: f32) -> f32 {
        if b > a { b } else { a }
    }
    vectorized(isa, || {
        // several vectors of sixteen, because each comparison waits for the one before
        let mut lanes = [f32::NEG_INFINITY; 64];
        let (whole, rest) = block.as_chunks::<64>();
        for x in whole {
            for i in 0..64 {
                lanes[i] = max(lanes[i], x[i]);
            }
        }
        lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| max(a, b))
    })
}

/// The key of a candidate: larger for larger values, then for lower indices; the two zeros are equal, NaN has the
/// smallest keys. Never 0.
#[inline(always)]
pub(super) fn key(value: f32, index: usize) -> u64 {
    // adding zero turns -0 into +0
    let bits = (value + 0.0).to_bits();
    let order = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    let order = if value.is_nan() { 0 } else { order };
    u64::from(order) << 32 | u64::from(!(index as u32))
}

/// The index of a key.
#[inline(always)]
pub(super) fn index_of(key: u64) -> usize {
    !(key as u32) as usize
}

/// The value of a key.
#[inline(always)]
pub(super) fn value_of(key: u64) -> f32 {
    let order = (key >> 32) as u32;
    match order {
        0 => f32::NAN,
        _ if order >> 31 == 1 => f32::from_bits(order & !(1 << 31)),
        _ => f32::from_bits(!order),
    }
}

fn write_indices(keys: &[u64], out: &mut [i32]) {
    out.iter_mut().zip(keys).for_each(|(o, &key)| *o = index_of(key) as i32);
}

/// Leaves the k largest keys, in order.
fn keep_largest(keys: &mut Vec<u64>, k: usize) {
    if k < keys.len() {
        keys.select_nth_unstable_by(k, |a, b| b.cmp(a));
        keys.truncate(k);
    }
    keys.sort_unstable_by(|a, b| b.cmp(a));
}

/// The keys of the k largest elements of `row`, in order, into `best`; `start` is the index of the row's first element.
pub(super) fn select(isa: Isa, row: &[f32], start: usize, k: usize, best: &mut Vec<u64>) {
    best.clear();
    if k == 0 {
        return;
    }
    if k == 1 {
        let winner = largest(isa, row).unwrap_or(0);
        return best.extend(row.get(winner).map(|&x| key(x, start + winner)));
    }
    if k >= row.len() / 4 {
        best.extend(row.iter().enumerate().map(|(i, &x)| key(x, start + i)));
        return keep_largest(best, k);
    }
    // What is not above the k-th best so far is passed over, sixteen at a time; candidates are thinned out when
    // there are twice as many as asked for, with some room for small k.
    let room = 2 * k + 64;
    best.reserve(room + 16);
    vectorized(isa, || {
        let (mut least, mut full) = (f32::NEG_INFINITY, false);
        for (block, xs) in row.chunks(16).enumerate() {
            if full && !xs.iter().fold(false, |any, &x| any | (x > least)) {
                continue;
            }
            for (i, &x) in xs.iter().enumerate() {
                // Later elements lose ties, so only larger ones count once there are k.
                if !full || x > least {
                    best.push(key(x, start + block * 16 + i));
                }
            }
            if best.len() >= room {
                best.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
                best.truncate(k);
                // NaN among the k best: everything may still come in
                least = value_of(best[k - 1]);
                full = !least.is_nan();
            }
        }
    });
    keep_largest(best, k);
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let f32s = |ne: &[usize]| Operand::normal(DType::F32, ne);
    // equal numbers in every row
    let ties = |ne: &[usize]| f32s(ne).fill(Fill::Ints(-3, 4));
    let special = vec![f64::NAN, -0.0, 0.0, f64::NEG_INFINITY, f64::NAN, f64::NEG_INFINITY, -1.0, 0.0];
    let lost = vec![f64::NAN, f64::NEG_INFINITY, f64::NAN, f64::NEG_INFINITY];
    let values = |v: &[f64]| f32s(&[v.len()]).fill(Fill::Values(v.to_vec()));
    let inputs = [
        f32s(&[1]),
        f32s(&[17, 3]),
        ties(&[100, 2, 3, 2]),
        ties(&[1025, 2]),
        f32s(&[PIECE]),
        ties(&[PIECE + 1, 2]),
        f32s(&[3 * PIECE + 77, 2, 2]),
        f32s(&[151_936]),
        f32s(&[60, 7]).slice(0, 11, 40),
        f32s(&[20, 3, 4]).permuted([0, 2, 1, 3]),
        f32s(&[5, 0]),
        values(&special),
        values(&lost),
        values(&[f64::NAN; 19]),
    ];
    for x in &inputs {
        cases.push(Case::new(Argmax, DType::F32, vec![x.clone()], Tolerance::Exact));
        let n = match x.view {
            crate::check::View::Slice { len, .. } => len,
            _ => x.ne[0],
        };
        for k in [0, 1, 7, 40, 2000, n] {
            if k <= n {
                cases.push(Case::new(TopK { k }, DType::F32, vec![x.clone()], Tolerance::Exact));
            }
        }
    }
    let strided = Operand::normal(DType::I32, &[4, 6]).permuted([1, 0, 2, 3]);
    cases.push(Case::new(Argmax, DType::F32, vec![f32s(&[9, 6, 4])], Tolerance::Exact).into(strided));
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_values_then_indices() {
        let values = [f32::INFINITY, 3.0, 1e-40, 0.0, -1e-40, -3.0, f32::NEG_INFINITY, f32::NAN];
        for pair in values.windows(2) {
            assert!(key(pair[0], 9) > key(pair[1], 0), "{pair:?}");
            assert!(key(pair[0], 3) > key(pair[0], 4));
        }
        assert_eq!(key(0.0, 5), key(-0.0, 5));
        assert!(key(f32::NAN, u32::MAX as usize - 1) != 0);
        for value in values {
            let key = key(value, 77);
            assert_eq!((value_of(key).to_bits(), index_of(key)), (value.to_bits(), 77));
        }
    }

    #[test]
    fn too_few_elements_are_an_error() {
        let x = Desc::new(DType::F32, &[4, 2]).unwrap();
        assert!(TopK { k: 5 }.output(&[x]).is_err());
        assert!(Argmax.output(&[Desc::new(DType::F32, &[0, 2]).unwrap()]).is_err());
        assert!(Argmax.output(&[]).is_err());
    }
}
