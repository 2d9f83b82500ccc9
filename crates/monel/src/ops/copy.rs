//! Copies: other types, other strides, and the packed layout of the matrix kernels.
//!
//! A row goes through three steps, of which most copies need one: gather (strided rows), convert, scatter (strided
//! results). Conversions between floats and blocks go through f32. Weights are packed tile by tile: a tile of
//! sixteen rows is one item, so that loading a model runs on all threads.

mod planes;
mod shader;

use super::unary::row_indices;
use super::{Cost, Op};
use crate::check::{Case, Fill, Operand, Tolerance};
use crate::device::software::simd::{self, Isa, TILE_ROWS};
use crate::error::{Error, Result};
use crate::gpu::{Dispatch, GpuCall};
use crate::kernel::{Call, Element, Input, Kernel, Output, RefTensor};
use crate::quant::{self, BlockType, planar};
use crate::tensor::{DType, Desc};

/// The same numbers as another type (`to`) and with other strides; the shape stays.
///
/// - F32, F16, BF16, I32, I64 to each other: floats are rounded to nearest even; floats become integers by rounding toward
///   zero, NaN becomes 0, and what is too large becomes the largest or smallest integer (I64 to I32 too).
/// - Blocks to F32, F16, BF16: decoded to f32, then rounded.
/// - F32, F16, BF16 to blocks: exactly what [`quant::quantize_row`] gives.
/// - Any type to itself, with any strides.
/// - Blocks `[k, rows]` to the packed matrix of the same blocks, without loss; packed matrices to F32. Blocks to planes
///   and planes to F32 likewise.
#[derive(Clone, Debug)]
pub struct Copy {
    /// The result's type.
    pub to: DType,
}

/// What is done with a row.
#[derive(Clone, std::marker::Copy, Debug, PartialEq)]
enum Path {
    /// Bytes as they are.
    Same,
    /// At least one side holds integers.
    Numbers,
    /// Floats and blocks, through f32.
    Floats,
    /// Tiles of the packed layout.
    Pack(BlockType),
    /// Rows out of the packed layout.
    Unpack(BlockType),
    /// Blocks to planes.
    ToPlanes(BlockType),
    /// Planes to floats.
    FromPlanes(BlockType),
}

impl Path {
    fn find(from: DType, to: DType) -> Option<Path> {
        let number = |t: DType| t.is_float() || t.is_integer();
        match (from, to) {
            (a, b) if a == b => Some(Path::Same),
            (a, DType::Packed(b)) if a == DType::of(b) => Some(Path::Pack(b)),
            (DType::Packed(b), DType::F32) => Some(Path::Unpack(b)),
            (a, DType::Planar(b)) if a == DType::of(b) => Some(Path::ToPlanes(b)),
            (DType::Planar(b), DType::F32) => Some(Path::FromPlanes(b)),
            (a, b) if a.has_whole_rows() || b.has_whole_rows() => None,
            (a, b) if number(a) && number(b) && (a.is_integer() || b.is_integer()) => Some(Path::Numbers),
            (a, b) if a.is_float() || b.is_float() => {
                (!a.is_integer() && !b.is_integer()).then_some(Path::Floats)
            }
            _ => None,
        }
    }
}

