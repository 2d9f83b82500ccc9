//! Quantized activations "Q8A": the other operand of the packed matrix products.
//!
//! A row is cut into blocks of 32 values, each with its own scale `d = absmax / 127`. Beside the codes lie the sums
//! with which a kernel takes out the weights' offsets and minima: they belong to the activations alone, so they
//! are computed once per row and not once per weight row.

use super::Isa;
use super::lanes::{Lanes, dispatch};

/// Values in an activation block.
pub const BLOCK: usize = 32;

/// One block of a quantized activation row. Its size is a multiple of four, so no field crosses a cache line.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ActBlock {
    /// value = d * codes, codes in -127..=127.
    pub codes: [i8; BLOCK],
    /// Scale.
    pub d: f32,
    /// d times the sum of the codes: multiplies the weights' minima.
    pub d_sum: f32,
    /// -128 times the sum of the codes: what weights stored as excess-128 bytes give too much.
    pub excess: i32,
    /// The same for the first and the second half.
    pub excess_half: [i32; 2],
}

pub(crate) const ACT_BYTES: usize = size_of::<ActBlock>();

/// Bytes of a quantized row of `k` values (a multiple of 32), rounded up to 64.
pub const fn act_row_bytes(k: usize) -> usize {
    (k / BLOCK * ACT_BYTES).next_multiple_of(64)
}

/// Why a row of activations could not be quantized.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ActError {
    /// Not a multiple of 32 values.
    #[error("an activation row of {k} values does not divide into blocks of 32; pad it with zeros")]
    PartialBlock {
        /// Values given.
        k: usize,
    },
    /// Too few bytes for the row.
    #[error("a quantized activation row takes {expected} bytes, but {found} were given")]
    TooShort {
        /// Bytes of the row.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
}

/// Quantizes one row. All instruction sets give the same bytes.
///
/// `dst` is at least [`act_row_bytes`] long; kernels want rows at multiples of 64 bytes for speed, not for
/// correctness. A block that holds an infinity or a NaN makes the products it takes part in NaN.
///
/// # Errors
/// [`ActError`] when the lengths do not fit; nothing is written then.
pub fn quantize_act_row(isa: Isa, src: &[f32], dst: &mut [u8]) -> Result<(), ActError> {
    let k = src.len();
    if !k.is_multiple_of(BLOCK) {
        return Err(ActError::PartialBlock { k });
    }
    let expected = act_row_bytes(k);
    if dst.len() < expected {
        return Err(ActError::TooShort { expected, found: dst.len() });
    }
    quantize_act_blocks(isa, src, dst)
}

/// Quantizes whole blocks, which may be a part of a row: as [`quantize_act_row`], without what may follow a row's last block.
///
/// # Errors
/// As there.
pub fn quantize_act_blocks(isa: Isa, src: &[f32], dst: &mut [u8]) -> Result<(), ActError> {
    let k = src.len();
    if !k.is_multiple_of(BLOCK) {
        return Err(ActError::PartialBlock { k });
    }
    let expected = k / BLOCK * ACT_BYTES;
    if dst.len() < expected {
        return Err(ActError::TooShort { expected, found: dst.len() });
    }
    let dst = &mut dst[..expected];
    dispatch!(isa, quantize(src: &[f32], dst: &mut [u8]));
    Ok(())
}

/// The body of [`quantize_act_row`]; `dst` holds exactly the blocks. Four blocks share the work across vectors.
#[inline(always)]
fn quantize<L: Lanes>(src: &[f32], dst: &mut [u8]) {
    let (fours, rest) = src.as_chunks::<{ 4 * BLOCK }>();
    let (to_fours, to_rest) = dst.split_at_mut(fours.len() * 4 * ACT_BYTES);
    for (src, dst) in fours.iter().zip(to_fours.as_chunks_mut::<{ 4 * ACT_BYTES }>().0) {
        // SAFETY: `dispatch!` runs this with L's instructions.
        if !unsafe { four_blocks::<L>(src, dst) } {
            for (src, dst) in src.as_chunks().0.iter().zip(dst.as_chunks_mut().0) {
                // SAFETY: as above.
                unsafe { one_block::<L>(src, dst) };
            }
        }
    }
    for (src, dst) in rest.as_chunks().0.iter().zip(to_rest.as_chunks_mut().0) {
        // SAFETY: as above.
        unsafe { one_block::<L>(src, dst) };
    }
}

/// Largest values of blocks that need no second look: finite, and `127 / x` is too.
const ORDINARY: std::ops::Range<f32> = 1e-30..f32::INFINITY;

