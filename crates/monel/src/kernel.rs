//! What an op's kernel on the software device sees: operands with addresses, a worker's scratch memory, and rows.
//!
//! A [`Kernel`] is a number of independent items and a function that does a range of them; the device's threads take
//! ranges until none is left. Kernels are built while a graph is recorded and run as often as it is submitted, so they
//! hold addresses, not data. The three promises that make that sound are made once, where operands are constructed:
//! the memory outlives the recording, nobody writes an input while the step runs, and outputs do not overlap inputs.
//! What is left to the op is that two items never write the same bytes.

use crate::device::software::simd::Isa;
use crate::error::Result;
use crate::quant;
use crate::tensor::{DType, Desc};
use std::ops::Range;

/// A number of independent pieces of work.
pub struct Kernel {
    /// Items (for a row-local op: rows of the result).
    pub items: usize,
    /// Items worth handing to a thread at once: about 10-50 µs of work.
    pub grain: usize,
    /// Does a range of items.
    #[allow(clippy::type_complexity)]
    pub run: Box<dyn Fn(Range<usize>, &mut Worker) -> Result<()> + Send + Sync>,
}

impl Kernel {
    /// A kernel over `items`, handed out `grain` at a time.
    pub fn new(
        items: usize,
        grain: usize,
        run: impl Fn(Range<usize>, &mut Worker) -> Result<()> + Send + Sync + 'static,
    ) -> Kernel {
        Kernel { items, grain: grain.max(1), run: Box::new(run) }
    }

    /// A kernel over rows of `bytes_per_row` that pass through memory: the grain is about 64 KiB.
    pub fn rows(
        rows: usize,
        bytes_per_row: usize,
        run: impl Fn(usize, &mut Worker) -> Result<()> + Send + Sync + 'static,
    ) -> Kernel {
        let grain = (64 * 1024 / bytes_per_row.max(1)).clamp(1, 256).min(rows.div_ceil(PIECES).max(1));
        Kernel::new(rows, grain, move |range, worker| range.into_iter().try_for_each(|r| run(r, worker)))
    }
}

/// Pieces that few rows make at least, so that a few threads end together.
const PIECES: usize = 8;

/// A thread's private things.
pub struct Worker {
    /// The instruction set to use.
    pub isa: Isa,
    floats: Vec<f32>,
    bytes: Vec<u8>,
}

impl Worker {
    /// A worker for an instruction set.
    pub fn new(isa: Isa) -> Worker {
        Worker { isa, floats: Vec::new(), bytes: Vec::new() }
    }

    /// `len` floats of scratch memory with arbitrary content.
    pub fn floats(&mut self, len: usize) -> &mut [f32] {
        if self.floats.len() < len {
            self.floats.resize(len, 0.0);
        }
        &mut self.floats[..len]
    }

    /// The same, from a cache line's start on: wide accesses do not cross one.
    pub fn aligned_floats(&mut self, len: usize) -> &mut [f32] {
        const SLACK: usize = 16;
        let floats = self.floats(len + SLACK);
        let skip = floats.as_ptr().align_offset(64).min(SLACK);
        &mut floats[skip..skip + len]
    }

    /// `len` bytes of scratch memory with arbitrary content.
    pub fn bytes(&mut self, len: usize) -> &mut [u8] {
        if self.bytes.len() < len {
            self.bytes.resize(len, 0);
        }
        &mut self.bytes[..len]
    }
}

/// Everything an op needs to build its kernels.
pub struct Call<'a> {
    /// The operands.
    pub inputs: &'a [Input],
    /// The result.
    pub output: Output,
    /// Memory of the size `Op::scratch` asked for, as one row of bytes (I32 elements); empty if it asked for none.
    pub scratch: Output,
    /// The instruction set the device uses.
    pub isa: Isa,
    /// Threads that will share the work.
    pub threads: usize,
}

/// A number type that can be read from tensor memory: every bit pattern is a value.
///
/// # Safety
/// Implementors have no padding, no invalid bit patterns and no destructor.
pub unsafe trait Element: std::marker::Copy + Send + Sync + 'static {}
// SAFETY: plain numbers.
unsafe impl Element for f32 {}
// SAFETY: plain numbers.
unsafe impl Element for u16 {}
// SAFETY: plain numbers.
unsafe impl Element for i32 {}
// SAFETY: plain numbers.
unsafe impl Element for i64 {}
// SAFETY: plain numbers.
unsafe impl Element for u8 {}

/// An operand that is read.
#[derive(Clone, std::marker::Copy, Debug)]
pub struct Input {
    ptr: *const u8,
    /// Type, dimensions, strides.
    pub desc: Desc,
}

