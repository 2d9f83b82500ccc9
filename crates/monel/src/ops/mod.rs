//! Operations: one op, one file.
//!
//! An op's shape rule, its cost, what it accepts, its kernel on the software device (the readable specification), the
//! slow f64 reference that judges every device, and its test cases stand together in one file of this folder. To add
//! an op: write its file, name it in the list below and in [`cases`], and give the graph builder a method
//! (`graph/build.rs`). Nothing else has a list of ops.
//!
//! Terms: a *row* is the run of elements along dimension 0; dimension 0 is the fastest. All ops take and give
//! [`Desc`]s with ggml's meaning of dimensions and byte strides.

mod binary;
mod copy;
mod flash_attention;
mod gated_product;
mod glu;
pub(crate) mod mat_vec;
pub(crate) mod matmul;
mod norm;
mod pick;
mod quantize_rows;
mod rope;
mod rope_angles;
mod rows;
mod sample;
mod scale;
mod softmax;
mod unary;

pub use binary::{Binary, BinaryKind};
pub use copy::Copy;
pub use flash_attention::{FlashAttention, Masking};
pub(crate) use flash_attention::{Fresh, fused};
pub use gated_product::GatedProduct;
pub use glu::{Glu, GluKind};
pub use matmul::MatMul;
pub use norm::{LayerNorm, RmsNorm};
pub use pick::{Argmax, TopK};
pub use quantize_rows::QuantizeRows;
pub(crate) use quantize_rows::{q8p_floats, q8p_values, quantize_q8p};
pub(crate) use rope::known_angles;
pub use rope::{Rope, RopeKind, RopeScaling};
pub use rope_angles::RopeAngles;
pub use rows::{GetRows, SetRows};
pub use sample::{Sample, SampleParams};
pub use scale::Scale;
pub use softmax::SoftMax;
pub(crate) use unary::wgsl as unary_wgsl;
pub use unary::{Unary, UnaryKind};

use crate::check::Case;
use crate::error::Result;
use crate::gpu::{Dispatch, GpuCall};
use crate::kernel::{Call, Kernel, RefTensor};
use crate::tensor::Desc;
use std::fmt;

/// What an operation is to the engine.
pub trait Op: std::any::Any + fmt::Debug + Send + Sync {
    /// The name in plans, timelines, errors and `monel check -o`.
    fn name(&self) -> &'static str;

    /// The shape rule: the result's type and (contiguous) shape, or what is wrong with the inputs. An op that writes
    /// into its first input (`SetRows`) returns that input's description and is applied with it as its place.
    fn output(&self, inputs: &[Desc]) -> Result<Desc>;

    /// What the shape rule allows and the software device cannot compute, with the reason. Exact (contract P2): what
    /// passes here computes the right values.
    fn supports(&self, inputs: &[Desc], output: &Desc) -> Result<(), String>;

    /// Work, for chunk borders and ceilings. By default all operands pass through memory once.
    fn cost(&self, inputs: &[Desc], output: &Desc) -> Cost {
        let bytes = inputs.iter().chain([output]).map(|d| d.span() as f64).sum();
        Cost { flops: output.elements() as f64, bytes }
    }

    /// Whether row r of the result needs only row r of each input that has as many rows as the result; inputs with
    /// other row counts (weights, a broadcast row) are complete before the step. Such ops can be chained: one
    /// thread takes a row through all of them. The kernel of a row-local op has one item per row of the result.
    fn row_local(&self, _inputs: &[Desc], _output: &Desc) -> bool {
        false
    }

    /// Bytes of temporary memory the kernels share, planned with the graph's memory.
    fn scratch(&self, _inputs: &[Desc], _output: &Desc) -> usize {
        0
    }

    /// The software device's kernels, run one after the other with a barrier between them. Called after `supports`
    /// accepted; must not read or write tensor data (contract P4).
    fn kernels(&self, call: &Call<'_>) -> Vec<Kernel>;

    /// The op's kernels on a GPU, run one after the other with a barrier between them, or why there are none for these
    /// operands. Also called to ask whether the op is supported, so it is exact (contract P2) and cheap.
    fn shader(&self, _call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
        Err(format!("{} has no GPU kernel", self.name()))
    }

    /// The slow reference in f64. `output` is the result's description; an op that writes into its first input
    /// starts from that input's values.
    fn reference(&self, inputs: &[RefTensor], output: &Desc) -> RefTensor;
}

/// An estimate of work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Arithmetic operations (a multiply-add counts as two).
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.flops += other.flops;
        self.bytes += other.bytes;
    }
}

/// The test cases of every op, for `monel check` and the tests.
pub fn cases() -> Vec<Case> {
    let families: [fn() -> Vec<Case>; 16] = [
        binary::cases,
        copy::cases,
        flash_attention::cases,
        gated_product::cases,
        glu::cases,
        matmul::cases,
        norm::cases,
        pick::cases,
        quantize_rows::cases,
        rope::cases,
        rope_angles::cases,
        rows::cases,
        sample::cases,
        scale::cases,
        softmax::cases,
        unary::cases,
    ];
    families.into_iter().flat_map(|f| f()).collect()
}

/// The rule of ops on F32 rows: every operand is F32 with dense rows.
fn all_f32_rows(inputs: &[Desc], output: &Desc) -> Result<(), String> {
    for d in inputs.iter().chain([output]) {
        if d.dtype != crate::tensor::DType::F32 || !d.has_dense_rows() {
            return Err(format!("operands are F32 with dense rows, found {d}"));
        }
    }
    Ok(())
}
