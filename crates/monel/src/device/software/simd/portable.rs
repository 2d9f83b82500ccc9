//! Plain Rust: the kernels for machines without the other instruction sets, and what those are compared with.
//!
//! The arrays have fixed sizes and the loops fixed bounds, so that the compiler can use whatever vectors the
//! target's baseline has.

use super::act::{ACT_BYTES, ActBlock, BLOCK};
use super::gemm::Product;
use super::lanes::Lanes;
use super::pack::{D, Layout, M, SCALES, TILE_ROWS};
use crate::quant::format::Format;
use half::{bf16, f16};

/// Eight floats in plain Rust.
#[derive(Clone, Copy)]
pub(super) struct Array([f32; 8]);

impl Array {
    #[inline(always)]
    fn map(self, f: impl Fn(f32) -> f32) -> Self {
        Self(self.0.map(f))
    }

    #[inline(always)]
    fn zip(self, o: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], o.0[i])))
    }
}

// SAFETY of the pointer accesses below: the trait's contract, pointers valid for N values.
impl Lanes for Array {
    const N: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([x; 8])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { p.cast::<[f32; 8]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: see above.
        unsafe { p.cast::<[f32; 8]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: see above.
        Self(unsafe { p.cast::<[u16; 8]>().read_unaligned() }.map(|bits| f16::from_bits(bits).to_f32()))
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        // SAFETY: see above.
        unsafe { p.cast::<[u16; 8]>().write_unaligned(self.0.map(|x| f16::from_f32(x).to_bits())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: see above.
        Self(unsafe { p.cast::<[u16; 8]>().read_unaligned() }.map(|bits| bf16::from_bits(bits).to_f32()))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        // SAFETY: see above.
        Self(unsafe { p.cast::<[i8; 8]>().read_unaligned() }.map(f32::from))
    }
    #[inline(always)]
    unsafe fn splat_f16(p: *const u16) -> Self {
        // SAFETY: see above.
        Self([f16::from_bits(unsafe { p.read_unaligned() }).to_f32(); 8])
    }
    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        self.zip(o, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        self.zip(o, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        self.zip(o, |a, b| a / b)
    }
    /// Rounds twice: a fused operation without the instruction would be a slow library call.
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] * a.0[i] + b.0[i]))
    }
    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        self.zip(o, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(self, o: Self) -> Self {
        self.zip(o, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        self.map(f32::abs)
    }
    #[inline(always)]
    unsafe fn max_bits(self, o: Self) -> Self {
        self.zip(o, |a, b| f32::from_bits(a.to_bits().max(b.to_bits())))
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        self.map(f32::round_ties_even)
    }
    #[inline(always)]
    unsafe fn exp2(self) -> Self {
        self.map(|n| f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let [a, b, c, d, e, f, g, h] = self.0;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }
    #[inline(always)]
    unsafe fn reduce_max(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    unsafe fn reduce_max_bits(self) -> f32 {
        f32::from_bits(self.0.into_iter().fold(0, |m, x| m.max(x.to_bits())))
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8) {
        // SAFETY: see above.
        unsafe { p.cast::<[i8; 8]>().write_unaligned(self.0.map(|x| x as i8)) }
    }
}

/// Columns that share one unpacked segment of weights.
const COLUMNS: usize = 16;

/// The packed matrix product in plain Rust.
///
/// # Safety
/// As [`super::gemm_packed`].
pub(super) unsafe fn gemm<F: Format>(p: &Product) {
    for tile in 0..p.tiles {
        let rows = p.rows_of(tile);
        for first in (0..p.cols).step_by(COLUMNS) {
            let columns = COLUMNS.min(p.cols - first);
            let mut out = [[0f32; TILE_ROWS]; COLUMNS];
            // SAFETY: the caller's promise covers the tile, the columns and their outputs.
            unsafe {
                tile_by_columns::<F>(p, tile, first, &mut out[..columns]);
                for (c, out) in out[..columns].iter().enumerate() {
                    let to = p.out.add((first + c) * p.out_stride + tile * TILE_ROWS);
                    std::ptr::copy_nonoverlapping(out.as_ptr(), to, rows);
                }
            }
        }
    }
}

/// Adds one tile's products with `out.len()` columns from `first` on.
unsafe fn tile_by_columns<F: Format>(p: &Product, tile: usize, first: usize, out: &mut [[f32; TILE_ROWS]]) {
    let mut codes = [[0i16; 4 * TILE_ROWS]; 8];
    for b in 0..p.k / F::VALUES {
        // SAFETY: block b lies inside the tile.
        let block = unsafe {
            let at = p.w.add(tile * p.tile_bytes + b * Layout::<F>::BLOCK_BYTES);
            std::slice::from_raw_parts(at, Layout::<F>::BLOCK_BYTES)
        };
        for s in 0..F::SEGMENTS {
            let (scale, min) = scales::<F>(block, s);
            for (group, codes) in codes[..Layout::<F>::GROUPS].iter_mut().enumerate() {
                unpack::<F>(block, s, group, codes);
            }
            let value = b * F::VALUES + s * F::SEGMENT;
            for (c, out) in out.iter_mut().enumerate() {
                // SAFETY: the column has k values, and `value` is below k.
                let act = unsafe {
                    let row = p.acts.add((first + c) * p.act_stride);
                    row.add(value / BLOCK * ACT_BYTES).cast::<ActBlock>().read_unaligned()
                };
                let half = value % BLOCK / 16;
                let excess = if F::SEGMENT == BLOCK { act.excess } else { act.excess_half[half] };
                // excess is -128 sums, and the centre a power of two up to 128.
                let start = if F::HAS_MIN { 0 } else { excess / 128 * F::CENTRE };
                let acts = act.codes[value % BLOCK..].as_chunks::<4>().0;
                let sums = dot(&codes[..Layout::<F>::GROUPS], acts);
                for r in 0..TILE_ROWS {
                    out[r] += (start + sums[r]) as f32 * (scale[r] * act.d);
                    if F::HAS_MIN {
                        out[r] += min[r] * act.d_sum;
                    }
                }
            }
        }
    }
}

/// The codes of one group.
fn unpack<F: Format>(block: &[u8], segment: usize, group: usize, codes: &mut [i16; 4 * TILE_ROWS]) {
    let (low, high) = (Layout::<F>::low(segment), Layout::<F>::high(segment));
    let (at, shift, mask) = match F::BITS {
        8 => (low + 64 * group, 0, 0xff),
        _ => (low + 64 * (group / 2), 4 * (group % 2), 0x0f),
    };
    for (code, byte) in codes.iter_mut().zip(&block[at..at + 64]) {
        *code = (byte >> shift & mask).into();
    }
    if F::BITS == 5 {
        for (codes, bits) in codes.as_chunks_mut::<8>().0.iter_mut().zip(&block[high + 8 * group..]) {
            for (i, code) in codes.iter_mut().enumerate() {
                *code |= i16::from(bits >> i & 1) << 4;
            }
        }
    }
    if F::BITS == 6 {
        let (at, shift) = (high + 64 * (group / 4), 2 * (group % 4));
        for (code, byte) in codes.iter_mut().zip(&block[at..at + 64]) {
            *code |= i16::from(byte >> shift & 3) << 4;
        }
    }
}

/// Sums of codes times activations, per row, over a segment's groups.
#[cfg(not(target_arch = "x86_64"))]
fn dot(codes: &[[i16; 4 * TILE_ROWS]], acts: &[[i8; 4]]) -> [i32; TILE_ROWS] {
    let mut sums = [0i32; TILE_ROWS];
    for (codes, acts) in codes.iter().zip(acts) {
        for (sum, codes) in sums.iter_mut().zip(codes.as_chunks::<4>().0) {
            for (&code, &act) in codes.iter().zip(acts) {
                *sum += i32::from(code) * i32::from(act);
            }
        }
    }
    sums
}

/// The same with SSE2, which every x86-64 has: compilers do not find its multiply-and-add-pairs by themselves.
#[cfg(target_arch = "x86_64")]
fn dot(codes: &[[i16; 4 * TILE_ROWS]], acts: &[[i8; 4]]) -> [i32; TILE_ROWS] {
    use std::arch::x86_64::*;
    let mut pairs = [[0i32; 4]; TILE_ROWS / 2];
    // SAFETY: SSE2 is part of the architecture; each access is 16 bytes of an array of that size.
    unsafe {
        let mut sums = [_mm_setzero_si128(); TILE_ROWS / 2];
        for (codes, acts) in codes.iter().zip(acts) {
            let [a, b, c, d] = acts.map(i16::from);
            let acts = _mm_setr_epi16(a, b, c, d, a, b, c, d);
            for (sum, codes) in sums.iter_mut().zip(codes.as_chunks::<8>().0) {
                let codes = _mm_loadu_si128(codes.as_ptr().cast());
                *sum = _mm_add_epi32(*sum, _mm_madd_epi16(codes, acts));
            }
        }
        for (pairs, sum) in pairs.iter_mut().zip(sums) {
            _mm_storeu_si128(pairs.as_mut_ptr().cast(), sum);
        }
    }
    let pairs = pairs.as_flattened();
    std::array::from_fn(|r| pairs[2 * r] + pairs[2 * r + 1])
}

/// The rows' scales and minima of one segment.
fn scales<F: Format>(block: &[u8], s: usize) -> ([f32; TILE_ROWS], [f32; TILE_ROWS]) {
    let half = |at: usize, r: usize| f16::from_le_bytes([block[at + 2 * r], block[at + 2 * r + 1]]).to_f32();
    let scale = std::array::from_fn(|r| match Layout::<F>::SUB_SCALES {
        true => half(D, r) * f32::from(block[SCALES + 16 * s + r] as i8),
        false => half(D, r),
    });
    let min = std::array::from_fn(|r| match (F::HAS_MIN, Layout::<F>::SUB_SCALES) {
        (true, true) => half(M, r) * f32::from(block[Layout::<F>::MINS + 16 * s + r]),
        (true, false) => half(M, r),
        (false, _) => 0.0,
    });
    (scale, min)
}
