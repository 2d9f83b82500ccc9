//! The packed matrix product: arguments, blocking for the caches, and the choice of the kernel.
//!
//! The work is cut so that a panel of activation columns stays in the first cache while the weights of a group of
//! tiles stream past it from the second: weights are the smaller operand per multiply-add. With one panel or
//! fewer the weights are read once, strictly forwards.

use super::pack::{TILE_ROWS, tile_bytes};
use super::{Isa, Level};
use crate::quant::{BlockType, with_format};

/// Packed weights of one group of tiles: small enough to stay in a second-level cache beside the activations.
const GROUP_BYTES: usize = 256 << 10;

/// One product, as the kernels take it.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub k: usize,
    pub w: *const u8,
    pub tile_bytes: usize,
    pub tiles: usize,
    pub valid_rows: usize,
    pub acts: *const u8,
    pub act_stride: usize,
    pub cols: usize,
    pub out: *mut f32,
    pub out_stride: usize,
}

impl Product {
    /// Rows of a tile that exist, 1 to 16.
    #[inline(always)]
    pub fn rows_of(&self, tile: usize) -> usize {
        (self.valid_rows - tile * TILE_ROWS).min(TILE_ROWS)
    }

    /// Tiles that stay in a cache together.
    #[inline(always)]
    fn group(&self) -> usize {
        (GROUP_BYTES / self.tile_bytes.max(1)).max(1)
    }

    /// Calls `f` with tile, first column and number of columns for pieces that cover the product; the numbers of
    /// columns come from `widths`, widest first and ending in 1.
    #[inline(always)]
    pub fn for_each_piece(&self, widths: &[usize], mut f: impl FnMut(usize, usize, usize)) {
        let group = self.group();
        for start in (0..self.tiles).step_by(group) {
            let end = self.tiles.min(start + group);
            let mut col = 0;
            while col < self.cols {
                let width = widths.iter().copied().find(|&w| w <= self.cols - col).unwrap_or(1);
                for tile in start..end {
                    f(tile, col, width);
                }
                col += width;
            }
        }
    }
}

/// What only the kernels of x86-64 ask for.
#[cfg(target_arch = "x86_64")]
impl Product {
    /// Asks to own the lines that the results of these tiles and columns will be stored to. A store that has to wait for
    /// its line holds up all that follow, totals in the first-level cache among them.
    #[inline(always)]
    pub fn claim(&self, tile: usize, tiles: usize, cols: std::ops::Range<usize>) {
        for c in cols {
            for tile in tile..tile + tiles {
                let line = self.out.wrapping_add(c * self.out_stride + tile * TILE_ROWS);
                // SAFETY: a prefetch changes nothing and cannot fault; every processor with AVX2 takes the instruction.
                unsafe {
                    std::arch::asm!("prefetchw [{0}]", in(reg) line, options(nostack, preserves_flags, readonly));
                }
            }
        }
    }

    /// Calls `f` with tiles and columns for pieces that cover the product: up to `high` tiles times about equally many
    /// columns, `wide` at most.
    #[inline(always)]
    pub fn for_each_strip(
        &self,
        (high, wide): (usize, usize),
        mut f: impl FnMut(std::ops::Range<usize>, std::ops::Range<usize>),
    ) {
        let group = self.group().next_multiple_of(high);
        let strips = self.cols.div_ceil(wide);
        for start in (0..self.tiles).step_by(group) {
            let end = self.tiles.min(start + group);
            for strip in 0..strips {
                let cols = strip * self.cols / strips..(strip + 1) * self.cols / strips;
                for tile in (start..end).step_by(high) {
                    f(tile..end.min(tile + high), cols.clone());
                }
            }
        }
    }

    /// Calls `f` with tile, tiles, first column and number of columns for blocks that cover the product: two tiles times
    /// 4 to 8 columns, and one tile times 4, 2 or 1 where there are fewer columns or only one tile.
    #[inline(always)]
    pub fn for_each_block(&self, mut f: impl FnMut(usize, usize, usize, usize)) {
        let group = self.group().max(2) & !1;
        let panels = self.cols.div_ceil(8);
        for start in (0..self.tiles).step_by(group) {
            let end = self.tiles.min(start + group);
            let pairs = if self.cols < 4 { start } else { start + (end - start) / 2 * 2 };
            for panel in 0..if pairs > start { panels } else { 0 } {
                let (col, next) = (panel * self.cols / panels, (panel + 1) * self.cols / panels);
                for tile in (start..pairs).step_by(2) {
                    f(tile, 2, col, next - col);
                }
            }
            let mut col = 0;
            while pairs < end && col < self.cols {
                let width = [4, 2, 1].into_iter().find(|&w| w <= self.cols - col).unwrap_or(1);
                for tile in pairs..end {
                    f(tile, 1, col, width);
                }
                col += width;
            }
        }
    }
}

