//! The float "formats": one little-endian number a value. Portable conversions; the vector ones live in the
//! software device's `simd` folder.

use super::BlockType;
use half::{bf16, f16};

/// Rows to `f32`; the lengths were checked by the caller. Only float types come here.
pub(super) fn to_f32(ty: BlockType, src: &[u8], dst: &mut [f32]) {
    match ty {
        BlockType::F32 => each(src, dst, f32::from_le_bytes),
        BlockType::F16 => each(src, dst, |b| f16::from_le_bytes(b).to_f32()),
        BlockType::BF16 => each(src, dst, |b| bf16::from_le_bytes(b).to_f32()),
        _ => unreachable!("quantized types have a Format"),
    }
}

/// Rows from `f32`, rounded to nearest even; the lengths were checked by the caller. Only float types come here.
pub(super) fn from_f32(ty: BlockType, src: &[f32], dst: &mut [u8]) {
    match ty {
        BlockType::F32 => fill(src, dst, f32::to_le_bytes),
        BlockType::F16 => fill(src, dst, |x| f16::from_f32(x).to_le_bytes()),
        BlockType::BF16 => fill(src, dst, |x| bf16::from_f32(x).to_le_bytes()),
        _ => unreachable!("quantized types have a Format"),
    }
}

fn each<const N: usize>(src: &[u8], dst: &mut [f32], convert: impl Fn([u8; N]) -> f32) {
    for (src, dst) in src.as_chunks::<N>().0.iter().zip(dst) {
        *dst = convert(*src);
    }
}

fn fill<const N: usize>(src: &[f32], dst: &mut [u8], convert: impl Fn(f32) -> [u8; N]) {
    for (src, dst) in src.iter().zip(dst.as_chunks_mut::<N>().0) {
        *dst = convert(*src);
    }
}
