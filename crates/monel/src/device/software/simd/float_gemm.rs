//! Matrix products of float weights (F32, F16, BF16) with `f32` activations, accumulated in `f32`.
//!
//! Weights stay as they lie in the file, row by row. A block of rows by columns shares its loads: each vector of
//! weights serves several columns and each vector of activations several rows.

use super::Isa;
use super::lanes::{Lanes, dispatch};
use crate::quant::BlockType;

/// One product, as the body takes it.
#[derive(Clone, Copy)]
struct Product {
    k: usize,
    w: *const u8,
    w_stride: usize,
    rows: usize,
    x: *const f32,
    x_stride: usize,
    cols: usize,
    out: *mut f32,
    out_stride: usize,
}

/// `out[c * out_stride + r] = sum over i < k of weight[r][i] * x[c][i]` for `rows` rows and `cols` columns.
///
/// Weight row r begins `r * w_row_stride_bytes` after `w`; column c of the activations `c * x_stride` floats after
/// `x`. Any `k`, any alignment of the weights. Single-threaded; split by rows. Quantized types give `false` and nothing
/// is computed: they go through [`super::gemm_packed`].
///
/// # Safety
/// All of the memory described is valid and initialized, `x` and `out` are aligned to four bytes, and nobody else
/// accesses the written part of `out` during the call.
#[allow(clippy::too_many_arguments)] // the parts of a matrix product
#[must_use = "false means that nothing was computed"]
pub unsafe fn gemm_float(
    isa: Isa,
    ty: BlockType,
    k: usize,
    w: *const u8,
    w_row_stride_bytes: usize,
    rows: usize,
    x: *const f32,
    x_stride: usize,
    cols: usize,
    out: *mut f32,
    out_stride: usize,
) -> bool {
    let p = Product { k, w, w_stride: w_row_stride_bytes, rows, x, x_stride, cols, out, out_stride };
    match ty {
        BlockType::F32 => dispatch!(isa, all_f32(p: Product)),
        BlockType::F16 => dispatch!(isa, all_f16(p: Product)),
        BlockType::BF16 => dispatch!(isa, all_bf16(p: Product)),
        _ => return false,
    }
    true
}

/// How a weight type is loaded.
trait Weights {
    unsafe fn load<L: Lanes>(row: *const u8, i: usize) -> L;
    unsafe fn load_part<L: Lanes>(row: *const u8, i: usize, n: usize) -> L;
}

macro_rules! weights {
    ($name:ident, $all:ident, $element:ty, $load:ident, $part:ident $(, $fill:literal)?) => {
        struct $name;

        impl Weights for $name {
            #[inline(always)]
            unsafe fn load<L: Lanes>(row: *const u8, i: usize) -> L {
                // SAFETY: the caller's: L's instructions and N weights at i.
                unsafe { L::$load(row.cast::<$element>().add(i)) }
            }
            #[inline(always)]
            unsafe fn load_part<L: Lanes>(row: *const u8, i: usize, n: usize) -> L {
                // SAFETY: the caller's: L's instructions and n weights at i.
                unsafe { L::$part(row.cast::<$element>().add(i), n $(, $fill)?) }
            }
        }

        #[inline(always)]
        fn $all<L: Lanes>(p: Product) {
            // SAFETY: `gemm_float`'s caller vouches for the memory, `dispatch!` for the instructions.
            unsafe { all::<$name, L>(p) }
        }
    };
}

weights!(F32, all_f32, f32, load, load_part, 0.0);
weights!(F16, all_f16, u16, load_f16, load_f16_part);
weights!(BF16, all_bf16, u16, load_bf16, load_bf16_part);

/// Cuts the product into register blocks: 4 x 4 with 32 registers (AVX-512, NEON), 2 x 4 with 16.
#[inline(always)]
unsafe fn all<W: Weights, L: Lanes>(p: Product) {
    let high = if L::N == 8 { 2 } else { 4 };
    let mut r = 0;
    while r < p.rows {
        let tall = p.rows - r >= high;
        let mut c = 0;
        while c < p.cols {
            let wide = p.cols - c >= 4;
            // SAFETY: rows r.. and columns c.. of the block exist.
            unsafe {
                match (tall, wide) {
                    (true, true) if high == 2 => block::<W, L, 2, 4>(p, r, c),
                    (true, true) => block::<W, L, 4, 4>(p, r, c),
                    (true, false) if high == 2 => block::<W, L, 2, 1>(p, r, c),
                    (true, false) => block::<W, L, 4, 1>(p, r, c),
                    (false, true) => block::<W, L, 1, 4>(p, r, c),
                    (false, false) => block::<W, L, 1, 1>(p, r, c),
                }
            }
            c += if wide { 4 } else { 1 };
        }
        r += if tall { high } else { 1 };
    }
}

/// `R` rows by `C` columns from row `r` and column `c` on.
#[inline(always)]
unsafe fn block<W: Weights, L: Lanes, const R: usize, const C: usize>(p: Product, r: usize, c: usize) {
    // SAFETY: the caller's; reads stay below k in every row and column.
    unsafe {
        let w: [*const u8; R] = std::array::from_fn(|i| p.w.add((r + i) * p.w_stride));
        let x: [*const f32; C] = std::array::from_fn(|j| p.x.add((c + j) * p.x_stride));
        let mut sums = [[L::splat(0.0); C]; R];
        let mut add = |weights: [L; R], values: [L; C]| {
            for (sums, w) in sums.iter_mut().zip(weights) {
                for (sum, x) in sums.iter_mut().zip(values) {
                    *sum = w.fma(x, *sum);
                }
            }
        };
        let mut i = 0;
        while i + L::N <= p.k {
            add(w.map(|row| W::load::<L>(row, i)), x.map(|col| L::load(col.add(i))));
            i += L::N;
        }
        if i < p.k {
            let n = p.k - i;
            add(w.map(|row| W::load_part::<L>(row, i, n)), x.map(|col| L::load_part(col.add(i), n, 0.0)));
        }
        for (i, sums) in sums.into_iter().enumerate() {
            for (j, sum) in sums.into_iter().enumerate() {
                *p.out.add((c + j) * p.out_stride + r + i) = sum.sum();
            }
        }
    }
}
