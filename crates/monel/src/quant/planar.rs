//! Rows in planes: the layout of quantized weights on GPUs.
//!
//! A file's blocks keep scale and codes together, 18 to 210 bytes apart, so an invocation would read them two bytes at a
//! time. In a planar row the same bits lie in planes, each aligned to what it holds, so that an invocation reads the
//! codes of 32 values with one load of 16 bytes and neighbours read neighbouring bytes. Nothing is rounded, and rows stay
//! rows: a matrix can be cut and joined by rows as in any other layout.
//!
//! For a row of G groups of 32 values:
//! 1. codes, 16 bytes a group: the low half of byte i is value i, the high half value i + 16 (Q8_0: 32 bytes, one a value);
//! 2. high bits: Q5 one word a group, bit i of value i; Q6_K two words a group, of 16 values each, the two bits of value
//!    4w + b at bit 8b + 2w;
//! 3. scales: `d` (Q4_0, Q5_0, Q8_0) or `d, m` (Q4_1, Q5_1) in f16 for each group; the sixteen bytes of `d`, `dmin` and
//!    packed scales for each 256 values as in the file (Q4_K, Q5_K); two 8-bit scales for each group, then `d` in f16
//!    for each 256 values (Q6_K);
//! 4. zeros up to a multiple of 16 bytes.

use super::{BlockType, QuantError, with_format};

/// Values in a group.
const GROUP: usize = 32;

/// Bytes per group of the codes and of the high bits.
const fn planes(ty: BlockType) -> (usize, usize) {
    match ty {
        BlockType::Q8_0 => (32, 0),
        BlockType::Q5_0 | BlockType::Q5_1 | BlockType::Q5_K => (16, 4),
        BlockType::Q6_K => (16, 8),
        _ => (16, 0),
    }
}

/// Bytes of a planar row of `k` values, `k` a whole number of blocks. Zero for the float types, which have no planes.
pub const fn row_bytes(ty: BlockType, k: usize) -> usize {
    if ty.is_float() {
        return 0;
    }
    // No bit is added or left out, so the planes are as large as the blocks.
    ty.row_bytes(k).next_multiple_of(16)
}

/// Turns a row of blocks into planes. `dst` is exactly [`row_bytes`] long.
///
/// # Errors
/// [`QuantError`] when the lengths do not describe a row of `k` values of a quantized type; nothing is written then.
pub fn encode_row(ty: BlockType, k: usize, src: &[u8], dst: &mut [u8]) -> Result<(), QuantError> {
    super::check(ty, k, src.len())?;
    check(ty, k, dst.len())?;
    let (groups, (code_bytes, high_bytes)) = (k / GROUP, planes(ty));
    let (codes, rest) = dst.split_at_mut(groups * code_bytes);
    let (high, scales) = rest.split_at_mut(groups * high_bytes);
    scales.fill(0);
    with_format!(ty, F => {
        let per_block = F::VALUES / GROUP;
        let mut block = Block::new();
        for (b, src) in src.chunks_exact(F::BYTES).enumerate() {
            F::decode(src, &mut block);
            for (g, values) in block.codes[..F::VALUES].chunks_exact(GROUP).enumerate() {
                let g = b * per_block + g;
                put_codes(ty, values, &mut codes[g * code_bytes..][..code_bytes]);
                put_high(ty, values, &mut high[g * high_bytes..][..high_bytes]);
            }
            match ty {
                BlockType::Q4_K | BlockType::Q5_K => scales[16 * b..][..16].copy_from_slice(&src[..16]),
                BlockType::Q6_K => {
                    scales[16 * b..][..16].copy_from_slice(&src[192..208]);
                    scales[2 * groups + 2 * b..][..2].copy_from_slice(&src[208..]);
                }
                BlockType::Q4_1 | BlockType::Q5_1 => scales[4 * b..][..4].copy_from_slice(&src[..4]),
                _ => scales[2 * b..][..2].copy_from_slice(&src[..2]),
            }
        }
    }, else ());
    Ok(())
}

/// Turns planes back into a row of blocks. `dst` is exactly the row of blocks.
///
/// # Errors
/// As [`encode_row`].
pub fn decode_row(ty: BlockType, k: usize, src: &[u8], dst: &mut [u8]) -> Result<(), QuantError> {
    super::check(ty, k, dst.len())?;
    check(ty, k, src.len())?;
    let (groups, (code_bytes, high_bytes)) = (k / GROUP, planes(ty));
    let (codes, rest) = src.split_at(groups * code_bytes);
    let (high, scales) = rest.split_at(groups * high_bytes);
    with_format!(ty, F => {
        let per_block = F::VALUES / GROUP;
        let mut block = Block::new();
        for (b, dst) in dst.chunks_exact_mut(F::BYTES).enumerate() {
            for (g, values) in block.codes[..F::VALUES].chunks_exact_mut(GROUP).enumerate() {
                let g = b * per_block + g;
                let codes = &codes[g * code_bytes..][..code_bytes];
                let high = &high[g * high_bytes..][..high_bytes];
                take_codes(ty, codes, high, values);
            }
            F::encode(&block, dst);
            match ty {
                BlockType::Q4_K | BlockType::Q5_K => dst[..16].copy_from_slice(&scales[16 * b..][..16]),
                BlockType::Q6_K => {
                    dst[192..208].copy_from_slice(&scales[16 * b..][..16]);
                    dst[208..].copy_from_slice(&scales[2 * groups + 2 * b..][..2]);
                }
                BlockType::Q4_1 | BlockType::Q5_1 => dst[..4].copy_from_slice(&scales[4 * b..][..4]),
                _ => dst[..2].copy_from_slice(&scales[2 * b..][..2]),
            }
        }
    }, else ());
    Ok(())
}

