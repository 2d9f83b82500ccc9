//! Eight bits: Q8_0, packed as the excess-128 bytes that the product wants.

use super::*;

impl Unpack for Q8_0 {
    #[inline(always)]
    unsafe fn codes(block: *const u8, segment: usize, pair: usize) -> (__m512i, __m512i) {
        // SAFETY: the trait's.
        unsafe {
            let group = block.add(Layout::<Self>::low(segment) + 128 * pair);
            (load(group), load(group.add(64)))
        }
    }
}