impl Op for Copy {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        let [x] = inputs else {
            return Err(Error::shape("copy", format!("one input, found {}", inputs.len())));
        };
        Desc::new(self.to, &x.ne)
    }

    fn supports(&self, inputs: &[Desc], output: &Desc) -> Result<(), String> {
        match Path::find(inputs[0].dtype, output.dtype) {
            Some(_) => Ok(()),
            None => Err(format!(
                "numbers to numbers, blocks to floats, floats to blocks, blocks to their packed or planar form or those \
                 to F32, found {} to {}",
                inputs[0].dtype, output.dtype
            )),
        }
    }

    fn cost(&self, inputs: &[Desc], output: &Desc) -> Cost {
        // Elements rather than spans: a permuted view may span more than it reads.
        let bytes = |d: &Desc| (d.rows() * d.dtype.row_bytes(d.ne[0])) as f64;
        Cost { flops: output.elements() as f64, bytes: bytes(&inputs[0]) + bytes(output) }
    }

    fn row_local(&self, inputs: &[Desc], output: &Desc) -> bool {
        // Packed rows lie interleaved in tiles.
        ![inputs[0].dtype, output.dtype].iter().any(|t| matches!(t, DType::Packed(_)))
    }

    fn kernels(&self, call: &Call<'_>) -> Vec<Kernel> {
        let (x, out) = (call.inputs[0], call.output);
        let (from, to) = (x.desc.dtype, out.desc.dtype);
        let (n, rows) = (x.desc.ne[0], x.desc.rows());
        let Some(path) = Path::find(from, to) else { return Vec::new() };
        let tiles = rows.div_ceil(TILE_ROWS);
        vec![match path {
            Path::Pack(block) => {
                let bytes = TILE_ROWS * (x.desc.dtype.row_bytes(n) + out.desc.nb[1]);
                Kernel::rows(tiles, bytes, move |tile, _| pack(block, &x, &out, tile))
            }
            Path::Same if matches!(to, DType::Packed(_)) => {
                Kernel::rows(tiles, 2 * TILE_ROWS * out.desc.nb[1], move |tile, _| {
                    // SAFETY: the tile belongs to this item.
                    unsafe { tile_mut(&out, tile) }.copy_from_slice(tile_of(&x, tile));
                    Ok(())
                })
            }
            Path::Unpack(block) => Kernel::rows(rows, from.row_bytes(n) + n * 4, move |r, worker| {
                // SAFETY: row r belongs to item r.
                with_row(&out, r, worker.floats(3 * n), |row, _| {
                    let tile = tile_of(&x, r / TILE_ROWS);
                    simd::unpack_row(block, n, tile, r % TILE_ROWS, floats_mut(row)).map_err(wrong)
                })
            }),
            Path::ToPlanes(block) => Kernel::rows(rows, 2 * to.row_bytes(n), move |r, _| {
                // SAFETY: row r belongs to item r.
                let row = unsafe { out.row_mut::<u8>(r) };
                planar::encode_row(block, n, x.row(r), row).map_err(wrong)
            }),
            Path::FromPlanes(block) => Kernel::rows(rows, from.row_bytes(n) + n * 4, move |r, worker| {
                // SAFETY: row r belongs to item r.
                with_row(&out, r, worker.floats(3 * n), |row, _| {
                    planar::dequantize_row(block, x.row(r), floats_mut(row)).map_err(wrong)
                })
            }),
            path => Kernel::rows(rows, from.row_bytes(n) + to.row_bytes(n), move |r, worker| {
                let isa = worker.isa;
                let (gathered, rest) = worker.floats(5 * n).split_at_mut(2 * n);
                let row = if x.desc.has_dense_rows() { x.row::<u8>(r) } else { gather(&x, r, gathered) };
                with_row(&out, r, rest, |result, wide| match path {
                    Path::Same => {
                        result.copy_from_slice(row);
                        Ok(())
                    }
                    Path::Numbers => {
                        numbers(from, to, row, result);
                        Ok(())
                    }
                    _ => floats(isa, from, to, row, result, wide),
                })
            }),
        }]
    }

    fn shader(&self, call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
        shader::shader(call)
    }

    fn reference(&self, inputs: &[RefTensor], output: &Desc) -> RefTensor {
        let x = &inputs[0].data;
        let mut data: Vec<f64> = match self.to {
            // `as` rounds toward zero and saturates
            DType::I32 => x.iter().map(|&x| f64::from(x as i32)).collect(),
            DType::I64 => x.iter().map(|&x| (x as i64) as f64).collect(),
            _ => x.clone(),
        };
        if let (Some(block), true) = (self.to.block(), self.to.is_quantized() && !output.is_empty()) {
            let mut bytes = vec![0; block.row_bytes(output.ne[0])];
            for row in data.chunks_exact_mut(output.ne[0]) {
                let values: Vec<f32> = row.iter().map(|&x| x as f32).collect();
                let done = quant::quantize_row(block, &values, &mut bytes);
                // rows are whole blocks, the shape rule saw to it
                if done.and_then(|()| quant::dequantize_row_f64(block, &bytes, row)).is_err() {
                    row.fill(f64::NAN);
                }
            }
        }
        RefTensor { ne: output.ne, data }
    }
}

