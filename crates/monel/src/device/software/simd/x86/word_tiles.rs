//! Products of 16-bit integers on AMX, which multiplies bytes: a word is a signed high and an unsigned low byte, so a
//! product of words is one of high bytes, two mixed ones and one of low bytes, in three sums that are shifted together.
//! Everything is exact, so the results have the bits of the other levels.

use super::super::attention::words::{Columns, Rows, Words};
use super::super::lanes::Lanes;
use super::F32x16;
use super::tiles::Tiles;
use std::arch::{asm, x86_64::*};
use std::mem::MaybeUninit;

/// Rows and lanes of a tile, and values along k.
const SIDE: usize = 16;
const DEPTH: usize = 64;
/// Rows of a call, and values along k, that are kept taken apart.
const ROWS: usize = 128;
const VALUES: usize = 512;

/// 16 rows of 64 bytes, or 16 lanes of 64 bytes four by four.
#[repr(C, align(64))]
struct Bytes([[u8; DEPTH]; SIDE]);

/// High and low bytes.
#[repr(C)]
struct Parts {
    high: Bytes,
    low: Bytes,
}

/// The products of high bytes, the mixed ones, those of low bytes.
#[repr(C, align(64))]
struct Sums([[[i32; SIDE]; SIDE]; 3]);

struct Scratch {
    rows: [MaybeUninit<Parts>; ROWS / SIDE * (VALUES / DEPTH)],
    lanes: [MaybeUninit<Parts>; VALUES / DEPTH],
    sums: [MaybeUninit<Sums>; 2],
}

/// Results from which taking words apart pays.
const ENOUGH: usize = 4096;

/// How many rows, the first ones, [`product`] does: the others are too few for a tile, or all too short or too long.
pub(in super::super) fn rows_of(a: &Rows, lanes: usize) -> usize {
    let reachable = a.step.1 == 1 || a.step.0 == 1;
    let fits = reachable && 2 * a.size.1 <= VALUES && a.size.1 > 0 && a.size.0 * lanes >= ENOUGH;
    if fits { a.size.0.min(ROWS) / SIDE * SIDE } else { 0 }
}

/// The first [`rows_of`] rows of `attention::words::product`.
///
/// # Safety
/// As there; the machine has AVX-512 F, BW, VL and DQ, and AMX is granted.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
pub(in super::super) unsafe fn product(a: Rows, b: Columns, c: *mut f32, add: bool) {
    let mut scratch = MaybeUninit::<Scratch>::uninit();
    let scratch = scratch.as_mut_ptr();
    let (rows, steps) = (rows_of(&a, b.lanes) / SIDE, (2 * a.size.1).div_ceil(DEPTH));
    // SAFETY: the caller's; what is taken apart fits the scratch memory, as `rows_of` saw to it, and is all written
    // before the tiles read it.
    unsafe {
        let _tiles = Tiles::new(DEPTH as u8);
        let left = (&raw mut (*scratch).rows).cast::<Parts>();
        let right = (&raw mut (*scratch).lanes).cast::<Parts>();
        let sums = (&raw mut (*scratch).sums).cast::<Sums>();
        for group in 0..rows {
            for step in 0..steps {
                let to = left.add(group * steps + step);
                let pairs = a.pairs.add(group * SIDE * a.step.0 + step * DEPTH / 2 * a.step.1);
                let count = (a.size.1 - step * DEPTH / 2).min(DEPTH / 2);
                match a.step.1 {
                    1 => take_rows(pairs, a.step.0, count, to),
                    _ => {
                        take_lanes(pairs, a.step.1, count, to);
                        transpose(&raw mut (*to).high);
                        transpose(&raw mut (*to).low);
                    }
                }
            }
        }
        for at in (0..b.lanes).step_by(SIDE) {
            for step in 0..steps {
                let count = (a.size.1 - step * DEPTH / 2).min(DEPTH / 2);
                take_lanes(b.pairs.add(step * DEPTH / 2 * b.lanes + at), b.lanes, count, right.add(step));
            }
            // The sums of a group of rows are put together while the next group's are made.
            for group in 0..=rows {
                if group < rows {
                    multiply(left.add(group * steps), right, steps, sums.add(group % 2));
                }
                if group > 0 {
                    finish(&a, &b, (group - 1) * SIDE, at, sums.add((group - 1) % 2), c, add);
                }
            }
        }
    }
}

