//! Operands larger than what a kernel can bind (`maxStorageBufferRange`, 128 MiB on Mesa's software driver): the op is
//! cut into parts whose operands are not.
//!
//! Cuts go through rows, by halves: through the outermost dimension first, as its halves lie one after the other. A
//! product may be cut through the weights' rows, which are the result's columns. A table that is too large for
//! reading or writing rows is seen through windows, and each part passes over the rows outside its own.

use crate::error::Result as Checked;
use crate::ops::{GetRows, MatMul, Op, SetRows};
use crate::tensor::Desc;
use std::any::Any;

/// A tensor of a part: its description, and where in the whole it begins, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Piece {
    pub desc: Desc,
    pub offset: usize,
}

/// Some of an op's work.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    pub inputs: Vec<Piece>,
    pub output: Piece,
    /// Of a table seen through a window: its first row, and the rows of the whole.
    pub window: Option<(usize, usize)>,
}

/// How an op can be cut.
#[derive(Clone, Copy, PartialEq)]
enum How {
    /// Row r of the result needs row r of inputs with as many rows, and all of those with one.
    Rows,
    Product,
    ReadTable,
    WriteTable,
    Whole,
}

/// The parts of an op whose operands all span at most `reach` bytes, or why there are none.
pub fn parts(op: &dyn Op, inputs: &[Desc], output: &Desc, reach: usize) -> Result<Vec<Part>, String> {
    let piece = |desc: &Desc| Piece { desc: *desc, offset: 0 };
    let whole = Part { inputs: inputs.iter().map(piece).collect(), output: piece(output), window: None };
    let any: &dyn Any = op;
    let how = match () {
        () if any.is::<MatMul>() => How::Product,
        () if any.is::<GetRows>() => How::ReadTable,
        () if any.is::<SetRows>() => How::WriteTable,
        () if op.row_local(inputs, output) => How::Rows,
        () => How::Whole,
    };
    let mut parts = Vec::new();
    divide(how, whole, reach, &mut parts)?;
    Ok(parts)
}

fn divide(how: How, part: Part, reach: usize, parts: &mut Vec<Part>) -> Result<(), String> {
    let large = |p: &Piece| p.desc.span() > reach;
    let Some(largest) = part.inputs.iter().chain([&part.output]).find(|p| large(p)) else {
        parts.push(part);
        return Ok(());
    };
    let refuse = || {
        format!("operands of at most {reach} bytes, which is what a kernel can bind, found {}", largest.desc)
    };
    let halves = match how {
        How::Rows => rows(&part),
        How::Product => product(&part, large(&part.inputs[0])),
        How::ReadTable | How::WriteTable if part.output.desc.ne[2..] != [1, 1] => batches(&part),
        How::ReadTable if large(&part.inputs[0]) => table(&part, false),
        How::WriteTable if large(&part.output) => table(&part, true),
        // The rows that are read: as many as there are ids.
        How::ReadTable => named(&part),
        How::WriteTable | How::Whole => None,
    };
    for half in halves.ok_or_else(refuse)? {
        // What was cut and is as large as before will never fit.
        divide(how, half, reach, parts)?;
    }
    Ok(())
}

/// Part `which` of two along a dimension, `unit` elements at a time; `None` where there is nothing to cut.
fn half(piece: &Piece, dim: usize, unit: usize, which: usize) -> Option<Piece> {
    let n = piece.desc.ne[dim];
    let first = (n / 2).next_multiple_of(unit);
    if n < 2 || first >= n {
        return None;
    }
    let (start, len) = if which == 0 { (0, first) } else { (first, n - first) };
    let cut: Checked<(Desc, usize)> = piece.desc.slice(dim, start, len);
    let (desc, offset) = cut.ok()?;
    Some(Piece { desc, offset: piece.offset + offset })
}

/// Both halves, where `make` finds them.
fn both(make: impl Fn(usize) -> Option<Part>) -> Option<Vec<Part>> {
    Some(vec![make(0)?, make(1)?])
}

fn rows(part: &Part) -> Option<Vec<Part>> {
    let dim = (1..4).rev().find(|&d| part.output.desc.ne[d] > 1)?;
    along(part, dim)
}

/// Cuts the result and all inputs of its size along a dimension; inputs of size 1 stay.
fn along(part: &Part, dim: usize) -> Option<Vec<Part>> {
    let n = part.output.desc.ne[dim];
    both(|which| {
        let cut = |p: &Piece| match p.desc.ne[dim] {
            1 => Some(*p),
            m if m == n => half(p, dim, 1, which),
            _ => None,
        };
        Some(Part {
            inputs: part.inputs.iter().map(cut).collect::<Option<_>>()?,
            output: half(&part.output, dim, 1, which)?,
            window: part.window,
        })
    })
}

fn product(part: &Part, weights: bool) -> Option<Vec<Part>> {
    if let Some(dim) = (2..4).rev().find(|&d| part.output.desc.ne[d] > 1) {
        return along(part, dim);
    }
    let (w, x) = (part.inputs.first()?, part.inputs.get(1)?);
    both(|which| {
        let (w, x, output) = if weights {
            // Kernels take rows of weights by the tile.
            (half(w, 1, 64, which)?, *x, half(&part.output, 0, 64, which)?)
        } else {
            (*w, half(x, 1, 1, which)?, half(&part.output, 1, 1, which)?)
        };
        Some(Part { inputs: vec![w, x], output, window: None })
    })
}