fn wrong(e: impl std::fmt::Display) -> Error {
    Error::Kernel(format!("copy: {e}"))
}

/// One tile of sixteen rows into the packed layout.
fn pack(block: BlockType, x: &Input, out: &Output, tile: usize) -> Result<()> {
    let (k, rows, stride) = (x.desc.ne[0], x.desc.ne[1], x.desc.nb[1]);
    let first = tile * TILE_ROWS;
    let count = (rows - first).min(TILE_ROWS);
    let bytes = (count - 1) * stride + block.row_bytes(k);
    // SAFETY: the rows first .. first + count lie in the span of x.
    let natural = unsafe { std::slice::from_raw_parts(x.ptr().add(first * stride), bytes) };
    // SAFETY: the tile belongs to this item.
    simd::pack_tile(block, k, natural, stride, count, unsafe { tile_mut(out, tile) }).map_err(wrong)
}

/// The bytes of a tile of a packed matrix.
fn tile_of(x: &Input, tile: usize) -> &[u8] {
    let bytes = TILE_ROWS * x.desc.nb[1];
    assert!(tile < x.desc.ne[1].div_ceil(TILE_ROWS), "tile {tile} of {}", x.desc);
    // SAFETY: a packed matrix spans whole tiles.
    unsafe { std::slice::from_raw_parts(x.ptr().add(tile * bytes), bytes) }
}

/// # Safety
/// The tile belongs to the item being run.
#[allow(clippy::mut_from_ref)]
unsafe fn tile_mut(out: &Output, tile: usize) -> &mut [u8] {
    let bytes = TILE_ROWS * out.desc.nb[1];
    assert!(tile < out.desc.ne[1].div_ceil(TILE_ROWS), "tile {tile} of {}", out.desc);
    // SAFETY: a packed matrix spans whole tiles; the caller is alone in this one.
    unsafe { std::slice::from_raw_parts_mut(out.ptr().add(tile * bytes), bytes) }
}

/// Lets `f` fill row `r` of the result: in place where rows are dense, else by way of `memory` (three floats an
/// element: one for `f` to use, two for the row). The row belongs to the item being run.
fn with_row(
    out: &Output,
    r: usize,
    memory: &mut [f32],
    f: impl FnOnce(&mut [u8], &mut [f32]) -> Result<()>,
) -> Result<()> {
    let (wide, row) = memory.split_at_mut(out.desc.ne[0]);
    if out.desc.has_dense_rows() {
        // SAFETY: row r belongs to the item being run.
        return f(unsafe { out.row_mut::<u8>(r) }, wide);
    }
    let row = bytes_mut(row, out.desc.dtype.row_bytes(out.desc.ne[0]));
    f(row, wide)?;
    match out.desc.dtype.block_bytes() {
        2 => scatter(as_slice::<u16>(row), out, r),
        4 => scatter(as_slice::<i32>(row), out, r),
        _ => row
            .as_chunks::<8>()
            .0
            .iter()
            .enumerate()
            .for_each(|(i, b)| set(out, i, r, i64::from_le_bytes(*b))),
    }
    Ok(())
}

fn scatter<T: Element>(row: &[T], out: &Output, r: usize) {
    row.iter().enumerate().for_each(|(i, &x)| set(out, i, r, x));
}

fn set<T: Element>(out: &Output, i: usize, r: usize, x: T) {
    let [i1, i2, i3] = row_indices(&out.desc, r);
    // SAFETY: row r belongs to the item being run.
    unsafe { out.set([i, i1, i2, i3], x) };
}

