//! What a file says about a tensor, and which shapes are possible.
//!
//! Dimensions stand innermost first, as in the file: `dims[0]` is the length of a row, the only one that must be whole
//! blocks of the type. All sizes are computed with checks here, once, for reading and writing alike; whatever has a
//! [`TensorInfo`] can multiply its dimensions without thinking about overflow.

use crate::GgmlType;

/// The most dimensions a tensor can have.
pub const MAX_DIMS: usize = 4;

/// The description of one tensor. Its data comes from [`Gguf::data`](crate::Gguf::data).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name, unique in the model.
    pub name: String,
    /// The element type.
    pub ty: GgmlType,
    /// The dimensions, innermost first (`dims[0]` is the row length in values), filled up with 1.
    pub dims: [u64; MAX_DIMS],
    /// How many of `dims` the file gives.
    pub n_dims: usize,
    /// Where the data starts, in bytes from the start of its file's data section.
    pub offset: u64,
    /// Size of the data in bytes.
    pub bytes: u64,
    /// The file it is in: an index into [`Gguf::parts`](crate::Gguf::parts).
    pub part: usize,
}

impl TensorInfo {
    /// The dimensions the file gives, innermost first.
    pub fn shape(&self) -> &[u64] {
        &self.dims[..self.n_dims.min(MAX_DIMS)]
    }

    /// Number of values.
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }
}

/// Why a tensor cannot have these dimensions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// Over four dimensions.
    #[error("has {found} dimensions: expected at most {MAX_DIMS}")]
    TooManyDimensions {
        /// The number found.
        found: u64,
    },
    /// A dimension of zero.
    #[error("has the length 0 in dimension {dimension}: expected at least 1")]
    ZeroDimension {
        /// Which one, from 0.
        dimension: usize,
    },
    /// A row that isn't whole blocks.
    #[error("has rows of {row} values: expected a multiple of {block}, the block of type {ty}")]
    RowNotBlocks {
        /// Values in a row.
        row: u64,
        /// Values in a block.
        block: u64,
        /// The type.
        ty: GgmlType,
    },
    /// More values or bytes than a signed 64-bit number can count.
    #[error("has the shape {shape:?} of type {ty}, whose size does not fit 63 bits")]
    TooLarge {
        /// The dimensions, innermost first.
        shape: Vec<u64>,
        /// The type.
        ty: GgmlType,
    },
}

/// Fills the dimensions up to four and computes the size of the data in bytes.
pub(crate) fn measure(ty: GgmlType, shape: &[u64]) -> Result<([u64; MAX_DIMS], u64), ShapeError> {
    if shape.len() > MAX_DIMS {
        return Err(ShapeError::TooManyDimensions { found: shape.len() as u64 });
    }
    if let Some(dimension) = shape.iter().position(|&length| length == 0) {
        return Err(ShapeError::ZeroDimension { dimension });
    }
    let mut dims = [1; MAX_DIMS];
    dims[..shape.len()].copy_from_slice(shape);
    if !dims[0].is_multiple_of(ty.block_len()) {
        return Err(ShapeError::RowNotBlocks { row: dims[0], block: ty.block_len(), ty });
    }
    let fits = |size: &u64| i64::try_from(*size).is_ok();
    let elements = dims.iter().try_fold(1u64, |product, &length| product.checked_mul(length)).filter(fits);
    let bytes = elements.and_then(|n| (n / ty.block_len()).checked_mul(ty.block_bytes())).filter(fits);
    match bytes {
        Some(bytes) => Ok((dims, bytes)),
        None => Err(ShapeError::TooLarge { shape: shape.to_vec(), ty }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_count_blocks() {
        assert_eq!(measure(GgmlType::Q4_K, &[512, 3]), Ok(([512, 3, 1, 1], 3 * 2 * 144)));
        assert_eq!(measure(GgmlType::F32, &[]), Ok(([1; 4], 4)));
        assert_eq!(measure(GgmlType::I8, &[2, 3, 4, 5]), Ok(([2, 3, 4, 5], 120)));
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let f32s = |shape: &[u64]| measure(GgmlType::F32, shape).unwrap_err();
        assert_eq!(f32s(&[1; 5]), ShapeError::TooManyDimensions { found: 5 });
        assert_eq!(f32s(&[4, 0]), ShapeError::ZeroDimension { dimension: 1 });
        assert!(matches!(f32s(&[u64::MAX, 2]), ShapeError::TooLarge { .. }));
        assert!(matches!(f32s(&[1 << 62]), ShapeError::TooLarge { .. }));
        assert!(matches!(f32s(&[1 << 32, 1 << 32]), ShapeError::TooLarge { .. }));
        // Too many values to count, though their bytes would fit.
        assert!(matches!(measure(GgmlType::Q4_0, &[1 << 63]), Err(ShapeError::TooLarge { .. })));
        let row = ShapeError::RowNotBlocks { row: 100, block: 256, ty: GgmlType::Q6_K };
        assert_eq!(measure(GgmlType::Q6_K, &[100, 256]), Err(row));
    }
}
