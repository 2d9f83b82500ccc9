//! A test case: an op, the shapes and fillings of its inputs, and how far a device may be off.
//!
//! Cases stand at the end of each op's file as a few lines of a table. The tolerance stands beside the case because
//! its reason is the op's: how many terms are summed, whether activations are quantized.

use crate::ops::Op;
use crate::tensor::DType;
use std::sync::Arc;

/// One case of `monel check`.
#[derive(Clone, Debug)]
pub struct Case {
    /// The op with its parameters.
    pub op: Arc<dyn Op>,
    /// The type that the table shows: the one the case is about.
    pub dtype: DType,
    /// The inputs.
    pub inputs: Vec<Operand>,
    /// How far the result may be from the reference.
    pub tolerance: Tolerance,
    /// Whether the result is written into the first input.
    pub in_place: bool,
    /// Where the result is written, for a strided place (its filling is not used); `None` for memory of its own.
    pub place: Option<Operand>,
}

impl Case {
    /// A case with a result of its own.
    pub fn new(op: impl Op, dtype: DType, inputs: Vec<Operand>, tolerance: Tolerance) -> Case {
        Case { op: Arc::new(op), dtype, inputs, tolerance, in_place: false, place: None }
    }

    /// A case whose op writes into its first input.
    pub fn in_place(op: impl Op, dtype: DType, inputs: Vec<Operand>, tolerance: Tolerance) -> Case {
        Case { in_place: true, ..Case::new(op, dtype, inputs, tolerance) }
    }

    /// The same with the result written into a view of other memory.
    pub fn into(self, place: Operand) -> Case {
        Case { place: Some(place), ..self }
    }

    /// Values in the memory of all inputs together.
    pub fn values(&self) -> usize {
        self.inputs.iter().map(|operand| operand.ne.iter().product::<usize>()).sum()
    }
}

/// An input of a case.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Element type.
    pub dtype: DType,
    /// Dimensions of the memory before the view.
    pub ne: Vec<usize>,
    /// How the memory is looked at.
    pub view: View,
    /// What it is filled with.
    pub fill: Fill,
    /// Whether the memory begins at a multiple of 64 bytes, and not where no more than the type's own alignment holds.
    pub aligned: bool,
}

/// How an operand looks at its memory.
#[derive(Clone, Debug)]
pub enum View {
    /// As it lies.
    Whole,
    /// Dimensions exchanged: dimension `i` becomes `axes[i]`.
    Permuted([usize; 4]),
    /// A part of one dimension.
    Slice {
        /// Which.
        dim: usize,
        /// From where.
        start: usize,
        /// How many.
        len: usize,
    },
}

/// What an operand is filled with; everything is drawn from a fixed seed.
#[derive(Clone, Debug)]
pub enum Fill {
    /// Normal numbers, mean 0, the given deviation.
    Normal(f32),
    /// Evenly from a range.
    Uniform(f32, f32),
    /// Whole numbers from a range, the end excluded.
    Ints(i64, i64),
    /// Whole numbers 0, 1, 2 .. in a shuffled order (different row indices).
    Shuffled,
    /// Exactly these.
    Values(Vec<f64>),
}

/// How far a result may be from the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// Equal to the last bit of the result's type (after rounding the reference to it).
    Exact,
    /// Sum of squared differences over the reference's sum of squares.
    Nmse(f64),
    /// The largest difference, in units of the reference's largest magnitude in the tensor.
    Relative(f64),
}

impl std::fmt::Display for Tolerance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Tolerance::Exact => f.write_str("exact"),
            Tolerance::Nmse(limit) => write!(f, "nmse {limit:e}"),
            Tolerance::Relative(limit) => write!(f, "relative {limit:e}"),
        }
    }
}

impl Operand {
    /// A whole tensor of normal numbers.
    pub fn normal(dtype: DType, ne: &[usize]) -> Operand {
        Operand { dtype, ne: ne.to_vec(), view: View::Whole, fill: Fill::Normal(1.0), aligned: false }
    }

    /// An I32 tensor with exactly these numbers.
    pub fn ints(values: &[i64]) -> Operand {
        let fill = Fill::Values(values.iter().map(|&v| v as f64).collect());
        Operand { dtype: DType::I32, ne: vec![values.len()], view: View::Whole, fill, aligned: false }
    }

    /// The same with another filling.
    pub fn fill(self, fill: Fill) -> Operand {
        Operand { fill, ..self }
    }

    /// The same at an address that vectors may be read from.
    pub fn aligned(self) -> Operand {
        Operand { aligned: true, ..self }
    }

    /// The same, looked at in another way.
    pub fn view(self, view: View) -> Operand {
        Operand { view, ..self }
    }

    /// Dimensions exchanged.
    pub fn permuted(self, axes: [usize; 4]) -> Operand {
        self.view(View::Permuted(axes))
    }

    /// A part of one dimension.
    pub fn slice(self, dim: usize, start: usize, len: usize) -> Operand {
        self.view(View::Slice { dim, start, len })
    }
}
