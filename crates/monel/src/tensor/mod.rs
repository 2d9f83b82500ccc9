//! Tensors: a type, a shape, and a place in a device buffer.
//!
//! A [`Tensor`] owns a share of its [`Buffer`](crate::Buffer), so memory lives as long as anything that names it. Its
//! bytes are reached only through ordered transfers (`Stream::upload`, `Stream::download`), on every device.

mod desc;
mod dtype;

pub use desc::Desc;
pub use dtype::DType;

use crate::buffer::Buffer;
use crate::error::{Error, Result};

/// A tensor in a buffer of a device. Cheap to clone; clones and views share the memory.
#[derive(Clone, Debug)]
pub struct Tensor {
    buffer: Buffer,
    offset: usize,
    desc: Desc,
}

impl Tensor {
    /// Places `desc` at a byte offset of `buffer`. The whole span has to lie inside; offsets are aligned to the
    /// element (block scales are read unaligned, so two bytes do for blocks).
    pub fn new(buffer: &Buffer, offset: usize, desc: Desc) -> Result<Tensor> {
        let end = offset.checked_add(desc.span());
        if end.is_none_or(|end| end > buffer.size()) {
            return Err(Error::OutOfRange {
                what: desc.to_string(),
                offset,
                bytes: desc.span(),
                size: buffer.size(),
            });
        }
        let align = match desc.dtype {
            DType::Q8A => 64,
            DType::Planar(_) | DType::Q8P => 16,
            t if t.is_quantized() => 2,
            t => t.block_bytes(),
        };
        let plain = !desc.dtype.is_quantized();
        if !offset.is_multiple_of(align) || plain && desc.nb.iter().any(|n| !n.is_multiple_of(align)) {
            return Err(Error::shape(
                "tensor",
                format!("{desc} aligned to {align} bytes, found offset {offset}"),
            ));
        }
        Ok(Tensor { buffer: buffer.clone(), offset, desc })
    }

    /// The buffer that holds it.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Bytes from the buffer's start.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Type, dimensions, strides.
    pub fn desc(&self) -> &Desc {
        &self.desc
    }

    /// Address of the first byte in the device's address space.
    pub fn address(&self) -> u64 {
        self.buffer.address() + self.offset as u64
    }

    /// The same bytes under other dimensions (the tensor has to be contiguous).
    pub fn reshape(&self, dims: &[usize]) -> Result<Tensor> {
        Ok(Tensor { desc: self.desc.reshape(dims)?, ..self.clone() })
    }

    /// Dimensions in another order; dimension `i` becomes `axes[i]`.
    pub fn permute(&self, axes: [usize; 4]) -> Result<Tensor> {
        Ok(Tensor { desc: self.desc.permute(axes)?, ..self.clone() })
    }

    /// `len` indices of one dimension, from `start`.
    pub fn slice(&self, dim: usize, start: usize, len: usize) -> Result<Tensor> {
        let (desc, offset) = self.desc.slice(dim, start, len)?;
        Ok(Tensor { desc, offset: self.offset + offset, buffer: self.buffer.clone() })
    }
}