/// Four blocks at once, or false where one of them is out of the ordinary.
#[inline(always)]
unsafe fn four_blocks<L: Lanes>(src: &[f32; 4 * BLOCK], dst: &mut [u8; 4 * ACT_BYTES]) -> bool {
    // SAFETY: the caller has L's instructions; all offsets stay inside `src` and `dst`.
    unsafe {
        let zero = L::splat(0.0);
        let mut largest = [zero; 4];
        for (b, largest) in largest.iter_mut().enumerate() {
            for i in (0..BLOCK).step_by(L::N) {
                *largest = L::load(src.as_ptr().add(b * BLOCK + i)).abs().max_bits(*largest);
            }
        }
        let largest = L::max4_bits(largest);
        let ordinary = |x: &f32| ORDINARY.contains(x);
        // without short cuts, which would be branches
        if !(ordinary(&largest[0]) & ordinary(&largest[1]) & ordinary(&largest[2]) & ordinary(&largest[3])) {
            return false;
        }
        let (d, inverse) = (largest.map(|x| x / 127.0), largest.map(|x| 127.0 / x));
        let mut sums = [[zero; 4]; 2];
        for b in 0..4 {
            let inverse = L::splat(inverse[b]);
            for (half, sums) in sums.iter_mut().enumerate() {
                for i in (half * 16..half * 16 + 16).step_by(L::N) {
                    let steps = L::load(src.as_ptr().add(b * BLOCK + i)).mul(inverse).round();
                    steps.store_i8(dst.as_mut_ptr().add(b * ACT_BYTES + i).cast());
                    sums[b] = sums[b].add(steps);
                }
            }
        }
        let [first, second] = [L::sum4(sums[0]), L::sum4(sums[1])];
        for b in 0..4 {
            let block = dst.as_mut_ptr().add(b * ACT_BYTES).cast::<ActBlock>();
            finish(block, d[b], [first[b], second[b]]);
        }
        true
    }
}

/// One block, whatever it holds.
#[inline(always)]
unsafe fn one_block<L: Lanes>(src: &[f32; BLOCK], dst: &mut [u8; ACT_BYTES]) {
    // SAFETY: as in `four_blocks`.
    unsafe {
        let at = |i: usize| L::load(src.as_ptr().add(i));
        let largest = (0..BLOCK).step_by(L::N).fold(L::splat(0.0), |m, i| m.max_bits(at(i).abs()));
        let largest = largest.reduce_max_bits();
        let d = if largest.is_finite() { largest / 127.0 } else { f32::NAN };
        let inverse = if largest.is_finite() && largest > 0.0 { 127.0 / largest } else { 0.0 };
        // 127 / a subnormal overflows: such a block is all zeros at this precision.
        let inverse = L::splat(if inverse.is_finite() { inverse } else { 0.0 });
        let codes = dst.as_mut_ptr().cast::<i8>();
        let mut sums = [0.0f32; 2];
        for (half, sum) in sums.iter_mut().enumerate() {
            let mut total = L::splat(0.0);
            for i in (half * 16..half * 16 + 16).step_by(L::N) {
                // NaN and infinities only occur with d = NaN; their codes do not matter then.
                let steps = at(i).mul(inverse).round();
                steps.store_i8(codes.add(i));
                total = total.add(steps);
            }
            *sum = total.sum();
        }
        finish(dst.as_mut_ptr().cast(), d, sums);
    }
}

/// Writes what stands beside the codes, from the scale and the sums of the halves' codes.
#[inline(always)]
unsafe fn finish(block: *mut ActBlock, d: f32, sums: [f32; 2]) {
    let excess = sums.map(|sum| -128 * sum as i32);
    // SAFETY: the caller's, of a whole block.
    unsafe {
        (&raw mut (*block).d).write_unaligned(d);
        (&raw mut (*block).d_sum).write_unaligned(d * (sums[0] + sums[1]));
        (&raw mut (*block).excess).write_unaligned(excess[0] + excess[1]);
        (&raw mut (*block).excess_half).write_unaligned(excess);
    }
}

/// The value of each element as the kernels see it, in `f64`: for the reference.
///
/// # Errors
/// [`ActError`] when the lengths do not fit.
pub fn dequantize_act_row(src: &[u8], dst: &mut [f64]) -> Result<(), ActError> {
    let k = dst.len();
    if !k.is_multiple_of(BLOCK) {
        return Err(ActError::PartialBlock { k });
    }
    let expected = k / BLOCK * ACT_BYTES;
    if src.len() < expected {
        return Err(ActError::TooShort { expected, found: src.len() });
    }
    for (src, dst) in src.as_chunks::<ACT_BYTES>().0.iter().zip(dst.as_chunks_mut::<BLOCK>().0) {
        let d = f32::from_ne_bytes([src[32], src[33], src[34], src[35]]);
        for (dst, &code) in dst.iter_mut().zip(src) {
            *dst = f64::from(d) * f64::from(code as i8);
        }
    }
    Ok(())
}
