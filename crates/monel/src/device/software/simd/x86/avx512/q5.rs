//! Five bits: Q5_0, Q5_1 and Q5_K. The fifth bits are mask registers.

use super::*;

/// The mask registers of the two groups of a pair.
#[inline(always)]
unsafe fn masks<F: Format>(block: *const u8, segment: usize, pair: usize) -> (__mmask64, __mmask64) {
    // SAFETY: the caller's, as `Unpack::codes`.
    unsafe {
        let high = block.add(Layout::<F>::high(segment) + 16 * pair).cast::<u64>();
        (high.read_unaligned(), high.add(1).read_unaligned())
    }
}

/// Codes at the bottom of the byte.
#[inline(always)]
unsafe fn low<F: Format>(block: *const u8, segment: usize, pair: usize) -> (__m512i, __m512i) {
    // SAFETY: the caller's, as `Unpack::codes`.
    unsafe {
        let both = load(block.add(Layout::<F>::low(segment) + 64 * pair));
        let (even, odd) = masks::<F>(block, segment, pair);
        let (nibble, fifth) = (bytes(0x0f), bytes(0x10));
        let a = _mm512_and_si512(both, nibble);
        let b = _mm512_and_si512(_mm512_srli_epi16::<4>(both), nibble);
        (_mm512_mask_add_epi8(a, even, a, fifth), _mm512_mask_add_epi8(b, odd, b, fifth))
    }
}

impl Unpack for Q5_0 {
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
            let (even, odd) = masks::<Self>(block, segment, pair);
            let (nibble, fifth) = (bytes(0x78), bytes(0x80));
            let a = _mm512_and_si512(_mm512_slli_epi16::<3>(both), nibble);
            let b = _mm512_and_si512(_mm512_srli_epi16::<1>(both), nibble);
            (_mm512_mask_add_epi8(a, even, a, fifth), _mm512_mask_add_epi8(b, odd, b, fifth))
        }
    }
}

impl Unpack for Q5_1 {
    #[inline(always)]
    unsafe fn codes(block: *const u8, segment: usize, pair: usize) -> (__m512i, __m512i) {
        // SAFETY: the trait's.
        unsafe { low::<Self>(block, segment, pair) }
    }
}

impl Unpack for Q5_K {
    #[inline(always)]
    unsafe fn codes(block: *const u8, segment: usize, pair: usize) -> (__m512i, __m512i) {
        // SAFETY: the trait's.
        unsafe { low::<Self>(block, segment, pair) }
    }
}
