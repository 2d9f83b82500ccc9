//! The formats of 256 values with integer sub-scales: Q4_K, Q5_K and Q6_K.
//!
//! Q4_K and Q5_K have eight segments of 32 with six-bit scales and minima, squeezed into 12 bytes; segments 2i
//! and 2i + 1 are the low and the high nibbles of the same 32 bytes. Q6_K has sixteen segments of 16 with signed
//! eight-bit scales; its values come in two halves of 128.
#![allow(non_camel_case_types)] // GGUF's own names

use super::encode;
use super::format::{Block, Format, f16_at};

const SCALES: usize = 4;
const PACKED_SCALES: usize = 12;

/// The eight six-bit scales and minima of Q4_K and Q5_K.
fn decode_scales(s: &[u8], block: &mut Block) {
    for g in 0..4 {
        block.scales[g] = (s[g] & 63) as i8;
        block.mins[g] = s[g + 4] & 63;
        block.scales[g + 4] = (s[g + 8] & 15 | s[g] >> 6 << 4) as i8;
        block.mins[g + 4] = s[g + 8] >> 4 | s[g + 4] >> 6 << 4;
    }
}

fn encode_scales(block: &Block, s: &mut [u8]) {
    for g in 0..4 {
        let (scale, min) = (block.scales[g + 4] as u8, block.mins[g + 4]);
        s[g] = block.scales[g] as u8 & 63 | scale >> 4 << 6;
        s[g + 4] = block.mins[g] & 63 | min >> 4 << 6;
        s[g + 8] = scale & 15 | min << 4;
    }
}

/// Q4_K and Q5_K differ by the fifth bits only.
macro_rules! k_format {
    ($(#[$doc:meta])* $name:ident, bits $bits:literal) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl $name {
            const HIGH: usize = SCALES + PACKED_SCALES;
            const LOW: usize = Self::HIGH + 32 * ($bits == 5) as usize;
        }

        impl Format for $name {
            const VALUES: usize = 256;
            const BYTES: usize = Self::LOW + 128;
            const SEGMENT: usize = 32;
            const BITS: u32 = $bits;
            const HAS_MIN: bool = true;

            #[inline]
            fn decode(src: &[u8], block: &mut Block) {
                block.d = f16_at(src, 0);
                block.m = -f16_at(src, 2);
                decode_scales(&src[SCALES..Self::HIGH], block);
                let low = &src[Self::LOW..Self::BYTES];
                for (two, low) in block.codes.chunks_exact_mut(64).zip(low.chunks_exact(32)) {
                    for (l, byte) in low.iter().enumerate() {
                        two[l] = byte & 15;
                        two[l + 32] = byte >> 4;
                    }
                }
                if $bits == 5 {
                    let high = &src[Self::HIGH..Self::LOW];
                    for (g, codes) in block.codes.chunks_exact_mut(32).enumerate() {
                        for (code, byte) in codes.iter_mut().zip(high) {
                            *code |= (byte >> g & 1) << 4;
                        }
                    }
                }
            }

            fn encode(block: &Block, dst: &mut [u8]) {
                dst[..2].copy_from_slice(&block.d.to_le_bytes());
                dst[2..4].copy_from_slice(&(-block.m).to_le_bytes());
                encode_scales(block, &mut dst[SCALES..Self::HIGH]);
                let (head, low) = dst.split_at_mut(Self::LOW);
                for (two, low) in block.codes.chunks_exact(64).zip(low.chunks_exact_mut(32)) {
                    for (l, byte) in low.iter_mut().enumerate() {
                        *byte = two[l] & 15 | two[l + 32] << 4;
                    }
                }
                if $bits == 5 {
                    for (l, byte) in head[Self::HIGH..].iter_mut().enumerate() {
                        *byte = (0..8).fold(0, |bits, g| bits | (block.codes[32 * g + l] >> 4 & 1) << g);
                    }
                }
            }

            fn quantize(src: &[f32], block: &mut Block) {
                encode::with_scaled_min::<Self>(src, block);
            }
        }
    };
}

k_format!(/** 144 bytes: d sc q - dmin m. */ Q4_K, bits 4);
k_format!(/** 176 bytes: d sc q - dmin m. */ Q5_K, bits 5);

/// 210 bytes: d sc (q - 32).
pub(crate) struct Q6_K;

impl Format for Q6_K {
    const VALUES: usize = 256;
    const BYTES: usize = 210;
    const SEGMENT: usize = 16;
    const BITS: u32 = 6;
    const HAS_MIN: bool = false;

    #[inline]
    fn decode(src: &[u8], block: &mut Block) {
        block.d = f16_at(src, 208);
        for (scale, byte) in block.scales.iter_mut().zip(&src[192..208]) {
            *scale = *byte as i8;
        }
        let halves = src[..128].chunks_exact(64).zip(src[128..192].chunks_exact(32));
        for (codes, (low, high)) in block.codes.chunks_exact_mut(128).zip(halves) {
            for l in 0..32 {
                let (even, odd, high) = (low[l], low[l + 32], high[l]);
                codes[l] = even & 15 | (high & 3) << 4;
                codes[l + 32] = odd & 15 | (high >> 2 & 3) << 4;
                codes[l + 64] = even >> 4 | (high >> 4 & 3) << 4;
                codes[l + 96] = odd >> 4 | high >> 6 << 4;
            }
        }
    }

    fn encode(block: &Block, dst: &mut [u8]) {
        dst[208..210].copy_from_slice(&block.d.to_le_bytes());
        for (byte, scale) in dst[192..208].iter_mut().zip(&block.scales) {
            *byte = *scale as u8;
        }
        let (low, high) = dst[..192].split_at_mut(128);
        let halves = low.chunks_exact_mut(64).zip(high.chunks_exact_mut(32));
        for (codes, (low, high)) in block.codes.chunks_exact(128).zip(halves) {
            for l in 0..32 {
                let [a, b, c, d] = [0, 32, 64, 96].map(|i| codes[l + i]);
                low[l] = a & 15 | c << 4;
                low[l + 32] = b & 15 | d << 4;
                high[l] = a >> 4 & 3 | (b >> 4 & 3) << 2 | (c >> 4 & 3) << 4 | d >> 4 << 6;
            }
        }
    }

    fn quantize(src: &[f32], block: &mut Block) {
        encode::scaled_centred::<Self>(src, block);
    }
}