/// A strided row as dense bytes.
fn gather<'a>(x: &Input, r: usize, memory: &'a mut [f32]) -> &'a [u8] {
    #[inline(always)]
    fn each<const N: usize>(x: &Input, r: usize, row: &mut [u8]) {
        assert!(r < x.desc.rows() && x.desc.dtype.block_bytes() == N, "row {r} of {}", x.desc);
        let (start, stride) = (x.desc.row_offset(r), x.desc.nb[0]);
        for (i, b) in row.as_chunks_mut::<N>().0.iter_mut().enumerate() {
            // SAFETY: element i of row r lies in the span of x.
            *b = unsafe { x.ptr().add(start + i * stride).cast::<[u8; N]>().read() };
        }
    }
    let row = bytes_mut(memory, x.desc.dtype.row_bytes(x.desc.ne[0]));
    match x.desc.dtype.block_bytes() {
        2 => each::<2>(x, r, row),
        4 => each::<4>(x, r, row),
        _ => each::<8>(x, r, row),
    }
    row
}

/// A number on its way between types: floats of all three types are exact in f32.
enum Number {
    Float(f32),
    Integer(i64),
}

/// Conversions with integers on at least one side.
fn numbers(from: DType, to: DType, row: &[u8], result: &mut [u8]) {
    let (a, b) = (from.block_bytes(), to.block_bytes());
    for (x, o) in row.chunks_exact(a).zip(result.chunks_exact_mut(b)) {
        let x = match (from, x) {
            (DType::I32, &[a, b, c, d]) => Number::Integer(i32::from_le_bytes([a, b, c, d]).into()),
            (DType::F32, &[a, b, c, d]) => Number::Float(f32::from_le_bytes([a, b, c, d])),
            (DType::F16, &[a, b]) => Number::Float(half::f16::from_le_bytes([a, b]).to_f32()),
            (DType::BF16, &[a, b]) => Number::Float(half::bf16::from_le_bytes([a, b]).to_f32()),
            (_, x) => Number::Integer(i64::from_le_bytes(std::array::from_fn(|i| x[i]))),
        };
        match (to, x) {
            (DType::I32, Number::Float(x)) => o.copy_from_slice(&(x as i32).to_le_bytes()),
            (DType::I32, Number::Integer(x)) => {
                o.copy_from_slice(&(x.clamp(i32::MIN.into(), i32::MAX.into()) as i32).to_le_bytes());
            }
            (DType::I64, Number::Float(x)) => o.copy_from_slice(&(x as i64).to_le_bytes()),
            (DType::I64, Number::Integer(x)) => o.copy_from_slice(&x.to_le_bytes()),
            (DType::F16, Number::Integer(x)) => {
                o.copy_from_slice(&half::f16::from_f32(x as f32).to_le_bytes())
            }
            (DType::BF16, Number::Integer(x)) => {
                o.copy_from_slice(&half::bf16::from_f32(x as f32).to_le_bytes())
            }
            (_, Number::Integer(x)) => o.copy_from_slice(&(x as f32).to_le_bytes()),
            // never: the path is for integers on at least one side
            (_, Number::Float(_)) => {}
        }
    }
}

/// Conversions between floats and blocks; `wide` has an f32 for each element.
fn floats(isa: Isa, from: DType, to: DType, row: &[u8], result: &mut [u8], wide: &mut [f32]) -> Result<()> {
    let widen = |wide: &mut [f32]| match from {
        DType::F16 => {
            simd::f16_to_f32(isa, as_slice(row), wide);
            Ok(())
        }
        DType::BF16 => {
            simd::bf16_to_f32(isa, as_slice(row), wide);
            Ok(())
        }
        _ => match from.block() {
            Some(block) => quant::dequantize_row(block, row, wide).map_err(wrong),
            None => Err(wrong(format!("{from} has no blocks"))),
        },
    };
    if to == DType::F32 {
        return widen(floats_mut(result));
    }
    let wide: &[f32] = if from == DType::F32 {
        as_slice(row)
    } else {
        widen(wide)?;
        wide
    };
    match (to, to.block()) {
        (DType::F16, _) => {
            // SAFETY: every bit pattern is a u16.
            let (_, result, _) = unsafe { result.align_to_mut::<u16>() };
            simd::f32_to_f16(isa, wide, result);
            Ok(())
        }
        (_, Some(block)) => quant::quantize_row(block, wide, result).map_err(wrong),
        (_, None) => Err(wrong(format!("{to} has no blocks"))),
    }
}