/// Cuts tables, rows and ids, whose dimensions are one fewer, through a dimension of batches.
fn batches(part: &Part) -> Option<Vec<Part>> {
    let dim = (2..4).rev().find(|&d| part.output.desc.ne[d] > 1)?;
    let n = part.output.desc.ne[dim];
    let last = part.inputs.len().checked_sub(1)?;
    both(|which| {
        let cut = |(i, p): (usize, &Piece)| match (if i == last { dim - 1 } else { dim }, i == last) {
            // Ids may be repeated over batches.
            (d, true) if p.desc.ne[d] == 1 => Some(*p),
            (d, _) if p.desc.ne[d] == n => half(p, d, 1, which),
            _ => None,
        };
        Some(Part {
            inputs: part.inputs.iter().enumerate().map(cut).collect::<Option<_>>()?,
            output: half(&part.output, dim, 1, which)?,
            window: part.window,
        })
    })
}

fn table(part: &Part, written: bool) -> Option<Vec<Part>> {
    let whole = part.inputs.first()?;
    if whole.desc.ne[2..] != [1, 1] {
        return None;
    }
    let (first, rows) = part.window.unwrap_or((0, whole.desc.ne[1]));
    both(|which| {
        let seen = half(whole, 1, 1, which)?;
        let skipped = if which == 0 { 0 } else { whole.desc.ne[1] - seen.desc.ne[1] };
        let mut inputs = part.inputs.clone();
        inputs[0] = seen;
        let output = if written { half(&part.output, 1, 1, which)? } else { part.output };
        Some(Part { inputs, output, window: Some((first + skipped, rows)) })
    })
}

fn named(part: &Part) -> Option<Vec<Part>> {
    both(|which| {
        let mut inputs = part.inputs.clone();
        inputs[1] = half(inputs.get(1)?, 0, 1, which)?;
        Some(Part { inputs, output: half(&part.output, 1, 1, which)?, window: part.window })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Argmax, Binary, BinaryKind};
    use crate::tensor::DType;

    fn desc(dtype: DType, ne: &[usize]) -> Desc {
        Desc::new(dtype, ne).unwrap()
    }

    #[test]
    fn what_fits_is_one_part() {
        let (w, x) = (desc(DType::Q8_0, &[64, 100]), desc(DType::F32, &[64, 3]));
        let y = MatMul.output(&[w, x]).unwrap();
        let parts = parts(&MatMul, &[w, x], &y, 1 << 20).unwrap();
        assert_eq!(parts.len(), 1);
        assert_eq!((parts[0].output.desc, parts[0].window), (y, None));
    }

    #[test]
    fn products_are_cut_through_weights_and_through_columns() {
        let (w, x) = (desc(DType::F32, &[16, 1000]), desc(DType::F32, &[16, 3]));
        let y = MatMul.output(&[w, x]).unwrap();
        let list = parts(&MatMul, &[w, x], &y, 20_000).unwrap();
        assert!(list.len() >= 4);
        let mut row = 0;
        for part in &list {
            assert!(part.inputs[0].desc.span() <= 20_000);
            assert_eq!(part.inputs[0].offset, row * 64);
            assert_eq!(part.output.offset, row * 4);
            assert_eq!(part.output.desc.ne[0], part.inputs[0].desc.ne[1]);
            row += part.output.desc.ne[0];
        }
        assert_eq!(row, 1000);
        let x = desc(DType::F32, &[16, 3000]);
        let y = MatMul.output(&[w, x]).unwrap();
        let list = parts(&MatMul, &[w, x], &y, 1 << 20).unwrap();
        assert_eq!(list.iter().map(|p| p.output.desc.ne[1]).sum::<usize>(), 3000);
        assert!(list.iter().all(|p| p.output.desc.span() <= 1 << 20 && p.inputs[0].desc == w));
    }

    #[test]
    fn tables_are_seen_through_windows() {
        let (t, ids) = (desc(DType::F32, &[8, 1001]), desc(DType::I32, &[5]));
        let y = GetRows.output(&[t, ids]).unwrap();
        let list = parts(&GetRows, &[t, ids], &y, 9000).unwrap();
        assert_eq!(list.len(), 4);
        let mut next = 0;
        for part in &list {
            let (first, rows) = part.window.unwrap();
            assert_eq!((first, rows, part.inputs[0].offset), (next, 1001, next * 32));
            assert_eq!(part.output.desc, y);
            next += part.inputs[0].desc.ne[1];
        }
        assert_eq!(next, 1001);
        let rows = desc(DType::F32, &[8, 5]);
        let list = parts(&SetRows, &[t, rows, ids], &t, 9000).unwrap();
        assert!(list.iter().all(|p| p.output == p.inputs[0] && p.window.is_some()));
    }

    #[test]
    fn rows_are_cut_where_each_stands_alone() {
        let add = Binary { kind: BinaryKind::Add };
        let (x, bias) = (desc(DType::F32, &[10, 70, 2]), desc(DType::F32, &[10]));
        let list = parts(&add, &[x, bias], &x, 1000).unwrap();
        assert_eq!(list.iter().map(|p| p.output.desc.rows()).sum::<usize>(), 140);
        assert!(list.iter().all(|p| p.inputs[1].desc == bias && p.inputs[0] == p.output));
        assert!(parts(&add, &[x, desc(DType::F32, &[10, 35])], &x, 1000).is_err());
        let reason = parts(&Argmax, &[x], &desc(DType::I32, &[70, 2]), 1000).unwrap_err();
        assert!(reason.contains("1000 bytes"), "{reason}");
        // A row that is too large by itself.
        assert!(parts(&add, &[desc(DType::F32, &[1000])], &desc(DType::F32, &[1000]), 1000).is_err());
    }
}
