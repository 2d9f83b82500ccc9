//! Shapes and strides: what a tensor looks like, without where it lies.
//!
//! Like ggml's: up to four dimensions, `ne[0]` is the row's length and the fastest; strides are in bytes and `nb[0]`
//! is the size of one block. Every construction checks that sizes neither overflow nor break a block.

use super::DType;
use crate::error::{Error, Result};
use std::fmt;

/// Type, dimensions and byte strides of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Desc {
    /// Element type.
    pub dtype: DType,
    /// Elements in each dimension; unused ones are 1.
    pub ne: [usize; 4],
    /// Bytes from one element (dimension 0: one block) to the next.
    pub nb: [usize; 4],
}

impl Desc {
    /// A contiguous tensor of up to four dimensions. Rows have to be whole blocks, sizes must not overflow.
    pub fn new(dtype: DType, dims: &[usize]) -> Result<Desc> {
        if dims.len() > 4 {
            return Err(Error::shape("tensor", format!("at most 4 dimensions, found {dims:?}")));
        }
        let mut ne = [1; 4];
        ne[..dims.len()].copy_from_slice(dims);
        if !ne[0].is_multiple_of(dtype.block_len()) {
            return Err(Error::shape(
                "tensor",
                format!("rows of {dtype} are a multiple of {} elements, found {}", dtype.block_len(), ne[0]),
            ));
        }
        if matches!(dtype, DType::Packed(_)) && (ne[2] != 1 || ne[3] != 1) {
            return Err(Error::shape("tensor", format!("a packed matrix has two dimensions, found {ne:?}")));
        }
        let overflow = || Error::shape("tensor", format!("{dtype} {ne:?} is larger than the address space"));
        let row = (ne[0] / dtype.block_len()).checked_mul(dtype.block_bytes().max(1)).ok_or_else(overflow)?;
        ne[1..]
            .iter()
            .try_fold(row, |n, &d| n.checked_mul(d.max(1)))
            .filter(|&n| n < isize::MAX as usize / 2)
            .ok_or_else(overflow)?;
        let row = dtype.row_bytes(ne[0]);
        let nb = [dtype.block_bytes(), row, row * ne[1], row * ne[1] * ne[2]];
        Ok(Desc { dtype, ne, nb })
    }

    /// Elements in all dimensions.
    pub fn elements(&self) -> usize {
        self.ne.iter().product()
    }

    /// Rows: elements in dimensions 1 to 3.
    pub fn rows(&self) -> usize {
        self.ne[1] * self.ne[2] * self.ne[3]
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.ne.contains(&0)
    }

    /// Bytes from the first to past the last byte touched.
    pub fn span(&self) -> usize {
        if self.is_empty() {
            return 0;
        }
        if let DType::Packed(_) = self.dtype {
            return self.nb[1] * self.ne[1].next_multiple_of(16);
        }
        let first = if self.dtype.is_quantized() {
            self.dtype.row_bytes(self.ne[0])
        } else {
            (self.ne[0] - 1) * self.nb[0] + self.dtype.block_bytes()
        };
        first + (1..4).map(|d| (self.ne[d] - 1) * self.nb[d]).sum::<usize>()
    }

    /// Whether rows are dense: the elements of a row follow each other.
    pub fn has_dense_rows(&self) -> bool {
        self.nb[0] == self.dtype.block_bytes()
    }

    /// Whether elements follow each other through all dimensions, without gaps.
    pub fn is_contiguous(&self) -> bool {
        let mut next = self.dtype.row_bytes(self.ne[0]);
        self.has_dense_rows()
            && (1..4).all(|d| {
                let fits = self.ne[d] == 1 || self.nb[d] == next;
                next *= self.ne[d];
                fits
            })
    }

    /// Whether both have the same dimensions.
    pub fn same_shape(&self, other: &Desc) -> bool {
        self.ne == other.ne
    }

    /// Whether `self` can be repeated to `to`: each dimension divides it.
    pub fn repeats_to(&self, to: &Desc) -> bool {
        to.is_empty() || (0..4).all(|d| self.ne[d] != 0 && to.ne[d].is_multiple_of(self.ne[d]))
    }

    /// Byte offset of the row `r`, counted through dimensions 1, 2, 3.
    #[inline]
    pub fn row_offset(&self, r: usize) -> usize {
        let (i1, r) = (r % self.ne[1], r / self.ne[1]);
        let (i2, i3) = (r % self.ne[2], r / self.ne[2]);
        i1 * self.nb[1] + i2 * self.nb[2] + i3 * self.nb[3]
    }

