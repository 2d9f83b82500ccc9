//! The packed layout R16: quantized weights rearranged for the matrix kernels, the same for every instruction set.
//!
//! Sixteen rows make a tile (missing rows at the end are zeros). Inside a tile the rows' blocks lie one after
//! another along K, so that a matrix product reads memory strictly forwards. A packed block is
//!
//! ```text
//! d       16 x f16                            scale of each row
//! m       16 x f16   if minima or sub-scales  scale of the minima (with the sign with which it is added)
//! scales  16 x i8 for each segment            formats of 256 values only
//! mins    16 x u8 for each segment            Q4_K and Q5_K only
//! then for each segment (32 values; 16 in Q6_K):
//! low     4-bit: 64 bytes for every two groups, the even group in the low nibbles; 8-bit: 64 bytes a group
//! high    5-bit: 8 bytes a group, one bit a value; 6-bit: 64 bytes for four groups, two bits each, first lowest
//! ```
//!
//! A *group* is 16 rows x 4 consecutive values: byte 4 r + j is value j of row r. Read as 32-bit lanes, lane r
//! belongs to row r, which is what `vpdpbusd`, `maddubs` + `madd` and `sdot` sum into. Codes stay unsigned.

use super::act::BLOCK;
use crate::quant::{BlockType, format::*, with_format};
use half::f16;

/// Rows in a tile.
pub const TILE_ROWS: usize = 16;

pub(super) const D: usize = 0;
pub(super) const M: usize = 32;
pub(super) const SCALES: usize = 64;

/// Where things lie in a packed block of format `F`.
pub(super) struct Layout<F>(std::marker::PhantomData<F>);

impl<F: Format> Layout<F> {
    /// True for the formats whose segments have scales of their own.
    pub const SUB_SCALES: bool = F::SEGMENTS > 1;
    pub const MINS: usize = SCALES + 16 * F::SEGMENTS;
    pub const HEADER: usize = match (Self::SUB_SCALES, F::HAS_MIN) {
        (false, false) => 32,
        (false, true) => 64,
        (true, false) => Self::MINS,
        (true, true) => Self::MINS + 16 * F::SEGMENTS,
    };
    pub const GROUPS: usize = F::SEGMENT / 4;
    const LOW: usize = if F::BITS == 8 { 64 * Self::GROUPS } else { 32 * Self::GROUPS };
    const HIGH: usize = match F::BITS {
        5 => 8 * Self::GROUPS,
        6 => 16 * Self::GROUPS,
        _ => 0,
    };
    pub const SEGMENT_BYTES: usize = Self::LOW + Self::HIGH;
    pub const BLOCK_BYTES: usize = Self::HEADER + F::SEGMENTS * Self::SEGMENT_BYTES;

    /// Offset of a segment's low bits in the block.
    #[inline(always)]
    pub const fn low(segment: usize) -> usize {
        Self::HEADER + segment * Self::SEGMENT_BYTES
    }

    /// Offset of a segment's high bits in the block.
    #[inline(always)]
    pub const fn high(segment: usize) -> usize {
        Self::low(segment) + Self::LOW
    }
}

/// Why weights could not be packed or unpacked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// Float rows are used as they are.
    #[error("{ty:?} weights are not packed; use them row by row with gemm_float")]
    NotQuantized {
        /// The type given.
        ty: BlockType,
    },
    /// K does not divide into blocks.
    #[error("rows of {k} values do not divide into {ty:?} blocks of {block}")]
    PartialBlock {
        /// The type given.
        ty: BlockType,
        /// Values of a row.
        k: usize,
        /// Values of a block.
        block: usize,
    },
    /// A slice is too short, or a row lies outside it.
    #[error("{what} needs {expected} bytes or values, but has {found}")]
    TooShort {
        /// Which slice.
        what: &'static str,
        /// Needed length.
        expected: usize,
        /// Length found.
        found: usize,
    },
}

fn too_short(what: &'static str, expected: usize, found: usize) -> Result<(), PackError> {
    if found < expected { Err(PackError::TooShort { what, expected, found }) } else { Ok(()) }
}

