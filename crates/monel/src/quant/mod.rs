//! The block formats of GGUF weights: how 32 or 256 values share a scale, and how their bits lie in a file.
//!
//! Every quantized format is one small type that can take a block apart ([`format::Block`]: codes, scales and
//! minima) and put it together again. Everything else is written once on top of that: rows to `f32`, rows to
//! `f64` for the slow reference, quantizing, and the repacking for the matrix kernels
//! (`device::software::simd::pack`). A new format is one `impl` of [`format::Format`] and one line in
//! `with_format!`.
//!
//! The plain float formats (F32, F16, BF16) are "blocks" of one value, so that callers need no second path.

pub(crate) mod encode;
mod float;
pub(crate) mod format;
mod kquants;
mod legacy;
pub mod planar;
#[cfg(test)]
pub(crate) mod tests;

/// How the values of a row are stored. Names and layouts are GGUF's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, missing_docs)] // GGUF's own names, each explained by the format's type
pub enum BlockType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4_K,
    Q5_K,
    Q6_K,
}

/// Runs `$body` with `$F` bound to the [`Format`] of a quantized block type, or `$float` for the float types.
macro_rules! with_format {
    ($ty:expr, $F:ident => $body:expr, else $float:expr) => {{
        use $crate::quant::{BlockType, format::*};
        match $ty {
            BlockType::F32 | BlockType::F16 | BlockType::BF16 => $float,
            BlockType::Q4_0 => {
                type $F = Q4_0;
                $body
            }
            BlockType::Q4_1 => {
                type $F = Q4_1;
                $body
            }
            BlockType::Q5_0 => {
                type $F = Q5_0;
                $body
            }
            BlockType::Q5_1 => {
                type $F = Q5_1;
                $body
            }
            BlockType::Q8_0 => {
                type $F = Q8_0;
                $body
            }
            BlockType::Q4_K => {
                type $F = Q4_K;
                $body
            }
            BlockType::Q5_K => {
                type $F = Q5_K;
                $body
            }
            BlockType::Q6_K => {
                type $F = Q6_K;
                $body
            }
        }
    }};
}
pub(crate) use with_format;

impl BlockType {
    /// Every type, floats first.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
    ];

    /// Values in one block: 1, 32 or 256. The length of a row is a multiple of it.
    pub const fn block_values(self) -> usize {
        with_format!(self, F => F::VALUES, else 1)
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        with_format!(self, F => F::BYTES, else if matches!(self, Self::F32) { 4 } else { 2 })
    }

    /// Bytes of a row of `k` values; `k` counts whole blocks only (what is left over is not counted).
    pub const fn row_bytes(self, k: usize) -> usize {
        k / self.block_values() * self.block_bytes()
    }

    /// True for F32, F16 and BF16: one number a value, no scales.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }
}

/// Why a row could not be converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantError {
    /// The number of values does not divide into blocks.
    #[error(
        "a row of {values} values does not divide into {ty:?} blocks of {block}; pad the row or choose another type"
    )]
    PartialBlock {
        /// The type of the row.
        ty: BlockType,
        /// Values asked for.
        values: usize,
        /// Values in a block.
        block: usize,
    },
    /// The byte slice does not have the length of the row.
    #[error("a {ty:?} row of {values} values takes {expected} bytes, but {found} were given")]
    WrongBytes {
        /// The type of the row.
        ty: BlockType,
        /// Values asked for.
        values: usize,
        /// Bytes such a row has.
        expected: usize,
        /// Bytes of the slice.
        found: usize,
    },
}

fn check(ty: BlockType, values: usize, found: usize) -> Result<(), QuantError> {
    let block = ty.block_values();
    if !values.is_multiple_of(block) {
        return Err(QuantError::PartialBlock { ty, values, block });
    }
    let expected = ty.row_bytes(values);
    if expected != found {
        return Err(QuantError::WrongBytes { ty, values, expected, found });
    }
    Ok(())
}

/// Converts a row of any type to `f32`. `src` holds exactly the row, `dst` its values.
///
/// Every product and sum is rounded to `f32`, so the result equals the formats' published formulas bit for bit.
///
/// # Errors
/// [`QuantError`] when the two lengths do not describe the same row; nothing is written then.
pub fn dequantize_row(ty: BlockType, src: &[u8], dst: &mut [f32]) -> Result<(), QuantError> {
    check(ty, dst.len(), src.len())?;
    with_format!(ty, F => {
        let mut block = Block::new();
        for (src, dst) in src.chunks_exact(F::BYTES).zip(dst.chunks_exact_mut(F::VALUES)) {
            F::decode(src, &mut block);
            block.values::<F, f32>(dst);
        }
    }, else float::to_f32(ty, src, dst));
    Ok(())
}

/// Converts a row of any type to `f64` without any rounding beyond `f64`'s: what a reference result starts from.
///
/// # Errors
/// As [`dequantize_row`].
pub fn dequantize_row_f64(ty: BlockType, src: &[u8], dst: &mut [f64]) -> Result<(), QuantError> {
    check(ty, dst.len(), src.len())?;
    with_format!(ty, F => {
        let mut block = Block::new();
        for (src, dst) in src.chunks_exact(F::BYTES).zip(dst.chunks_exact_mut(F::VALUES)) {
            F::decode(src, &mut block);
            block.values::<F, f64>(dst);
        }
    }, else {
        let mut one = [0.0];
        for (src, dst) in src.chunks_exact(ty.block_bytes()).zip(dst) {
            float::to_f32(ty, src, &mut one);
            *dst = one[0].into();
        }
    });
    Ok(())
}

/// Quantizes a row of `f32` to any type. `dst` holds exactly the row.
///
/// Scales are limited to what `f16` can hold, so finite values give finite blocks; NaN becomes the code nearest
/// to zero.
///
/// # Errors
/// As [`dequantize_row`].
pub fn quantize_row(ty: BlockType, src: &[f32], dst: &mut [u8]) -> Result<(), QuantError> {
    check(ty, src.len(), dst.len())?;
    with_format!(ty, F => {
        let mut block = Block::new();
        for (src, dst) in src.chunks_exact(F::VALUES).zip(dst.chunks_exact_mut(F::BYTES)) {
            F::quantize(src, &mut block);
            F::encode(&block, dst);
        }
    }, else float::from_f32(ty, src, dst));
    Ok(())
}