/// An operand that is written.
#[derive(Clone, std::marker::Copy, Debug)]
pub struct Output {
    ptr: *mut u8,
    /// Type, dimensions, strides.
    pub desc: Desc,
}

// SAFETY: operands are addresses; whoever constructs one vouches for the memory behind it on all threads.
unsafe impl Send for Input {}
// SAFETY: as above.
unsafe impl Sync for Input {}
// SAFETY: as above.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

impl Input {
    /// # Safety
    /// The span of `desc` behind `ptr` stays allocated, initialised and aligned while a kernel may use it, and is not
    /// written while the step runs, except row by row by the same thread (chained row-local ops).
    pub unsafe fn new(ptr: *const u8, desc: Desc) -> Input {
        Input { ptr, desc }
    }

    /// The first byte.
    pub fn ptr(&self) -> *const u8 {
        self.ptr
    }

    /// Row `r` (counted through dimensions 1, 2, 3) as a slice; rows have to be dense. For blocks, `T` is `u8`.
    #[inline]
    pub fn row<T: Element>(&self, r: usize) -> &[T] {
        assert!(r < self.desc.rows() && self.desc.has_dense_rows(), "row {r} of {}", self.desc);
        self.row_at(self.desc.row_offset(r))
    }

    /// The row with the given indices in dimensions 1, 2, 3.
    #[inline]
    pub fn row3<T: Element>(&self, i1: usize, i2: usize, i3: usize) -> &[T] {
        let [_, n1, n2, n3] = self.desc.ne;
        assert!(
            i1 < n1 && i2 < n2 && i3 < n3 && self.desc.has_dense_rows(),
            "row {i1},{i2},{i3} of {}",
            self.desc
        );
        let [_, b1, b2, b3] = self.desc.nb;
        self.row_at(i1 * b1 + i2 * b2 + i3 * b3)
    }

    /// The bytes from the first to past the last of some rows of dimension 1, at the indices of dimensions 2 and 3.
    pub fn bytes_of(&self, rows: &Range<usize>, [i2, i3]: [usize; 2]) -> &[u8] {
        if rows.is_empty() {
            return &[];
        }
        let [_, n1, n2, n3] = self.desc.ne;
        assert!(rows.end <= n1 && i2 < n2 && i3 < n3, "rows {rows:?} of {}", self.desc);
        let [_, b1, b2, b3] = self.desc.nb;
        let len = (rows.len() - 1) * b1 + self.desc.dtype.row_bytes(self.desc.ne[0]);
        // SAFETY: the rows lie in the span that `new` was promised.
        unsafe { std::slice::from_raw_parts(self.ptr.add(rows.start * b1 + i2 * b2 + i3 * b3), len) }
    }

    #[inline]
    fn row_at<T: Element>(&self, offset: usize) -> &[T] {
        let len = self.desc.dtype.row_bytes(self.desc.ne[0]) / size_of::<T>();
        // SAFETY: the row lies in the span that `new` was promised; element types accept every bit pattern.
        unsafe { std::slice::from_raw_parts(self.ptr.add(offset).cast(), len) }
    }

    /// One element by its indices, for strided access. `T` has the element's size.
    #[inline]
    pub fn at<T: Element>(&self, i: [usize; 4]) -> T {
        assert!((0..4).all(|d| i[d] < self.desc.ne[d]) && size_of::<T>() == self.desc.dtype.block_bytes());
        let offset: usize = (0..4).map(|d| i[d] * self.desc.nb[d]).sum();
        // SAFETY: the element lies in the span that `new` was promised.
        unsafe { self.ptr.add(offset).cast::<T>().read_unaligned() }
    }
}

impl Output {
    /// # Safety
    /// The span of `desc` behind `ptr` stays allocated and aligned while a kernel may use it, and nothing else
    /// touches it while the step runs, except row by row by the same thread (chained row-local ops).
    pub unsafe fn new(ptr: *mut u8, desc: Desc) -> Output {
        Output { ptr, desc }
    }

