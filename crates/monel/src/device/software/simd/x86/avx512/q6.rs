//! Six bits: Q6_K. Four groups share 64 bytes of high bits.

use super::*;

// a | (b & mask)
const MERGE: i32 = 0xf8;

impl Unpack for Q6_K {
    #[inline(always)]
    unsafe fn codes(block: *const u8, segment: usize, pair: usize) -> (__m512i, __m512i) {
        // SAFETY: the trait's.
        unsafe {
            let both = load(block.add(Layout::<Self>::low(segment) + 64 * pair));
            let high = load(block.add(Layout::<Self>::high(segment)));
            let (nibble, top) = (bytes(0x0f), bytes(0x30));
            let a = _mm512_and_si512(both, nibble);
            let b = _mm512_and_si512(_mm512_srli_epi16::<4>(both), nibble);
            let (c, d) = match pair {
                0 => (_mm512_slli_epi16::<4>(high), _mm512_slli_epi16::<2>(high)),
                _ => (high, _mm512_srli_epi16::<2>(high)),
            };
            (_mm512_ternarylogic_epi32::<MERGE>(a, c, top), _mm512_ternarylogic_epi32::<MERGE>(b, d, top))
        }
    }

    #[inline(always)]
    unsafe fn excess(block: *const u8, segment: usize, pair: usize) -> (__m512i, __m512i) {
        // SAFETY: the trait's.
        unsafe {
            let both = load(block.add(Layout::<Self>::low(segment) + 64 * pair));
            let high = load(block.add(Layout::<Self>::high(segment)));
            let (nibble, top) = (bytes(0x3c), bytes(0xc0));
            let a = _mm512_and_si512(_mm512_slli_epi16::<2>(both), nibble);
            let b = _mm512_and_si512(_mm512_srli_epi16::<2>(both), nibble);
            let (c, d) = match pair {
                0 => (_mm512_slli_epi16::<6>(high), _mm512_slli_epi16::<4>(high)),
                _ => (_mm512_slli_epi16::<2>(high), high),
            };
            (_mm512_ternarylogic_epi32::<MERGE>(a, c, top), _mm512_ternarylogic_epi32::<MERGE>(b, d, top))
        }
    }
}
