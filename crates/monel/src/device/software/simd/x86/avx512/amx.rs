//! With AMX: a tile register holds 16 columns' codes of a block, another one the group bytes of 16 rows as they are packed,
//! and one instruction multiplies them. The sums leave through memory, and scales are applied as on the other levels: the
//! integers are the same, the floats are added in the same order, so the results have the same bits as those of VNNI.
//!
//! Scales belong to 32 (or 16) values, so half of a tile's depth or less is in use. That hardly matters: a product takes 16
//! cycles, the 48 to 64 vector instructions that apply its scales take 65 beside tile instructions of any kind, and 37 alone.
//! Copies of columns side by side, and of weights unpacked for all columns of a call, are loaded several times as fast as
//! rows that begin anywhere.

use super::super::tiles::Tiles;
use super::*;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Tiles of rows from which copying the columns pays.
pub(in super::super::super) const FEWEST_TILES: usize = 6;
/// Columns of a product.
const COLUMNS: usize = 16;
/// Blocks of 16 columns that are kept side by side, in 120 KiB.
const KEPT: usize = 192;
/// Blocks along k of a turn, at most: what a tile's rows and 16 columns need then fits into a first-level cache.
const DEPTH: usize = 24;

/// A block of 16 columns.
#[repr(C, align(64))]
struct Columns {
    codes: [[i8; BLOCK]; COLUMNS],
    /// `d` and `d_sum`.
    scales: [[f32; 2]; COLUMNS],
}

/// A block of 16 rows, with signed codes.
#[repr(C, align(64))]
struct Rows {
    codes: [[i8; 64]; BLOCK / 4],
    /// Of each segment; in one of them for formats with segments of 32.
    d: [[f32; TILE_ROWS]; 2],
    m: [[f32; TILE_ROWS]; 2],
}

/// Products of 16 columns with 16 rows.
#[repr(C, align(64))]
struct Sums([[i32; TILE_ROWS]; COLUMNS]);

/// The memory of a call, on the stack.
struct Scratch {
    columns: [MaybeUninit<Columns>; KEPT],
    rows: [MaybeUninit<Rows>; DEPTH],
    sums: [MaybeUninit<Sums>; 2],
}

const _: () = assert!(offset_of!(ActBlock, d_sum) == offset_of!(ActBlock, d) + 4);

/// Copies `blocks` blocks of 16 activation rows.
///
/// # Safety
/// AVX-512 is there; the blocks at `acts` are whole, and `to` has room for them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn gather(acts: *const u8, stride: usize, blocks: usize, to: *mut Columns) {
    for c in 0..COLUMNS {
        for b in 0..blocks {
            // SAFETY: the caller's.
            unsafe {
                let from = acts.add(c * stride + b * ACT_BYTES).cast::<ActBlock>();
                let to = to.add(b);
                let codes = _mm256_loadu_si256((&raw const (*from).codes).cast());
                _mm256_store_si256((&raw mut (*to).codes[c]).cast(), codes);
                (*to).scales[c] = (&raw const (*from).d).cast::<[f32; 2]>().read_unaligned();
            }
        }
    }
}

/// Unpacks the blocks of a turn, 32 values each, of the packed tile at `tile`.
///
/// # Safety
/// AVX-512 is there, the blocks are inside the tile, and `to` has room for them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn unpack<U: Unpack>(tile: *const u8, turn: Range<usize>, to: *mut Rows) {
    for (b, block) in turn.enumerate() {
        let value = block * BLOCK;
        // SAFETY: the caller's.
        unsafe {
            let block = tile.add(value / U::VALUES * Layout::<U>::BLOCK_BYTES);
            let to = to.add(b);
            // Excess-128 bytes with the top bit turned are signed; codes of formats with a minimum are below 128.
            let sign = bytes(if U::HAS_MIN { 0 } else { 0x80 });
            let header = header::<U>(block, U::SHIFTED);
            for half in 0..BLOCK / U::SEGMENT {
                let segment = value % U::VALUES / U::SEGMENT + half;
                let (d, m) = scales::<U>(header, block, segment);
                _mm512_store_ps((&raw mut (*to).d[half]).cast(), d);
                if U::HAS_MIN {
                    _mm512_store_ps((&raw mut (*to).m[half]).cast(), m);
                }
                for pair in 0..Layout::<U>::GROUPS / 2 {
                    let (even, odd) = U::excess(block, segment, pair);
                    let group = half * Layout::<U>::GROUPS + 2 * pair;
                    _mm512_store_si512((&raw mut (*to).codes[group]).cast(), _mm512_xor_si512(even, sign));
                    _mm512_store_si512((&raw mut (*to).codes[group + 1]).cast(), _mm512_xor_si512(odd, sign));
                }
            }
        }
    }
}

