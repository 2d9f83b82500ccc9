//! The loops of AArch64. The instructions that have no stable intrinsic are written as themselves.

use super::{Kind, Path};
use crate::device::software::simd::Level;
use std::arch::{aarch64::*, asm, is_aarch64_feature_detected};
use std::hint::black_box;

/// Independent sums in a loop: enough to hide the latency of four instructions a cycle.
const SUMS: usize = 16;

pub(super) fn paths() -> Vec<Path> {
    let (neon, sdot, smmla) = (
        is_aarch64_feature_detected!("neon"),
        is_aarch64_feature_detected!("dotprod"),
        is_aarch64_feature_detected!("i8mm"),
    );
    let all = &[Level::Neon, Level::NeonDot, Level::NeonI8mm];
    let int8 = |name, levels, operations, turns| Path { name, kind: Kind::Int8, levels, operations, turns };
    let with: [(bool, Path); 4] = [
        // SAFETY: the first field of each pair says that the machine has the instructions; only those are kept.
        (smmla, int8("smmla", &[Level::NeonI8mm], SUMS * 64, |n| unsafe { smmla_loop(n) })),
        // SAFETY: as above.
        (sdot, int8("sdot", &[Level::NeonDot, Level::NeonI8mm], SUMS * 32, |n| unsafe { sdot_loop(n) })),
        // SAFETY: as above.
        (neon, int8("smull + sadalp", all, SUMS * 16, |n| unsafe { smull_loop(n) })),
        (
            neon,
            Path {
                name: "fmla",
                kind: Kind::Float,
                levels: all,
                operations: SUMS * 8,
                // SAFETY: as above.
                turns: |n| unsafe { fmla_loop(n) },
            },
        ),
    ];
    with.into_iter().filter_map(|(has, path)| has.then_some(path)).collect()
}

#[target_feature(enable = "neon,i8mm")]
fn smmla_loop(turns: usize) {
    let x = black_box(vdupq_n_s8(1));
    let mut sums = [vdupq_n_s32(0); SUMS];
    for _ in 0..turns {
        for sum in &mut sums {
            // SAFETY: a pure instruction on registers, present by the function's features.
            unsafe {
                asm!("smmla {0:v}.4s, {1:v}.16b, {1:v}.16b", inout(vreg) *sum, in(vreg) x,
                    options(pure, nomem, nostack, preserves_flags));
            }
        }
    }
    black_box(sums);
}

#[target_feature(enable = "neon,dotprod")]
fn sdot_loop(turns: usize) {
    let x = black_box(vdupq_n_s8(1));
    let mut sums = [vdupq_n_s32(0); SUMS];
    for _ in 0..turns {
        for sum in &mut sums {
            // SAFETY: a pure instruction on registers, present by the function's features.
            unsafe {
                asm!("sdot {0:v}.4s, {1:v}.16b, {1:v}.16b", inout(vreg) *sum, in(vreg) x,
                    options(pure, nomem, nostack, preserves_flags));
            }
        }
    }
    black_box(sums);
}

/// Eight products in 16 bits, added to four sums in pairs.
#[target_feature(enable = "neon")]
fn smull_loop(turns: usize) {
    let (a, mut b) = (black_box(vdup_n_s8(1)), vdup_n_s8(2));
    let mut sums = [vdupq_n_s32(0); SUMS];
    for _ in 0..turns {
        for sum in &mut sums {
            // SAFETY: no instruction at all: what the register holds is hidden, so that no product is taken out of the loop.
            unsafe {
                asm!("/* {0:v} */", inout(vreg) b, options(pure, nomem, nostack, preserves_flags));
            }
            *sum = vpadalq_s16(*sum, vmull_s8(a, b));
        }
    }
    black_box(sums);
}

#[target_feature(enable = "neon")]
fn fmla_loop(turns: usize) {
    let x = black_box(vdupq_n_f32(0.5));
    let mut sums = [vdupq_n_f32(1.0); SUMS];
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = vfmaq_f32(x, *sum, x);
        }
    }
    black_box(sums);
}