/// 16 rows of up to 32 pairs side by side, `step` pairs apart, filled up with zeros.
///
/// # Safety
/// The pairs are there, and `to` can be written.
#[inline(always)]
unsafe fn take_rows(pairs: *const i32, step: usize, count: usize, to: *mut Parts) {
    for r in 0..SIDE {
        // SAFETY: the caller's.
        unsafe {
            for half in 0..2 {
                let mask = ((1u32 << count.saturating_sub(16 * half).min(16)) - 1) as __mmask16;
                let words = _mm512_maskz_loadu_epi32(mask, pairs.wrapping_add(r * step + 16 * half));
                let low = (&raw mut (*to).low.0[r]).cast::<__m256i>().add(half);
                let high = (&raw mut (*to).high.0[r]).cast::<__m256i>().add(half);
                _mm256_store_si256(low, _mm512_cvtepi16_epi8(words));
                _mm256_store_si256(high, _mm512_cvtepi16_epi8(_mm512_srai_epi16::<8>(words)));
            }
        }
    }
}

/// Which bytes of four pairs go to the low half of their lanes, and which to the high half; the others become zeros.
const LOW: [[u8; 16]; 2] = [picked([0, 2, NONE, NONE]), picked([NONE, NONE, 0, 2])];
const HIGH: [[u8; 16]; 2] = [picked([1, 3, NONE, NONE]), picked([NONE, NONE, 1, 3])];
const NONE: u8 = 0x80;

const fn picked(bytes: [u8; 4]) -> [u8; 16] {
    let (mut all, mut i) = ([NONE; 16], 0);
    while i < 16 {
        if bytes[i % 4] != NONE {
            all[i] = (i / 4 * 4) as u8 + bytes[i % 4];
        }
        i += 1;
    }
    all
}

/// Up to 32 pairs of 16 lanes, `step` pairs apart along k, filled up with zeros: four bytes of a lane together.
///
/// # Safety
/// As [`take_rows`].
#[inline(always)]
unsafe fn take_lanes(pairs: *const i32, step: usize, count: usize, to: *mut Parts) {
    // SAFETY: the caller's.
    unsafe {
        let bytes = |at: &[u8; 16]| _mm512_broadcast_i32x4(_mm_loadu_si128(at.as_ptr().cast()));
        let (low, high) = (LOW.each_ref().map(bytes), HIGH.each_ref().map(bytes));
        for four in 0..SIDE {
            let pair = |i: usize| match 2 * four + i < count {
                true => _mm512_loadu_si512(pairs.add((2 * four + i) * step).cast()),
                false => _mm512_setzero_si512(),
            };
            let (first, second) = (pair(0), pair(1));
            let part = |at: [__m512i; 2]| {
                _mm512_or_si512(_mm512_shuffle_epi8(first, at[0]), _mm512_shuffle_epi8(second, at[1]))
            };
            _mm512_store_si512((&raw mut (*to).low.0[four]).cast(), part(low));
            _mm512_store_si512((&raw mut (*to).high.0[four]).cast(), part(high));
        }
    }
}

