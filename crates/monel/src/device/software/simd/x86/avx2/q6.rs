//! Six bits: Q6_K. Four groups share their high bits, two bits each.

use super::*;

impl Unpack for Q6_K {
    #[inline(always)]
    unsafe fn pair(block: *const u8, segment: usize, pair: usize, half: usize) -> [__m256i; 2] {
        // SAFETY: the trait's.
        unsafe {
            let [even, odd] = nibbles::<Self>(block, segment, pair, half);
            let high = load(block.add(Layout::<Self>::high(segment) + 32 * half));
            let top = bytes(0x30);
            let (a, b) = match pair {
                0 => (_mm256_slli_epi16::<4>(high), _mm256_slli_epi16::<2>(high)),
                _ => (high, _mm256_srli_epi16::<2>(high)),
            };
            [_mm256_or_si256(even, _mm256_and_si256(a, top)), _mm256_or_si256(odd, _mm256_and_si256(b, top))]
        }
    }
}