/// Lines of memory that are wanted soon: a few are asked for at each step of a product, as a core waits for few at once.
struct Ahead {
    next: *const u8,
    end: *const u8,
    /// Lines of a step.
    each: usize,
}

impl Ahead {
    /// What a turn of the packed tile at `tile` takes, in so many steps.
    fn of<U: Unpack>(tile: *const u8, turn: &Range<usize>, steps: usize) -> Ahead {
        let at = |block: usize| tile.wrapping_add(block * BLOCK / U::VALUES * Layout::<U>::BLOCK_BYTES);
        let end = tile.wrapping_add((turn.end * BLOCK).div_ceil(U::VALUES) * Layout::<U>::BLOCK_BYTES);
        let next = at(turn.start);
        Ahead { next, end, each: (end as usize - next as usize).div_ceil(64 * steps.max(1)) }
    }

    #[inline(always)]
    fn step(&mut self) {
        for _ in 0..self.each {
            if self.next < self.end {
                // SAFETY: a prefetch changes nothing and cannot fault.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(self.next.cast()) };
                self.next = self.next.wrapping_add(64);
            }
        }
    }
}

/// Adds the products of `blocks` blocks to the totals of 16 columns at `out`, which begin with zero in the `first` turn.
///
/// # Safety
/// The machine has AVX-512 and AMX, whose tiles have this format's shapes; the blocks are initialized, and the places of
/// `out` that `valid` rows have are writable (and initialized but for the first turn).
#[allow(clippy::too_many_arguments)] // the parts of a product
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn multiply<U: Unpack>(
    rows: *const Rows,
    columns: *const Columns,
    blocks: usize,
    sums: *mut Sums,
    (out, stride): (*mut f32, usize),
    valid: __mmask16,
    first: bool,
    ahead: &mut Ahead,
) {
    let halves = BLOCK / U::SEGMENT;
    // SAFETY: the caller's; everything stays inside the blocks, the two sums and the valid rows of the columns.
    unsafe {
        let mut totals = [_mm512_setzero_ps(); COLUMNS];
        if !first {
            for (c, total) in totals.iter_mut().enumerate() {
                *total = _mm512_maskz_loadu_ps(valid, out.add(c * stride));
            }
        }
        // The product of a segment begins before the scales of the one before are applied.
        for step in 0..=blocks * halves {
            if step < blocks * halves {
                ahead.step();
                let (b, half) = (step / halves, step % halves);
                asm!(
                    "tileloadd tmm6, [{rows} + {line}*1]",
                    "tileloadd tmm4, [{columns} + {column}*1]",
                    "tilezero tmm0",
                    "tdpbssd tmm0, tmm4, tmm6",
                    "tilestored [{sums} + {line}*1], tmm0",
                    rows = in(reg) &raw const (*rows.add(b)).codes[half * Layout::<U>::GROUPS],
                    columns = in(reg) (&raw const (*columns.add(b)).codes).cast::<u8>().add(half * U::SEGMENT),
                    sums = in(reg) sums.add(step % 2),
                    line = in(reg) 64usize,
                    column = in(reg) BLOCK,
                    out("tmm0") _,
                    out("tmm4") _,
                    out("tmm6") _,
                    options(nostack, preserves_flags),
                );
            }
            if step > 0 {
                let (b, half) = ((step - 1) / halves, (step - 1) % halves);
                let (rows, columns, sums) = (rows.add(b), columns.add(b), sums.add((step - 1) % 2));
                let d = _mm512_load_ps((&raw const (*rows).d[half]).cast());
                for (c, total) in totals.iter_mut().enumerate() {
                    let sum = _mm512_cvtepi32_ps(_mm512_load_si512((&raw const (*sums).0[c]).cast()));
                    let scale = _mm512_mul_ps(d, _mm512_set1_ps((*columns).scales[c][0]));
                    *total = _mm512_fmadd_ps(sum, scale, *total);
                    if U::HAS_MIN {
                        let m = _mm512_load_ps((&raw const (*rows).m[half]).cast());
                        *total = _mm512_fmadd_ps(m, _mm512_set1_ps((*columns).scales[c][1]), *total);
                    }
                }
            }
        }
        for (c, total) in totals.into_iter().enumerate() {
            _mm512_mask_storeu_ps(out.add(c * stride), valid, total);
        }
    }
}

