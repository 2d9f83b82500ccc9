//! Memory of a tensor under test, with guard bytes on both sides.
//!
//! Everything that is not the tensor's (the guards, the gaps of a view, the memory round a slice) has to be what it was
//! before. The first byte is aligned as the type asks and no better, so a kernel that assumes more fails.

use crate::error::Result;
use crate::kernel::RefTensor;
use crate::tensor::{DType, Desc};

const GUARD: usize = 64;

/// A tensor's bytes between guards.
pub(super) struct Memory {
    bytes: Vec<u8>,
    /// Where addresses are a multiple of 64.
    lead: usize,
    start: usize,
    /// The tensor as the op sees it.
    pub desc: Desc,
}

impl Memory {
    /// `content` (before the view) with `desc` at a byte offset of it; with `vectors` at a multiple of 64 bytes.
    pub(super) fn new(content: &[u8], desc: Desc, offset: usize, vectors: bool) -> Memory {
        let align = match desc.dtype {
            _ if vectors => 64,
            DType::Packed(_) | DType::Q8A => 64,
            DType::Planar(_) | DType::Q8P => 16,
            t if t.is_quantized() => 2,
            t => t.block_bytes(),
        };
        Memory::aligned(content, desc, offset, align)
    }

    fn aligned(content: &[u8], desc: Desc, offset: usize, align: usize) -> Memory {
        let pattern = (0..content.len() + 2 * GUARD + 128).map(|i| (i as u8).wrapping_mul(37) ^ 0xa5);
        let mut bytes: Vec<u8> = pattern.collect();
        let lead = bytes.as_ptr().align_offset(64);
        // a multiple of 64, plus the alignment of one element
        let first = lead + GUARD + align % 64;
        bytes[first..first + content.len()].copy_from_slice(content);
        Memory { bytes, lead, start: first + offset, desc }
    }

    /// A tensor without content: the pattern of the guards runs through it.
    pub(super) fn blank(base: Desc, desc: Desc, offset: usize, vectors: bool) -> Memory {
        Memory::new(&garbage(base.span()), desc, offset, vectors)
    }

    /// Scratch memory: garbage, aligned to a cache line.
    pub(super) fn scratch(desc: Desc) -> Memory {
        Memory::aligned(&garbage(desc.span()), desc, 0, 64)
    }

    /// The first byte of the tensor.
    pub(super) fn ptr(&mut self) -> *mut u8 {
        // SAFETY: `start` lies inside the allocation, which has guards on both sides.
        unsafe { self.bytes.as_mut_ptr().add(self.start) }
    }

    /// The bytes for a buffer of a device, whose start is aligned, and the tensor's offset there.
    pub(super) fn image(&self) -> (&[u8], usize) {
        (&self.bytes[self.lead..], self.start - self.lead)
    }

    /// Takes the bytes of such a buffer.
    pub(super) fn take_image(&mut self, image: &[u8]) {
        self.bytes[self.lead..].copy_from_slice(image);
    }

    /// Everything, guards included.
    pub(super) fn all(&self) -> Vec<u8> {
        self.bytes.clone()
    }

    /// Puts back what [`Memory::all`] gave.
    pub(super) fn restore(&mut self, all: &[u8]) {
        self.bytes.copy_from_slice(all);
    }

    /// The values.
    pub(super) fn decode(&self) -> RefTensor {
        RefTensor::decode(&self.desc, &self.bytes[self.start..])
    }

    /// Overwrites the rows other than `keep` with bytes that are NaN as floats.
    pub(super) fn poison_rows_but(&mut self, keep: usize) {
        for r in (0..self.desc.rows()).filter(|&r| r != keep) {
            let row = Desc { ne: [self.desc.ne[0], 1, 1, 1], ..self.desc };
            let at = self.start + self.desc.row_offset(r);
            each_run(&row, |from, len| self.bytes[at + from..at + from + len].fill(0xff));
        }
    }

    /// The bytes of row `r`, for comparing two runs.
    pub(super) fn row_bytes(&self, r: usize) -> Vec<u8> {
        let row = Desc { ne: [self.desc.ne[0], 1, 1, 1], ..self.desc };
        let at = self.start + self.desc.row_offset(r);
        let mut out = Vec::new();
        each_run(&row, |from, len| out.extend(&self.bytes[at + from..at + from + len]));
        out
    }

    /// Where the memory differs from `before` outside the tensor's own bytes: the distance from its first byte.
    pub(super) fn touched_outside(&self, before: &[u8]) -> Result<(), isize> {
        let mut own = vec![false; self.bytes.len()];
        each_run(&self.desc, |from, len| own[self.start + from..self.start + from + len].fill(true));
        self.first_change(before, |i| !own[i])
    }

    /// Where the memory differs from `before` at all.
    pub(super) fn touched(&self, before: &[u8]) -> Result<(), isize> {
        self.first_change(before, |_| true)
    }

    fn first_change(&self, before: &[u8], counts: impl Fn(usize) -> bool) -> Result<(), isize> {
        match self.bytes.iter().zip(before).enumerate().position(|(i, (a, b))| a != b && counts(i)) {
            Some(i) => Err(i as isize - self.start as isize),
            None => Ok(()),
        }
    }
}

fn garbage(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(91) ^ 0x5a).collect()
}

/// Calls `f(first byte, bytes)` for every run of bytes that belongs to the tensor.
fn each_run(desc: &Desc, mut f: impl FnMut(usize, usize)) {
    if desc.is_empty() {
        return;
    }
    if desc.is_contiguous() || matches!(desc.dtype, DType::Packed(_)) {
        return f(0, desc.span());
    }
    for r in 0..desc.rows() {
        let at = desc.row_offset(r);
        if desc.has_dense_rows() || desc.dtype.is_quantized() {
            f(at, desc.dtype.row_bytes(desc.ne[0]));
        } else {
            (0..desc.ne[0]).for_each(|i| f(at + i * desc.nb[0], desc.dtype.block_bytes()));
        }
    }
}
