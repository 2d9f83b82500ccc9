//! Four bits: Q4_0, Q4_1 and Q4_K are the nibbles as they are.

use super::*;

impl Unpack for Q4_0 {
    #[inline(always)]
    unsafe fn pair(block: *const u8, segment: usize, pair: usize, half: usize) -> [__m256i; 2] {
        // SAFETY: the trait's.
        unsafe { nibbles::<Self>(block, segment, pair, half) }
    }
}

impl Unpack for Q4_1 {
    #[inline(always)]
    unsafe fn pair(block: *const u8, segment: usize, pair: usize, half: usize) -> [__m256i; 2] {
        // SAFETY: the trait's.
        unsafe { nibbles::<Self>(block, segment, pair, half) }
    }
}

impl Unpack for Q4_K {
    #[inline(always)]
    unsafe fn pair(block: *const u8, segment: usize, pair: usize, half: usize) -> [__m256i; 2] {
        // SAFETY: the trait's.
        unsafe { nibbles::<Self>(block, segment, pair, half) }
    }
}