/// A product whose number of columns is a multiple of 16.
///
/// # Safety
/// As `gemm`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn whole<U: Unpack>(p: &Product) {
    let mut scratch = MaybeUninit::<Scratch>::uninit();
    let scratch = scratch.as_mut_ptr();
    // SAFETY: the caller's; panels, turns and tiles stay inside the product, and a turn's blocks inside the scratch memory.
    unsafe {
        let _tiles = Tiles::new(U::SEGMENT as u8);
        let columns = (&raw mut (*scratch).columns).cast::<Columns>();
        let rows = (&raw mut (*scratch).rows).cast::<Rows>();
        let sums = (&raw mut (*scratch).sums).cast::<Sums>();
        // As many columns as can be kept for a turn, as deep as these can be kept.
        for panel in (0..p.cols / COLUMNS).step_by(KEPT / DEPTH) {
            let sixteens = (p.cols / COLUMNS - panel).min(KEPT / DEPTH);
            for pass in parts(0..p.k / BLOCK, KEPT / sixteens) {
                for s in 0..sixteens {
                    let acts = p.acts.add((panel + s) * COLUMNS * p.act_stride + pass.start * ACT_BYTES);
                    gather(acts, p.act_stride, pass.len(), columns.add(s * pass.len()));
                }
                for tile in 0..p.tiles {
                    let valid = ((1u32 << p.rows_of(tile)) - 1) as __mmask16;
                    for turn in parts(pass.clone(), DEPTH) {
                        let at = p.w.add(tile * p.tile_bytes);
                        unpack::<U>(at, turn.clone(), rows);
                        // the next turn, or the tile below
                        let (tile_ahead, next) = match turn.end < pass.end {
                            true => (at, turn.end..(turn.end + turn.len()).min(pass.end)),
                            false if tile + 1 < p.tiles => {
                                (at.add(p.tile_bytes), pass.start..pass.start + turn.len())
                            }
                            false => (at, 0..0),
                        };
                        let mut ahead =
                            Ahead::of::<U>(tile_ahead, &next, turn.len() * sixteens * BLOCK / U::SEGMENT);
                        for s in 0..sixteens {
                            let col = (panel + s) * COLUMNS;
                            p.claim(tile, 1, col..col + COLUMNS);
                            let out = (p.out.add(col * p.out_stride + tile * TILE_ROWS), p.out_stride);
                            let columns = columns.add(s * pass.len() + turn.start - pass.start);
                            let first = turn.start == 0;
                            multiply::<U>(rows, columns, turn.len(), sums, out, valid, first, &mut ahead);
                        }
                    }
                }
            }
        }
    }
}

/// A range in as few parts of at most `longest` as it takes, all about as long.
#[inline(always)]
fn parts(range: Range<usize>, longest: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = range.len().div_ceil(longest);
    let at = move |part: usize| range.start + part * range.len() / parts;
    (0..parts).map(move |part| at(part)..at(part + 1))
}

/// The packed product for every quantized type.
///
/// # Safety
/// As [`super::super::super::gemm_packed`]; the machine has AVX-512 F, BW, VL, DQ and VNNI, and AMX is granted.
pub(in super::super::super) unsafe fn gemm(ty: BlockType, p: &Product) {
    let sixteens = if p.tiles < FEWEST_TILES { 0 } else { p.cols / COLUMNS * COLUMNS };
    // SAFETY: the caller's promise, for both parts of the columns.
    unsafe {
        if sixteens > 0 {
            let p = Product { cols: sixteens, ..*p };
            with_format!(ty, F => whole::<F>(&p), else {});
        }
        if sixteens < p.cols {
            let rest = Product {
                acts: p.acts.add(sixteens * p.act_stride),
                cols: p.cols - sixteens,
                out: p.out.add(sixteens * p.out_stride),
                ..*p
            };
            gemm_vnni(ty, &rest);
        }
    }
}