/// 16 times 16 groups of four bytes: rows become columns.
///
/// # Safety
/// `at` is initialized.
#[inline(always)]
unsafe fn transpose(at: *mut Bytes) {
    // SAFETY: the caller's.
    unsafe {
        let row = |i: usize| (&raw mut (*at).0[i]).cast::<__m512i>();
        // four by four inside of the registers' quarters
        let mut fours = [_mm512_setzero_si512(); SIDE];
        for i in (0..SIDE).step_by(4) {
            let [a, b, c, d] = [0, 1, 2, 3].map(|j| row(i + j).read());
            let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
            let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
            fours[i] = _mm512_unpacklo_epi64(ab, cd);
            fours[i + 1] = _mm512_unpackhi_epi64(ab, cd);
            fours[i + 2] = _mm512_unpacklo_epi64(ab_high, cd_high);
            fours[i + 3] = _mm512_unpackhi_epi64(ab_high, cd_high);
        }
        // then the quarters
        for j in 0..4 {
            let [a, b, c, d] = [fours[j], fours[4 + j], fours[8 + j], fours[12 + j]];
            let (even_ab, odd_ab) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
            let (even_cd, odd_cd) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
            row(j).write(_mm512_shuffle_i32x4::<0x88>(even_ab, even_cd));
            row(4 + j).write(_mm512_shuffle_i32x4::<0x88>(odd_ab, odd_cd));
            row(8 + j).write(_mm512_shuffle_i32x4::<0xdd>(even_ab, even_cd));
            row(12 + j).write(_mm512_shuffle_i32x4::<0xdd>(odd_ab, odd_cd));
        }
    }
}

/// The three sums of 16 rows and 16 lanes.
///
/// # Safety
/// The parts are initialized, `sums` can be written, and this thread's tiles have shapes for 64 values.
#[inline(always)]
unsafe fn multiply(rows: *const Parts, lanes: *const Parts, steps: usize, sums: *mut Sums) {
    // SAFETY: the caller's; the tiles are this function's until they are stored.
    unsafe {
        asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", options(nostack, preserves_flags, nomem));
        for step in 0..steps {
            let (rows, lanes) = (rows.add(step), lanes.add(step));
            asm!(
                "tileloadd tmm4, [{a} + {line}*1]",
                "tileloadd tmm5, [{b} + {line}*1]",
                "tileloadd tmm6, [{c} + {line}*1]",
                "tileloadd tmm7, [{d} + {line}*1]",
                "tdpbssd tmm0, tmm4, tmm6",
                "tdpbsud tmm1, tmm4, tmm7",
                "tdpbusd tmm1, tmm5, tmm6",
                "tdpbuud tmm2, tmm5, tmm7",
                a = in(reg) &raw const (*rows).high,
                b = in(reg) &raw const (*rows).low,
                c = in(reg) &raw const (*lanes).high,
                d = in(reg) &raw const (*lanes).low,
                line = in(reg) DEPTH,
                options(nostack, preserves_flags, readonly),
            );
        }
        asm!(
            "tilestored [{a} + {line}*1], tmm0",
            "tilestored [{b} + {line}*1], tmm1",
            "tilestored [{c} + {line}*1], tmm2",
            a = in(reg) &raw mut (*sums).0[0],
            b = in(reg) &raw mut (*sums).0[1],
            c = in(reg) &raw mut (*sums).0[2],
            line = in(reg) 4 * SIDE,
            options(nostack, preserves_flags),
        );
    }
}

/// From three sums to results, as `attention::words::product` makes them.
///
/// # Safety
/// As [`product`], for 16 rows from row `i` and 16 lanes from lane `at`.
#[inline(always)]
unsafe fn finish(a: &Rows, b: &Columns, i: usize, at: usize, sums: *const Sums, c: *mut f32, add: bool) {
    // SAFETY: the caller's.
    unsafe {
        let scale = F32x16::load(b.scales.add(at));
        for r in 0..SIDE {
            let [high, mixed, low] =
                [0, 1, 2].map(|part| _mm512_load_si512((&raw const (*sums).0[part][r]).cast()));
            let sum = _mm512_add_epi32(_mm512_slli_epi32::<8>(high), mixed);
            let x = F32x16::of_sums(_mm512_add_epi32(_mm512_slli_epi32::<8>(sum), low));
            let by = scale.mul(F32x16::splat(*a.scales.add(i + r)));
            let to = c.add((i + r) * b.lanes + at);
            if add { x.fma(by, F32x16::load(to)) } else { x.mul(by) }.store(to);
        }
    }
}