/// Bytes of a row as its elements; rows are aligned to them.
fn as_slice<T: Element>(bytes: &[u8]) -> &[T] {
    // SAFETY: elements accept every bit pattern.
    let (head, body, tail) = unsafe { bytes.align_to::<T>() };
    assert!(head.is_empty() && tail.is_empty(), "a row that is not aligned to its elements");
    body
}

fn floats_mut(bytes: &mut [u8]) -> &mut [f32] {
    // SAFETY: every bit pattern is an f32.
    let (head, body, tail) = unsafe { bytes.align_to_mut::<f32>() };
    assert!(head.is_empty() && tail.is_empty(), "a row that is not aligned to its elements");
    body
}

/// The first `len` bytes of some floats.
fn bytes_mut(floats: &mut [f32], len: usize) -> &mut [u8] {
    // SAFETY: floats have no padding, and every bit pattern is one.
    let (_, bytes, _) = unsafe { floats.align_to_mut::<u8>() };
    &mut bytes[..len]
}

pub(super) fn cases() -> Vec<Case> {
    use DType::{BF16, F16, F32, I32, I64};
    let mut cases = Vec::new();
    // Everything is exact: what is rounded is rounded once, and blocks are those of `quantize_row`.
    let case = |from: Operand, to| Case::new(Copy { to }, from.dtype, vec![from], Tolerance::Exact);
    let numbers = [F32, F16, BF16, I32, I64];
    for from in numbers {
        for to in numbers {
            let fill = if from.is_integer() { Fill::Ints(-3000, 3000) } else { Fill::Normal(100.0) };
            let x = |ne: &[usize]| Operand::normal(from, ne).fill(fill.clone());
            for ne in [&[0, 3][..], &[1], &[17, 3], &[576, 2], &[10, 3, 2, 4]] {
                cases.push(case(x(ne), to));
            }
            cases.push(case(x(&[7, 33, 2]).permuted([1, 0, 2, 3]), to));
            cases.push(case(x(&[8, 3, 5, 2]).permuted([0, 2, 1, 3]), to));
            cases.push(case(x(&[3, 4, 5, 6]).permuted([3, 2, 0, 1]), to));
            cases.push(case(x(&[40, 6]).slice(0, 7, 20), to));
            cases.push(case(x(&[9, 4]), to).into(Operand::normal(to, &[20, 4]).slice(0, 3, 9)));
            let across = Operand::normal(to, &[4, 9]).permuted([1, 0, 2, 3]);
            cases.push(case(x(&[9, 4]), to).into(across.clone()));
            cases.push(case(x(&[4, 9]).permuted([1, 0, 2, 3]), to).into(across));
        }
        let ends = Fill::Values(vec![0.0, 0.5, -0.5, 1.5, -2.5, 65519.0, 1e6, -1e6, 3e9, -3e9, 1e-7, 6e-8]);
        let x = Operand::normal(from, &[12]).fill(ends);
        numbers.into_iter().for_each(|to| cases.push(case(x.clone(), to)));
    }
    for quantized in DType::STORAGE.into_iter().filter(|t| t.is_quantized()) {
        let (n, to) = (quantized.block_len(), quantized);
        let into = |ne: &[usize], start, len| Operand::normal(to, ne).slice(1, start, len);
        for float in [F32, F16, BF16] {
            let x = |t, ne: &[usize]| Operand::normal(t, ne);
            for ne in [&[0, 2][..], &[n], &[3 * n, 5], &[n, 2, 3, 2]] {
                cases.push(case(x(float, ne), to));
                cases.push(case(x(to, ne), float));
            }
            cases.push(case(x(float, &[5, 2 * n]).permuted([1, 0, 2, 3]), to));
            cases.push(case(x(float, &[2 * n, 3]), to).into(into(&[2 * n, 7], 2, 3)));
            cases.push(case(x(to, &[n, 2, 3]).permuted([0, 2, 1, 3]), float));
            cases.push(case(x(to, &[2 * n, 5]).slice(0, n, n), float));
            let across = Operand::normal(float, &[5, n]).permuted([1, 0, 2, 3]);
            cases.push(case(x(to, &[n, 5]), float).into(across));
        }
        let x = |ne: &[usize]| Operand::normal(to, ne);
        cases.push(case(x(&[2 * n, 3]), to));
        cases.push(case(x(&[n, 2, 3]).permuted([0, 2, 1, 3]), to));
        cases.push(case(x(&[2 * n, 5]).slice(0, n, n), to).into(into(&[n, 9], 1, 5)));
        if let Some(block) = to.block() {
            let packed = DType::Packed(block);
            for rows in [0, 1, 15, 16, 33] {
                cases.push(case(x(&[2 * n, rows]), packed));
            }
            cases.push(case(x(&[n, 40]).slice(1, 3, 18), packed));
            for rows in [0, 1, 16, 33] {
                cases.push(case(Operand::normal(packed, &[2 * n, rows]), F32));
            }
            // two blocks, so that tiles are whole cache lines and a view may begin at any of them
            let whole = Operand::normal(packed, &[2 * n, 48]);
            cases.push(case(whole.clone(), packed));
            cases.push(case(whole.clone().slice(1, 16, 20), F32));
            cases.push(case(whole.slice(1, 16, 32), packed));
            let planar = DType::Planar(block);
            for ne in [&[2 * n, 0][..], &[n, 1], &[3 * n, 5], &[n, 2, 3, 2]] {
                cases.push(case(x(ne), planar));
                cases.push(case(Operand::normal(planar, ne), F32));
            }
            cases.push(case(x(&[3 * n, 40]).slice(1, 3, 18), planar));
            cases.push(case(x(&[n, 5]), planar).into(Operand::normal(planar, &[n, 9]).slice(1, 2, 5)));
            let whole = Operand::normal(planar, &[3 * n, 48]);
            cases.push(case(whole.clone(), planar));
            cases.push(case(whole.slice(1, 5, 20), F32));
        }
    }
    let large = Operand::normal(F32, &[2048, 129]);
    cases.push(case(large.clone(), F16));
    cases.push(case(large, F32));
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_copied_is_refused_with_a_reason() {
        let x = |t: DType| Desc::new(t, &[256, 16]).unwrap();
        for (from, to) in [
            (DType::Q4_0, DType::Q8_0),
            (DType::I32, DType::Q8_0),
            (DType::Q8_0, DType::I32),
            (DType::F32, DType::Packed(BlockType::Q8_0)),
            (DType::Packed(BlockType::Q8_0), DType::F16),
            (DType::Packed(BlockType::Q8_0), DType::Q8_0),
            (DType::F32, DType::Planar(BlockType::Q8_0)),
            (DType::F32, DType::Q8A),
            (DType::F32, DType::Q8P),
        ] {
            let (op, x) = (Copy { to }, x(from));
            let output = op.output(&[x]).unwrap();
            assert!(op.supports(&[x], &output).unwrap_err().contains("found"), "{from} to {to}");
        }
        assert!(Copy { to: DType::Q8_0 }.output(&[Desc::new(DType::F32, &[33]).unwrap()]).is_err());
        assert!(Copy { to: DType::F32 }.output(&[]).is_err());
    }

    #[test]
    fn floats_become_integers_toward_zero_without_wrapping() {
        let row: Vec<u8> = [1.9f32, -1.9, f32::NAN, 3e9, -3e9].iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut result = [0u8; 20];
        numbers(DType::F32, DType::I32, &row, &mut result);
        let got: Vec<i32> = result.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b)).collect();
        assert_eq!(got, [1, -1, 0, i32::MAX, i32::MIN]);
    }
}
