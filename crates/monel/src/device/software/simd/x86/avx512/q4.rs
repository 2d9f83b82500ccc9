//! Four bits: Q4_0, Q4_1 and Q4_K, the nibbles.

use super::*;

/// Codes at the bottom of the byte.
#[inline(always)]
unsafe fn low<F: Format>(block: *const u8, segment: usize, pair: usize) -> (__m512i, __m512i) {
    // SAFETY: the caller's, as `Unpack::codes`.
    unsafe {
        let both = load(block.add(Layout::<F>::low(segment) + 64 * pair));
        let nibble = bytes(0x0f);
        (_mm512_and_si512(both, nibble), _mm512_and_si512(_mm512_srli_epi16::<4>(both), nibble))
    }
}

impl Unpack for Q4_0 {
    #[inline(always)]
    unsafe fn codes(block: *const u8, segment: usize, pair: usize) -> (__m512i, __m512i) {
        // SAFETY: the trait's.
        unsafe { low::<Self>(block, segment, pair) }
    }

    #[inline(always)]
    unsafe fn excess(block: *const u8, segment: usize, pair: usize) -> (__m512i, __m512i) {
        // SAFETY: the trait's.
        unsafe {
            let both = load(block.add(Layout::<Self>::low(segment) + 64 * pair));
            let nibble = bytes(0xf0);
            (_mm512_and_si512(_mm512_slli_epi16::<4>(both), nibble), _mm512_and_si512(both, nibble))
        }
    }
}

impl Unpack for Q4_1 {
    #[inline(always)]
    unsafe fn codes(block: *const u8, segment: usize, pair: usize) -> (__m512i, __m512i) {
        // SAFETY: the trait's.
        unsafe { low::<Self>(block, segment, pair) }
    }
}

impl Unpack for Q4_K {
    #[inline(always)]
    unsafe fn codes(block: *const u8, segment: usize, pair: usize) -> (__m512i, __m512i) {
        // SAFETY: the trait's.
        unsafe { low::<Self>(block, segment, pair) }
    }
}