/// Panels of so many columns, and of multiples, are best.
pub(crate) fn columns_together(isa: Isa) -> usize {
    if isa.level() == Level::Amx { 16 } else { 24 }
}

/// Tiles of rows from which on the best kernel for many columns is taken.
pub(crate) fn fewest_tiles(isa: Isa) -> usize {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Amx => super::x86::avx512::FEWEST_TILES,
        _ => 1,
    }
}

/// Matrix product of packed weights and quantized activations: `out[c * out_col_stride + r] = sum over i of
/// weight[r][i] * activation[c][i]`, for `valid_rows` rows and `cols` columns; nothing else of `out` is written.
///
/// - `w` points to the first of `tiles` packed tiles ([`super::pack_tile`]) of rows of `k` values;
///   `valid_rows` is at most `16 * tiles`, and tiles past it are not read.
/// - `acts` points to the first of `cols` quantized rows ([`super::quantize_act_row`]), `act_stride` bytes apart.
/// - `out_col_stride` counts `f32`.
///
/// A call is single-threaded and allocates nothing. Callers split by tiles and columns: with one column (decode)
/// give each thread one contiguous range of tiles, of 100 KB and more; with many columns give each thread a range of
/// several tiles, an even number, and so many columns at a time that `act_stride` times their number stays below about half
/// of the second-level cache (400 KB: 420 columns at k = 576, 55 at k = 4864). Multiples of 24 columns are best: panels
/// have 8 columns on AVX-512 (4 to 12 without VNNI), 4 on AVX2 (up to 15 of them in turn), 4 on NEON. Calls on disjoint tiles or columns may run at the same time.
///
/// Float types are not packed; for them, and for a `k` that is no multiple of the type's block or of 32, nothing is
/// computed and `false` returned.
///
/// # Safety
/// All of the memory described above is valid, initialized and, for `out`, not accessed by anyone else during the
/// call. `w`, `acts` and `out` need no alignment beyond `out`'s four bytes (64 is fastest).
#[allow(clippy::too_many_arguments)] // the parts of a matrix product
#[must_use = "false means that nothing was computed"]
pub unsafe fn gemm_packed(
    isa: Isa,
    ty: BlockType,
    k: usize,
    w: *const u8,
    tiles: usize,
    valid_rows: usize,
    acts: *const u8,
    act_stride: usize,
    cols: usize,
    out: *mut f32,
    out_col_stride: usize,
) -> bool {
    if ty.is_float() || !k.is_multiple_of(ty.block_values()) || valid_rows > tiles * TILE_ROWS {
        return false;
    }
    let tiles = valid_rows.div_ceil(TILE_ROWS);
    let tile_bytes = tile_bytes(ty, k);
    let p = Product {
        k,
        w,
        tile_bytes,
        tiles,
        valid_rows,
        acts,
        act_stride,
        cols,
        out,
        out_stride: out_col_stride,
    };
    // SAFETY: the caller's promise; an Isa exists only where the machine has its instructions.
    unsafe {
        match isa.level() {
            #[cfg(target_arch = "x86_64")]
            Level::Amx => super::x86::avx512::gemm_amx(ty, &p),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Vnni => super::x86::avx512::gemm_vnni(ty, &p),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => super::x86::avx512::gemm_maddubs(ty, &p),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => super::x86::avx2::gemm(ty, &p),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2Vnni => super::x86::avx2::gemm_vnni(ty, &p),
            #[cfg(target_arch = "aarch64")]
            Level::Neon => super::neon::gemm(ty, &p, super::neon::Step::Baseline),
            #[cfg(target_arch = "aarch64")]
            Level::NeonDot => super::neon::gemm(ty, &p, super::neon::Step::Dot),
            #[cfg(target_arch = "aarch64")]
            Level::NeonI8mm => super::neon::gemm(ty, &p, super::neon::Step::Matrix),
            _ => with_format!(ty, F => super::portable::gemm::<F>(&p), else {}),
        }
    }
    true
}