/// The values of a planar row in `f64`, for references.
///
/// # Errors
/// As [`encode_row`].
pub fn dequantize_row_f64(ty: BlockType, src: &[u8], dst: &mut [f64]) -> Result<(), QuantError> {
    let mut blocks = vec![0; ty.row_bytes(dst.len())];
    decode_row(ty, dst.len(), src, &mut blocks)?;
    super::dequantize_row_f64(ty, &blocks, dst)
}

/// The values of a planar row in `f32`.
///
/// # Errors
/// As [`encode_row`].
pub fn dequantize_row(ty: BlockType, src: &[u8], dst: &mut [f32]) -> Result<(), QuantError> {
    let mut blocks = vec![0; ty.row_bytes(dst.len())];
    decode_row(ty, dst.len(), src, &mut blocks)?;
    super::dequantize_row(ty, &blocks, dst)
}

fn check(ty: BlockType, values: usize, found: usize) -> Result<(), QuantError> {
    let expected = row_bytes(ty, values);
    if ty.is_float() || expected != found {
        return Err(QuantError::WrongBytes { ty, values, expected, found });
    }
    Ok(())
}

fn put_codes(ty: BlockType, values: &[u8], dst: &mut [u8]) {
    if ty == BlockType::Q8_0 {
        // Blocks taken apart have codes from 0 to 255; in the row they are signed.
        dst.iter_mut().zip(values).for_each(|(d, v)| *d = v ^ 0x80);
        return;
    }
    for (i, d) in dst.iter_mut().enumerate() {
        *d = values[i] & 15 | values[i + 16] << 4;
    }
}

fn put_high(ty: BlockType, values: &[u8], dst: &mut [u8]) {
    dst.fill(0);
    let mut set = |bit: usize, value: u8| dst[bit / 8] |= value << (bit % 8);
    for (i, v) in values.iter().enumerate() {
        match ty {
            BlockType::Q5_0 | BlockType::Q5_1 | BlockType::Q5_K => set(i, v >> 4 & 1),
            BlockType::Q6_K => set(32 * (i / 16) + 8 * (i % 4) + 2 * (i % 16 / 4), v >> 4 & 3),
            _ => {}
        }
    }
}

fn take_codes(ty: BlockType, codes: &[u8], high: &[u8], values: &mut [u8]) {
    if ty == BlockType::Q8_0 {
        values.iter_mut().zip(codes).for_each(|(v, c)| *v = c ^ 0x80);
        return;
    }
    for (i, v) in values.iter_mut().enumerate() {
        let low = codes[i % 16] >> (4 * (i / 16)) & 15;
        let bits = |bit: usize, mask: u8| (high[bit / 8] >> (bit % 8) & mask) << 4;
        *v = low
            | match ty {
                BlockType::Q5_0 | BlockType::Q5_1 | BlockType::Q5_K => bits(i, 1),
                BlockType::Q6_K => bits(32 * (i / 16) + 8 * (i % 4) + 2 * (i % 16 / 4), 3),
                _ => 0,
            };
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::{Block, Format, Q6_K};
    use super::*;

    #[test]
    fn planes_hold_every_bit_of_the_blocks() {
        for ty in BlockType::ALL.into_iter().filter(|t| !t.is_float()) {
            let k = 3 * ty.block_values();
            // Bytes of every kind: all that a file may hold.
            let mut state = 1u32;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            };
            let row: Vec<u8> = (0..ty.row_bytes(k)).map(|_| next()).collect();
            let mut planar = vec![0xff; row_bytes(ty, k)];
            encode_row(ty, k, &row, &mut planar).unwrap();
            let mut back = vec![0; row.len()];
            decode_row(ty, k, &planar, &mut back).unwrap();
            assert_eq!(back, row, "{ty:?}");
        }
    }

    #[test]
    fn lengths_are_checked() {
        let ty = BlockType::Q4_0;
        assert!(encode_row(ty, 64, &[0; 36], &mut [0; 40]).is_err());
        assert!(encode_row(ty, 64, &[0; 35], &mut [0; 48]).is_err());
        assert!(encode_row(ty, 33, &[0; 36], &mut [0; 48]).is_err());
        assert!(encode_row(BlockType::F16, 32, &[0; 64], &mut []).is_err());
        assert!(encode_row(ty, 64, &[0; 36], &mut [0; 48]).is_ok());
    }

    #[test]
    fn a_code_lies_where_the_description_says() {
        // Q6_K: value 37 is in group 1, word 0 of its high bits, value 5 of it: bits 8 * 1 + 2 * 1.
        let mut block = Block::new();
        block.codes[37] = 0b11_0110;
        let mut row = vec![0; 210];
        Q6_K::encode(&block, &mut row);
        let mut planar = vec![0; row_bytes(BlockType::Q6_K, 256)];
        encode_row(BlockType::Q6_K, 256, &row, &mut planar).unwrap();
        assert_eq!(planar[16 + 5], 0b0110);
        let high = u32::from_le_bytes([0, 1, 2, 3].map(|i| planar[8 * 16 + 8 + i]));
        assert_eq!(high, 3 << (8 + 2));
    }
}
