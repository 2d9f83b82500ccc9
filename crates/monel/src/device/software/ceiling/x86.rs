//! The loops of x86-64.
//!
//! A turn of a loop of products multiplies each of a few registers with each of others, so that no two products are the
//! same; [`opaque`] keeps the compiler from taking them out of the loop.

use super::{Kind, Path};
use crate::device::software::simd::{Isa, Level, Tiles};
use std::arch::{asm, x86_64::*};
use std::hint::black_box;

pub(super) fn paths() -> Vec<Path> {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
    let vnni = avx512 && is_x86_feature_detected!("avx512vnni");
    let short_vnni = avx2 && is_x86_feature_detected!("avxvnni");
    let int8 = |name, levels, operations, turns| Path { name, kind: Kind::Int8, levels, operations, turns };
    let float = |name, levels, operations, turns| Path { name, kind: Kind::Float, levels, operations, turns };
    let amx = Isa::new(Level::Amx).is_some();
    let wide: &[Level] = &[Level::Avx512, Level::Avx512Vnni, Level::Amx];
    let with: [(bool, Path); 8] = [
        // SAFETY: the first field of each pair says that the machine has the instructions; only those are kept.
        (vnni, int8("vpdpbusd zmm", &[Level::Avx512Vnni], 16 * 128, |n| unsafe { vpdpbusd_zmm(n) })),
        // SAFETY: as above.
        (amx, int8("tdpbssd", &[Level::Amx], 4 * 16 * 16 * 128, |n| unsafe { tdpbssd(n) })),
        // SAFETY: as above.
        (avx512, int8("maddubs + madd zmm", &[Level::Avx512], 16 * 128, |n| unsafe { maddubs_zmm(n) })),
        // SAFETY: as above.
        (short_vnni, int8("vpdpbusd ymm", &[Level::Avx2Vnni], 12 * 64, |n| unsafe { vpdpbusd_ymm(n) })),
        // SAFETY: as above.
        (avx2, int8("maddubs + madd ymm", &[Level::Avx2], 8 * 64, |n| unsafe { maddubs_ymm(n) })),
        // SAFETY: as above.
        (avx2, int8("maddubs, short sums ymm", &[Level::Avx2], 8 * 8 * 64, |n| unsafe { maddubs_short(n) })),
        // SAFETY: as above.
        (avx512, float("fma zmm", wide, 16 * 32, |n| unsafe { fma_zmm(n) })),
        // SAFETY: as above.
        (avx2, float("fma ymm", &[Level::Avx2, Level::Avx2Vnni], 12 * 16, |n| unsafe { fma_ymm(n) })),
    ];
    with.into_iter().filter_map(|(has, path)| has.then_some(path)).collect()
}

/// A register whose content the compiler no longer knows, at no cost.
macro_rules! opaque {
    ($class:ident, $($x:expr),*) => {
        // SAFETY: no instruction at all: a comment that takes a register and gives it back.
        $(unsafe { asm!("/* {0} */", inout($class) $x, options(pure, nomem, nostack, preserves_flags)) };)*
    };
}

/// Four products of full depth a turn, from each of two tiles with each of two others.
///
/// # Safety
/// The machine has [`Level::Amx`].
unsafe fn tdpbssd(turns: usize) {
    let ones = [1u8; 1024];
    // SAFETY: the caller's; the loads read 16 rows of 64 bytes.
    unsafe {
        let _tiles = Tiles::new(64);
        asm!(
            "tileloadd tmm4, [{ones} + {line}*1]",
            "tileloadd tmm5, [{ones} + {line}*1]",
            "tileloadd tmm6, [{ones} + {line}*1]",
            "tileloadd tmm7, [{ones} + {line}*1]",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tdpbssd tmm0, tmm4, tmm6",
            "tdpbssd tmm1, tmm4, tmm7",
            "tdpbssd tmm2, tmm5, tmm6",
            "tdpbssd tmm3, tmm5, tmm7",
            "dec {turns}",
            "jnz 2b",
            ones = in(reg) ones.as_ptr(),
            line = in(reg) 64usize,
            turns = inout(reg) turns.max(1) => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, readonly),
        );
    }
}