fn whole_blocks(ty: BlockType, k: usize) -> Result<(), PackError> {
    let block = ty.block_values();
    if ty.is_float() {
        return Err(PackError::NotQuantized { ty });
    }
    if !k.is_multiple_of(block) { Err(PackError::PartialBlock { ty, k, block }) } else { Ok(()) }
}

/// Bytes of one packed tile: 16 rows of `k` values. Zero for the float types, which are never packed.
pub const fn tile_bytes(ty: BlockType, k: usize) -> usize {
    with_format!(ty, F => k / F::VALUES * Layout::<F>::BLOCK_BYTES, else 0)
}

/// Bytes of a packed matrix of `rows` rows of `k` values: whole tiles.
pub const fn packed_bytes(ty: BlockType, k: usize, rows: usize) -> usize {
    rows.div_ceil(TILE_ROWS) * tile_bytes(ty, k)
}

/// Packs up to 16 rows into one tile.
///
/// `src` holds the rows as they lie in the file, each `row_stride` bytes after the one before; rows from
/// `valid_rows` (at most 16) to 15 become zeros. `dst` is at least [`tile_bytes`] long.
///
/// # Errors
/// [`PackError`] for a float type, a `k` that does not divide into blocks, or slices that are too short.
pub fn pack_tile(
    ty: BlockType,
    k: usize,
    src: &[u8],
    row_stride: usize,
    valid_rows: usize,
    dst: &mut [u8],
) -> Result<(), PackError> {
    whole_blocks(ty, k)?;
    let valid_rows = valid_rows.min(TILE_ROWS);
    if valid_rows > 0 {
        let expected = (valid_rows - 1).saturating_mul(row_stride).saturating_add(ty.row_bytes(k));
        too_short("the tile's rows", expected, src.len())?;
    }
    too_short("the packed tile", tile_bytes(ty, k), dst.len())?;
    let dst = &mut dst[..tile_bytes(ty, k)];
    dst.fill(0);
    with_format!(ty, F => {
        let mut block = Block::new();
        for (b, dst) in dst.chunks_exact_mut(Layout::<F>::BLOCK_BYTES).enumerate() {
            for row in 0..valid_rows {
                let at = row * row_stride + b * F::BYTES;
                F::decode(&src[at..at + F::BYTES], &mut block);
                insert::<F>(&block, row, dst);
            }
        }
    }, else {});
    Ok(())
}

/// Row `row` of a packed matrix as `f32`; `dst` has `k` values. Equal to dequantizing the row before packing.
///
/// # Errors
/// As [`pack_tile`]; also when the row lies outside `packed`.
pub fn unpack_row(
    ty: BlockType,
    k: usize,
    packed: &[u8],
    row: usize,
    dst: &mut [f32],
) -> Result<(), PackError> {
    unpack(ty, k, packed, row, dst)
}

/// [`unpack_row`] in `f64`, for the reference.
///
/// # Errors
/// As [`unpack_row`].
pub fn unpack_row_f64(
    ty: BlockType,
    k: usize,
    packed: &[u8],
    row: usize,
    dst: &mut [f64],
) -> Result<(), PackError> {
    unpack(ty, k, packed, row, dst)
}

fn unpack<R: Real>(
    ty: BlockType,
    k: usize,
    packed: &[u8],
    row: usize,
    dst: &mut [R],
) -> Result<(), PackError> {
    whole_blocks(ty, k)?;
    too_short("the unpacked row", k, dst.len())?;
    let bytes = tile_bytes(ty, k);
    let tile = row / TILE_ROWS;
    too_short("the packed matrix", (tile + 1).saturating_mul(bytes), packed.len())?;
    let tile = &packed[tile * bytes..][..bytes];
    with_format!(ty, F => {
        let mut block = Block::new();
        for (src, dst) in tile.chunks_exact(Layout::<F>::BLOCK_BYTES).zip(dst.chunks_exact_mut(F::VALUES)) {
            extract::<F>(src, row % TILE_ROWS, &mut block);
            block.values::<F, R>(dst);
        }
    }, else {});
    Ok(())
}

