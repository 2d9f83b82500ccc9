//! The formats of 32 values with one scale: Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0.
//!
//! Byte order of a block: d (f16), m (f16, the `_1` formats), the fifth bits (u32, the 5-bit formats), the codes.
//! Nibbles: the low one of byte j is value j, the high one value j + 16.
#![allow(non_camel_case_types)] // GGUF's own names

use super::encode;
use super::format::{Block, Format, f16_at};

fn decode_nibbles(src: &[u8], codes: &mut [u8]) {
    let (low, high) = codes[..32].split_at_mut(16);
    for ((byte, low), high) in src[..16].iter().zip(low).zip(high) {
        *low = byte & 15;
        *high = byte >> 4;
    }
}

fn encode_nibbles(codes: &[u8], dst: &mut [u8]) {
    for ((dst, low), high) in dst.iter_mut().zip(&codes[..16]).zip(&codes[16..32]) {
        *dst = low & 15 | high << 4;
    }
}

/// Eight bits at a time: bit i of a byte, copied to all eight bytes of a word, is cut out of byte i and normalized.
fn decode_fifth_bits(src: &[u8], codes: &mut [u8]) {
    for (codes, &bits) in codes[..32].as_chunks_mut::<8>().0.iter_mut().zip(src) {
        let cut = (u64::from(bits) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
        let set = ((cut + 0x7f7f_7f7f_7f7f_7f7f) >> 3) & 0x1010_1010_1010_1010;
        *codes = (u64::from_le_bytes(*codes) | set).to_le_bytes();
    }
}

fn encode_fifth_bits(codes: &[u8], dst: &mut [u8]) {
    let bits = (0..32).fold(0u32, |bits, j| bits | u32::from(codes[j] >> 4 & 1) << j);
    dst[..4].copy_from_slice(&bits.to_le_bytes());
}

/// The four- and five-bit formats differ in two choices only: a minimum or not, a fifth bit or not.
macro_rules! nibble_format {
    ($(#[$doc:meta])* $name:ident, bits $bits:literal, min $min:literal) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl $name {
            const HIGH: usize = 2 + 2 * $min as usize;
            const LOW: usize = Self::HIGH + 4 * ($bits == 5) as usize;
        }

        impl Format for $name {
            const VALUES: usize = 32;
            const BYTES: usize = Self::LOW + 16;
            const SEGMENT: usize = 32;
            const BITS: u32 = $bits;
            const HAS_MIN: bool = $min;

            #[inline]
            fn decode(src: &[u8], block: &mut Block) {
                block.d = f16_at(src, 0);
                if $min {
                    block.m = f16_at(src, 2);
                }
                decode_nibbles(&src[Self::LOW..], &mut block.codes);
                if $bits == 5 {
                    decode_fifth_bits(&src[Self::HIGH..], &mut block.codes);
                }
            }

            fn encode(block: &Block, dst: &mut [u8]) {
                dst[..2].copy_from_slice(&block.d.to_le_bytes());
                if $min {
                    dst[2..4].copy_from_slice(&block.m.to_le_bytes());
                }
                encode_nibbles(&block.codes, &mut dst[Self::LOW..]);
                if $bits == 5 {
                    encode_fifth_bits(&block.codes, &mut dst[Self::HIGH..]);
                }
            }

            fn quantize(src: &[f32], block: &mut Block) {
                if $min { encode::with_min::<Self>(src, block) } else { encode::centred::<Self>(src, block) }
            }
        }
    };
}

nibble_format!(/** 18 bytes: d (q - 8). */ Q4_0, bits 4, min false);
nibble_format!(/** 20 bytes: d q + m. */ Q4_1, bits 4, min true);
nibble_format!(/** 22 bytes: d (q - 16). */ Q5_0, bits 5, min false);
nibble_format!(/** 24 bytes: d q + m. */ Q5_1, bits 5, min true);

/// 34 bytes: d q with signed bytes q; the codes here are q + 128.
pub(crate) struct Q8_0;

impl Format for Q8_0 {
    const VALUES: usize = 32;
    const BYTES: usize = 34;
    const SEGMENT: usize = 32;
    const BITS: u32 = 8;
    const HAS_MIN: bool = false;

    #[inline]
    fn decode(src: &[u8], block: &mut Block) {
        block.d = f16_at(src, 0);
        for (code, byte) in block.codes.iter_mut().zip(&src[2..34]) {
            *code = byte ^ 0x80;
        }
    }

    fn encode(block: &Block, dst: &mut [u8]) {
        dst[..2].copy_from_slice(&block.d.to_le_bytes());
        for (dst, code) in dst[2..34].iter_mut().zip(&block.codes) {
            *dst = code ^ 0x80;
        }
    }

    fn quantize(src: &[f32], block: &mut Block) {
        encode::symmetric::<Self>(src, block);
    }
}