#[target_feature(enable = "avx512f,avx512vnni")]
fn vpdpbusd_zmm(turns: usize) {
    let x = black_box(_mm512_set1_epi8(1));
    let mut sums = [_mm512_setzero_si512(); 16];
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = _mm512_dpbusd_epi32(*sum, x, x);
        }
    }
    black_box(sums);
}

#[target_feature(enable = "avx2,avxvnni")]
fn vpdpbusd_ymm(turns: usize) {
    let x = black_box(_mm256_set1_epi8(1));
    let mut sums = [_mm256_setzero_si256(); 12];
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = _mm256_dpbusd_avx_epi32(*sum, x, x);
        }
    }
    black_box(sums);
}

#[target_feature(enable = "avx512f,avx512bw")]
fn maddubs_zmm(turns: usize) {
    let ones = black_box(_mm512_set1_epi16(1));
    let mut sums = [_mm512_setzero_si512(); 16];
    let (mut a, mut b) = ([_mm512_set1_epi8(1); 4], [_mm512_set1_epi8(2); 4]);
    for _ in 0..turns {
        opaque!(zmm_reg, a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]);
        for (i, sum) in sums.iter_mut().enumerate() {
            let pairs = _mm512_maddubs_epi16(a[i / 4], b[i % 4]);
            *sum = _mm512_add_epi32(*sum, _mm512_madd_epi16(pairs, ones));
        }
    }
    black_box(sums);
}

#[target_feature(enable = "avx2")]
fn maddubs_ymm(turns: usize) {
    let ones = black_box(_mm256_set1_epi16(1));
    let mut sums = [_mm256_setzero_si256(); 8];
    let (mut a, mut b) = ([_mm256_set1_epi8(1); 2], [_mm256_set1_epi8(2); 4]);
    for _ in 0..turns {
        opaque!(ymm_reg, a[0], a[1], b[0], b[1], b[2], b[3]);
        for (i, sum) in sums.iter_mut().enumerate() {
            let pairs = _mm256_maddubs_epi16(a[i / 4], b[i % 4]);
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
        }
    }
    black_box(sums);
}

/// What four-bit weights allow: eight products are summed in 16 bits before they are widened.
#[target_feature(enable = "avx2")]
fn maddubs_short(turns: usize) {
    let ones = black_box(_mm256_set1_epi16(1));
    // The wide sums take turns: one is behind each group of eight products.
    let mut sums = [_mm256_setzero_si256(); 8];
    let (mut a, mut b) = ([_mm256_set1_epi8(1); 2], [_mm256_set1_epi8(2); 4]);
    for _ in 0..turns {
        let mut short = [_mm256_setzero_si256(); 8];
        for _ in 0..8 {
            opaque!(ymm_reg, a[0], a[1], b[0], b[1], b[2], b[3]);
            for (i, sum) in short.iter_mut().enumerate() {
                *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(a[i / 4], b[i % 4]));
            }
        }
        for (sum, short) in sums.iter_mut().zip(short) {
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(short, ones));
        }
    }
    black_box(sums);
}

#[target_feature(enable = "avx512f")]
fn fma_zmm(turns: usize) {
    let x = black_box(_mm512_set1_ps(0.5));
    let mut sums = [_mm512_set1_ps(1.0); 16];
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, x, x);
        }
    }
    black_box(sums);
}

#[target_feature(enable = "avx2,fma")]
fn fma_ymm(turns: usize) {
    let x = black_box(_mm256_set1_ps(0.5));
    let mut sums = [_mm256_set1_ps(1.0); 12];
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, x, x);
        }
    }
    black_box(sums);
}
