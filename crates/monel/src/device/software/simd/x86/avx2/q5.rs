//! Five bits: Q5_0, Q5_1 and Q5_K, the nibbles and a bit from 32 spread over 32 bytes.

use super::*;

/// Byte i becomes 0x10 where bit i of the 32 bits at `bits` is set.
#[inline(always)]
unsafe fn spread(bits: *const u8) -> __m256i {
    // SAFETY: the caller's: AVX2, and four readable bytes.
    unsafe {
        let all = _mm256_set1_epi32(bits.cast::<i32>().read_unaligned());
        let which =
            _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let chosen = _mm256_and_si256(_mm256_shuffle_epi8(all, which), bit);
        _mm256_and_si256(_mm256_cmpeq_epi8(chosen, bit), bytes(0x10))
    }
}

/// The five-bit codes of a pair of groups.
#[inline(always)]
unsafe fn five<F: Format>(block: *const u8, segment: usize, pair: usize, half: usize) -> [__m256i; 2] {
    // SAFETY: the caller's, as `Unpack::pair`.
    unsafe {
        let [even, odd] = nibbles::<F>(block, segment, pair, half);
        let high = block.add(Layout::<F>::high(segment) + 16 * pair + 4 * half);
        [_mm256_or_si256(even, spread(high)), _mm256_or_si256(odd, spread(high.add(8)))]
    }
}

impl Unpack for Q5_0 {
    #[inline(always)]
    unsafe fn pair(block: *const u8, segment: usize, pair: usize, half: usize) -> [__m256i; 2] {
        // SAFETY: the trait's.
        unsafe { five::<Self>(block, segment, pair, half) }
    }
}

impl Unpack for Q5_1 {
    #[inline(always)]
    unsafe fn pair(block: *const u8, segment: usize, pair: usize, half: usize) -> [__m256i; 2] {
        // SAFETY: the trait's.
        unsafe { five::<Self>(block, segment, pair, half) }
    }
}

impl Unpack for Q5_K {
    #[inline(always)]
    unsafe fn pair(block: *const u8, segment: usize, pair: usize, half: usize) -> [__m256i; 2] {
        // SAFETY: the trait's.
        unsafe { five::<Self>(block, segment, pair, half) }
    }
}
