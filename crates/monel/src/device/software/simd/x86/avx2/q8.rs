//! Eight bits: Q8_0, from excess-128 back to signed bytes.

use super::*;

impl Unpack for Q8_0 {
    #[inline(always)]
    unsafe fn pair(block: *const u8, segment: usize, pair: usize, half: usize) -> [__m256i; 2] {
        // SAFETY: the trait's.
        unsafe {
            let group = block.add(Layout::<Self>::low(segment) + 128 * pair + 32 * half);
            let sign = bytes(0x80);
            [_mm256_xor_si256(load(group), sign), _mm256_xor_si256(load(group.add(64)), sign)]
        }
    }
}
