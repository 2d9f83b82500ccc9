//! What an op gives to a GPU: kernels in WGSL with everything a device needs to dispatch them.
//!
//! [`Op::shader`](crate::ops::Op::shader) returns a list of [`Dispatch`]es. A dispatch is a kernel's text, the memory it
//! touches, how many workgroups run, and a few words of immediates. The text is specialised by what the [`Shader`]
//! builder declares: element types become accessor functions, sizes and strides become immediates, and everything an op
//! defines is put in place of `$NAME`. Devices compile each specialised text once.
//!
//! The interface is fixed, so that a kernel may also come ready-made: storage buffers at group 0, bindings 0, 1, 2 .. in
//! the order of declaration, at most 128 bytes of immediates, entry point `main`. Blocks of memory are bound whole;
//! where a tensor begins is an immediate. `docs/adding.md` tells how to write one.

mod encode;
pub mod fuse;
mod shader;
mod source;

pub use shader::{Shader, WIDE};
pub use source::Source;

use crate::tensor::Desc;
use std::fmt;
use std::sync::Arc;

/// Storage buffers of a dispatch, on any device.
pub const MIN_BINDINGS: usize = 8;

/// Storage buffers of a dispatch where [`Limits::bindings`] says so.
pub const MAX_BINDINGS: usize = 14;

/// Words of immediates of a dispatch.
pub const MAX_IMMEDIATES: usize = 32;

/// What a kernel may count on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Invocations that run in step. Kernels ask the hardware and use this only to choose sizes.
    pub subgroup: u32,
    /// Bytes of memory that a workgroup shares.
    pub shared_memory: u32,
    /// Largest number of workgroups in each dimension.
    pub groups: [u32; 3],
    /// Invocations of a workgroup, at most: 256 or more.
    pub invocations: u32,
    /// Storage buffers of a dispatch: from [`MIN_BINDINGS`] to [`MAX_BINDINGS`].
    pub bindings: u32,
    /// Whether kernels may use `u64` and `i64`.
    pub int64: bool,
    /// Whether kernels may calculate with `f16` ([`Shader::enable`]); reading and writing it needs nothing.
    pub f16: bool,
    /// Whether the hardware has `dot4I8Packed` and `dot4U8Packed`.
    pub dot4: bool,
    /// The largest cooperative matrix of f16 by f16 that adds to f32, if there is any.
    pub matrix: Option<Matrix>,
    /// The size of subgroups, all of them full, that a kernel can demand ([`Shader::full_subgroups`]).
    pub subgroup_fixed: Option<u32>,
    /// Whether the device is the CPU in disguise: few wide cores, so that less parallelism is better.
    pub software: bool,
}

impl Limits {
    /// The largest workgroup whose size is a power of two, up to the 1024 invocations that kernels make use of.
    pub fn largest_group(&self) -> usize {
        1 << self.invocations.clamp(1, 1024).ilog2()
    }

    /// Whether kernels can multiply 16x16 matrices of f16, by full subgroups of a known size from 8 to 64.
    pub fn has_matrices(&self) -> bool {
        self.f16
            && self.matrix.is_some_and(|m| (m.m, m.n, m.k) == (16, 16, 16))
            && self.subgroup_fixed.is_some_and(|s| s.is_power_of_two() && (8..=64).contains(&s))
    }
}

#[cfg(all(test, feature = "vulkan"))]
impl Limits {
    /// What an H200 reports: no device of the tests has matrices, so kernels with them are at least compiled.
    pub(crate) const LARGE: Limits = Limits {
        subgroup: 32,
        shared_memory: 48 << 10,
        groups: [65_535; 3],
        invocations: 1024,
        bindings: MAX_BINDINGS as u32,
        int64: true,
        f16: true,
        dot4: true,
        matrix: Some(Matrix { m: 16, n: 16, k: 16 }),
        subgroup_fixed: Some(32),
        software: false,
    };

    /// The same with the smallest workgroups that a device may have.
    pub(crate) const NARROW: Limits = Limits { invocations: 256, ..Limits::LARGE };
}

/// A cooperative matrix: a subgroup multiplies `m` x `k` by `k` x `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Rows of the result.
    pub m: u32,
    /// Columns of the result.
    pub n: u32,
    /// Length of the products.
    pub k: u32,
}

/// An operand of a call.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// Type, dimensions, strides.
    pub desc: Desc,
    /// Bytes from the beginning of its memory block.
    pub offset: u64,
    /// Which operand it is.
    pub memory: Memory,
}

impl Operand {
    /// Whether every row begins at a multiple of sixteen bytes, so that it can be read in vectors.
    pub fn in_vectors(&self) -> bool {
        self.offset.is_multiple_of(16) && self.desc.nb[1..].iter().all(|b| b.is_multiple_of(16))
    }
}

/// Whose memory a binding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// An input, by its number.
    Input(usize),
    /// The result.
    Output,
    /// The bytes that `Op::scratch` asked for.
    Scratch,
    /// The dispatch's own table of constants.
    Table,
    /// Where kernels report what is wrong with their inputs.
    Faults,
    /// Words of the dispatch's own that are zero before it and after it.
    Counters,
}

/// Everything an op needs to choose its kernels. Also made to ask whether an op is supported; offsets are 0 then.
pub struct GpuCall<'a> {
    /// The operands.
    pub inputs: &'a [Operand],
    /// The result.
    pub output: Operand,
    /// Memory of the size `Op::scratch` asked for, as I32 elements.
    pub scratch: Operand,
    /// What kernels may count on.
    pub limits: Limits,
    /// Of `get_rows` and `set_rows` when their table is larger than a kernel can bind: which row of the whole is the
    /// first of the operand's, and how many rows the whole has. Rows outside are for other dispatches.
    pub window: Option<(usize, usize)>,
}

/// A kernel to run.
#[derive(Clone)]
pub struct Dispatch {
    /// What runs.
    pub source: Source,
    /// How many workgroups.
    pub groups: [u32; 3],
    /// Whose memory lies at bindings 0, 1, 2 ..
    pub bindings: Vec<Memory>,
    /// Immediates in the order of declaration. Of a dispatch that can fail the last two are the device's.
    pub immediates: Vec<u32>,
    /// Constants behind [`Memory::Table`].
    pub table: Vec<u32>,
    /// Which immediate is the index of the table's first word; set by the device.
    pub table_at: Option<usize>,
    /// Words behind [`Memory::Counters`].
    pub counters: usize,
    /// Which immediate is the index of the first of them; set by the device.
    pub counters_at: Option<usize>,
    /// What a fault's value means; `None` for kernels that cannot fail.
    pub fault: Option<FaultText>,
    /// Whether it needs nothing of the dispatch before it in its step, so that both may run at once.
    pub beside: bool,
}

/// Turns the value that a kernel reported into words.
pub type FaultText = Arc<dyn Fn(u32) -> String + Send + Sync>;

impl fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {:?} {:?}", self.source.name(), self.groups, self.bindings, self.immediates)
    }
}

impl GpuCall<'_> {
    /// All operands, the result last.
    pub fn all(&self) -> impl Iterator<Item = &Operand> {
        self.inputs.iter().chain([&self.output])
    }
}