    /// The same elements in other dimensions. The tensor has to be contiguous.
    pub fn reshape(&self, dims: &[usize]) -> Result<Desc> {
        let to = Desc::new(self.dtype, dims)?;
        let whole = self.dtype.has_whole_rows();
        if !self.is_contiguous()
            || whole && to.ne[0] != self.ne[0]
            || matches!(self.dtype, DType::Packed(_)) && to.ne != self.ne
        {
            return Err(Error::shape("reshape", format!("a contiguous tensor, found {self}")));
        }
        if to.elements() != self.elements() {
            return Err(Error::shape("reshape", format!("{} elements, found {:?}", self.elements(), dims)));
        }
        Ok(to)
    }

    /// Dimensions in another order: `axes[i]` is where dimension `i` goes.
    pub fn permute(&self, axes: [usize; 4]) -> Result<Desc> {
        let mut seen = [false; 4];
        for a in axes {
            if a >= 4 || std::mem::replace(&mut seen[a], true) {
                return Err(Error::shape("permute", format!("an order of 0, 1, 2, 3, found {axes:?}")));
            }
        }
        if self.dtype.is_quantized() && axes[0] != 0 {
            return Err(Error::shape(
                "permute",
                format!("dimension 0 of {} stays, found {axes:?}", self.dtype),
            ));
        }
        let mut to = *self;
        for (i, &a) in axes.iter().enumerate() {
            to.ne[a] = self.ne[i];
            to.nb[a] = self.nb[i];
        }
        Ok(to)
    }

    /// A part of one dimension, and the byte offset of its first element.
    pub fn slice(&self, dim: usize, start: usize, len: usize) -> Result<(Desc, usize)> {
        let bad = |why: String| Error::shape("slice", why);
        if dim >= 4 || start.checked_add(len).is_none_or(|end| end > self.ne[dim]) {
            return Err(bad(format!("a range inside dimension {dim} of {self}, found {start} + {len}")));
        }
        let block = match (dim, self.dtype) {
            (0, t) => t.block_len(),
            (1, DType::Packed(_)) => 16,
            _ => 1,
        };
        if !start.is_multiple_of(block) || dim == 0 && !len.is_multiple_of(block) {
            return Err(bad(format!("whole blocks of {block}, found {start} + {len}")));
        }
        if dim == 0 && self.dtype.has_whole_rows() && len != self.ne[0] {
            return Err(bad(format!("rows of {} cannot be cut", self.dtype)));
        }
        let mut to = *self;
        to.ne[dim] = len;
        Ok((to, start / if dim == 0 { block } else { 1 } * self.nb[dim]))
    }
}

impl fmt::Display for Desc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims = 4 - self.ne.iter().rev().take_while(|&&n| n == 1).count().min(3);
        write!(f, "{}[", self.dtype)?;
        for d in 0..dims {
            write!(f, "{}{}", if d == 0 { "" } else { "," }, self.ne[d])?;
        }
        write!(f, "]{}", if self.is_contiguous() { "" } else { "*" })
    }
}

impl fmt::Debug for Desc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_strides_and_span() {
        let d = Desc::new(DType::Q4_0, &[64, 3, 2]).unwrap();
        assert_eq!(d.nb, [18, 36, 108, 216]);
        assert_eq!(d.span(), 216);
        assert!(d.is_contiguous());
        assert!(Desc::new(DType::Q4_0, &[33]).is_err());
        assert!(Desc::new(DType::F32, &[usize::MAX, 2]).is_err());
    }

    #[test]
    fn views() {
        let d = Desc::new(DType::F32, &[4, 3, 2]).unwrap();
        let p = d.permute([1, 0, 2, 3]).unwrap();
        assert_eq!(p.ne, [3, 4, 2, 1]);
        assert!(!p.is_contiguous());
        assert_eq!(p.span(), d.span());
        let (s, off) = d.slice(1, 1, 2).unwrap();
        assert_eq!((s.ne[1], off), (2, 16));
        assert!(d.slice(1, 2, 2).is_err());
        assert!(d.permute([0, 0, 1, 2]).is_err());
        assert_eq!(Desc::new(DType::F32, &[0, 3]).unwrap().span(), 0);
    }
}