    /// The first byte.
    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Row `r` (counted through dimensions 1, 2, 3) as a slice; rows have to be dense. For blocks, `T` is `u8`.
    ///
    /// # Safety
    /// No other reference to that row is in use: the row belongs to the item being run.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn row_mut<T: Element>(&self, r: usize) -> &mut [T] {
        assert!(r < self.desc.rows() && self.desc.has_dense_rows(), "row {r} of {}", self.desc);
        let len = self.desc.dtype.row_bytes(self.desc.ne[0]) / size_of::<T>();
        // SAFETY: the row lies in the span that `new` was promised, and the caller promises that it is alone there.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(self.desc.row_offset(r)).cast(), len) }
    }

    /// The row with the given indices in dimensions 1, 2, 3.
    ///
    /// # Safety
    /// As [`Output::row_mut`].
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn row3_mut<T: Element>(&self, [i1, i2, i3]: [usize; 3]) -> &mut [T] {
        let [_, n1, n2, n3] = self.desc.ne;
        assert!(
            i1 < n1 && i2 < n2 && i3 < n3 && self.desc.has_dense_rows(),
            "row {i1},{i2},{i3} of {}",
            self.desc
        );
        let [_, b1, b2, b3] = self.desc.nb;
        let len = self.desc.dtype.row_bytes(self.desc.ne[0]) / size_of::<T>();
        // SAFETY: the row lies in the span that `new` was promised, and the caller promises that it is alone there.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(i1 * b1 + i2 * b2 + i3 * b3).cast(), len) }
    }

    /// Writes one element by its indices.
    ///
    /// # Safety
    /// The element belongs to the item being run.
    #[inline]
    pub unsafe fn set<T: Element>(&self, i: [usize; 4], value: T) {
        assert!((0..4).all(|d| i[d] < self.desc.ne[d]) && size_of::<T>() == self.desc.dtype.block_bytes());
        let offset: usize = (0..4).map(|d| i[d] * self.desc.nb[d]).sum();
        // SAFETY: the element lies in the span that `new` was promised, and the caller promises that it is alone there.
        unsafe { self.ptr.add(offset).cast::<T>().write_unaligned(value) }
    }
}

/// A tensor of the slow reference: dense f64 values in the order of dimensions 0, 1, 2, 3.
#[derive(Clone, Debug, PartialEq)]
pub struct RefTensor {
    /// Elements in each dimension.
    pub ne: [usize; 4],
    /// The values.
    pub data: Vec<f64>,
}

impl RefTensor {
    /// Zeros.
    pub fn zeros(ne: [usize; 4]) -> RefTensor {
        RefTensor { ne, data: vec![0.0; ne.iter().product()] }
    }

    /// Position of an element.
    pub fn index(&self, i: [usize; 4]) -> usize {
        i[0] + self.ne[0] * (i[1] + self.ne[1] * (i[2] + self.ne[2] * i[3]))
    }

    /// The element at the indices.
    pub fn at(&self, i: [usize; 4]) -> f64 {
        self.data[self.index(i)]
    }

    /// Row `r`, counted through dimensions 1, 2, 3.
    pub fn row(&self, r: usize) -> &[f64] {
        &self.data[r * self.ne[0]..(r + 1) * self.ne[0]]
    }

    /// Row `r` for writing.
    pub fn row_mut(&mut self, r: usize) -> &mut [f64] {
        &mut self.data[r * self.ne[0]..(r + 1) * self.ne[0]]
    }

    /// Rows in all.
    pub fn rows(&self) -> usize {
        self.ne[1] * self.ne[2] * self.ne[3]
    }

    /// Decodes the bytes of a tensor, whatever its type and strides. `bytes` starts at the tensor's first byte.
    pub fn decode(desc: &Desc, bytes: &[u8]) -> RefTensor {
        let mut out = RefTensor::zeros(desc.ne);
        if desc.is_empty() {
            return out;
        }
        for r in 0..desc.rows() {
            let at = desc.row_offset(r);
            let row = out.row_mut(r);
            match desc.dtype {
                DType::I32 | DType::I64 | DType::F32 | DType::F16 | DType::BF16 => {
                    for (i, x) in row.iter_mut().enumerate() {
                        *x = number(desc.dtype, &bytes[at + i * desc.nb[0]..]);
                    }
                }
                DType::Packed(b) => {
                    // Test memory of the right size cannot fail; zeros would be noticed.
                    let _ = crate::device::software::simd::unpack_row_f64(b, desc.ne[0], bytes, r, row);
                }
                DType::Q8A => {
                    let _ = crate::device::software::simd::dequantize_act_row(&bytes[at..], row);
                }
                DType::Planar(b) => {
                    let bytes = &bytes[at..at + desc.dtype.row_bytes(desc.ne[0])];
                    let _ = quant::planar::dequantize_row_f64(b, bytes, row);
                }
                DType::Q8P => crate::ops::q8p_values(&bytes[at..], row),
                t => {
                    if let Some(block) = t.block() {
                        let _ =
                            quant::dequantize_row_f64(block, &bytes[at..at + t.row_bytes(desc.ne[0])], row);
                    }
                }
            }
        }
        out
    }
}

fn number(dtype: DType, b: &[u8]) -> f64 {
    match dtype {
        DType::F32 => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        DType::F16 => half::f16::from_le_bytes([b[0], b[1]]).to_f64(),
        DType::BF16 => half::bf16::from_le_bytes([b[0], b[1]]).to_f64(),
        DType::I32 => f64::from(i32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        _ => i64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]) as f64,
    }
}