/// Puts one row's block into a packed block whose bytes for this row are zero.
#[inline]
fn insert<F: Format>(block: &Block, row: usize, dst: &mut [u8]) {
    dst[D + 2 * row..][..2].copy_from_slice(&block.d.to_le_bytes());
    if F::HAS_MIN {
        dst[M + 2 * row..][..2].copy_from_slice(&block.m.to_le_bytes());
    }
    if Layout::<F>::SUB_SCALES {
        for s in 0..F::SEGMENTS {
            dst[SCALES + 16 * s + row] = block.scales[s] as u8;
            if F::HAS_MIN {
                dst[Layout::<F>::MINS + 16 * s + row] = block.mins[s];
            }
        }
    }
    for (s, codes) in block.codes[..F::VALUES].chunks_exact(F::SEGMENT).enumerate() {
        let segment = &mut dst[Layout::<F>::low(s)..][..Layout::<F>::SEGMENT_BYTES];
        let (low, high) = segment.split_at_mut(Layout::<F>::LOW);
        let words = codes.as_chunks::<4>().0;
        if F::BITS == 8 {
            for (word, low) in words.iter().zip(low.chunks_exact_mut(64)) {
                low[4 * row..][..4].copy_from_slice(word);
            }
            continue;
        }
        for (two, low) in words.as_chunks::<2>().0.iter().zip(low.chunks_exact_mut(64)) {
            let [even, odd] = two.map(|word| u32::from_le_bytes(word) & 0x0f0f_0f0f);
            low[4 * row..][..4].copy_from_slice(&(even | odd << 4).to_le_bytes());
        }
        if F::BITS == 5 {
            for (word, high) in words.iter().zip(high.chunks_exact_mut(8)) {
                // The product moves the fifth bits of the four bytes side by side into the top nibble.
                let bits = (u32::from_le_bytes(*word) >> 4 & 0x0101_0101).wrapping_mul(0x1020_4080) >> 28;
                high[row / 2] |= (bits as u8) << (4 * (row % 2));
            }
        }
        if F::BITS == 6 {
            for (four, high) in words.as_chunks::<4>().0.iter().zip(high.chunks_exact_mut(64)) {
                let [a, b, c, d] = four.map(|word| u32::from_le_bytes(word) >> 4 & 0x0303_0303);
                high[4 * row..][..4].copy_from_slice(&(a | b << 2 | c << 4 | d << 6).to_le_bytes());
            }
        }
    }
}

/// Takes one row's block out of a packed block.
fn extract<F: Format>(src: &[u8], row: usize, block: &mut Block) {
    let half = |at: usize| f16::from_le_bytes([src[at + 2 * row], src[at + 2 * row + 1]]);
    block.d = half(D);
    if F::HAS_MIN {
        block.m = half(M);
    }
    for s in 0..F::SEGMENTS {
        if Layout::<F>::SUB_SCALES {
            block.scales[s] = src[SCALES + 16 * s + row] as i8;
            if F::HAS_MIN {
                block.mins[s] = src[Layout::<F>::MINS + 16 * s + row];
            }
        }
        for i in 0..F::SEGMENT {
            block.codes[s * F::SEGMENT + i] = code::<F>(src, s, i / 4, 4 * row + i % 4);
        }
    }
}

/// The code at byte `lane` (0..64) of group `group` of a segment.
fn code<F: Format>(block: &[u8], segment: usize, group: usize, lane: usize) -> u8 {
    let (low, high) = (Layout::<F>::low(segment), Layout::<F>::high(segment));
    if F::BITS == 8 {
        return block[low + 64 * group + lane];
    }
    let nibble = block[low + 64 * (group / 2) + lane] >> (4 * (group % 2)) & 15;
    match F::BITS {
        5 => nibble | (block[high + 8 * group + lane / 8] >> (lane % 8) & 1) << 4,
        6 => nibble | (block[high + 64 * (group / 4) + lane] >> (2 * (group % 4)) & 3) << 4,
        _ => nibble,
    }
}

const _: () = assert!(BLOCK == 32, "segments of 16 and 32 values must divide an activation block");
