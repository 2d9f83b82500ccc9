//! The safe side of [`super::words`]: attention of prompts in 16-bit integers, where the machine gains by it.

// Elsewhere there is no such instruction set, so nothing below is ever called.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, clippy::match_single_binding))]

use super::words::{self, CELLS, Words};
use super::{CellRows, CellType, check_lanes};
#[cfg(target_arch = "x86_64")]
use crate::device::software::simd::x86;
use crate::device::software::simd::{Isa, Level};

/// An instruction set on which 16-bit integers are faster than floats. All functions take pairs of them as `i32`.
#[derive(Clone, Copy, Debug)]
pub struct Rounded(Isa);

/// Rows of pairs, as the left operand of [`Rounded::product`]: pair (i, k) lies at `pairs[i * step.0 + k * step.1]`.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The pairs.
    pub pairs: &'a [i32],
    /// Distances of neighbours in i and in k.
    pub step: (usize, usize),
    /// How many i and how many k.
    pub size: (usize, usize),
    /// A scale for each i.
    pub scales: &'a [f32],
}

/// Pairs `[k][lane]`, the right operand.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    /// The pairs.
    pub pairs: &'a [i32],
    /// A scale for each lane.
    pub scales: &'a [f32],
}

/// Runs the function of `words` of that name on the vectors of the instruction set; one that multiplies is also told (`VNNI`)
/// whether the set has products with their sum.
macro_rules! run {
    ($isa:expr, $name:ident $(<$vnni:ident>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?) => {{
        #[inline(always)]
        fn body<V: Words, const VNNI: bool>($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: the lengths were checked by the function that holds this one, and the caller has the instructions.
            unsafe { words::$name::<V $(, $vnni)?>($($arg),*) }
        }
        #[cfg(target_arch = "x86_64")]
        macro_rules! with {
            ($features:literal, $vectors:ident, $has:literal) => {{
                #[target_feature(enable = $features)]
                fn run($($arg: $ty),*) $(-> $ret)? {
                    body::<crate::device::software::simd::x86::$vectors, $has>($($arg),*)
                }
                // SAFETY: an Isa of this level exists only where the machine has these features.
                unsafe { run($($arg),*) }
            }};
        }
        match $isa.level() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Vnni | Level::Amx => {
                with!("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c", F32x16, true)
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => with!("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c", F32x16, false),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2Vnni => with!("avx2,fma,f16c,avxvnni", F32x8, true),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => with!("avx2,fma,f16c", F32x8, false),
            _ => {
                let _ = ($(&$arg,)*);
                unreachable!("`Rounded::new` makes none for such a level")
            }
        }
    }};
}

impl Rounded {
    /// For rows of these lengths; `None` where floats are as fast, or the rows do not divide into vectors.
    pub fn new(isa: Isa, lengths: [usize; 2]) -> Option<Rounded> {
        use Level::{Amx, Avx2, Avx2Vnni, Avx512, Avx512Vnni};
        let wide = matches!(isa.level(), Avx2 | Avx2Vnni | Avx512 | Avx512Vnni | Amx);
        (wide && lengths.iter().all(|n| n.is_multiple_of(16))).then_some(Rounded(isa))
    }

    /// Rounds rows (F16 or F32) to pairs of neighbours, `to[count * len / 2]`, and gives a scale for each. False where a row
    /// is not finite, or far from one; what was written is of no use then.
    #[must_use]
    pub fn rows(self, rows: CellRows<'_>, to: &mut [i32], scales: &mut [f32]) -> bool {
        assert!(
            rows.len.is_multiple_of(16)
                && to.len() * 2 >= rows.count * rows.len
                && scales.len() >= rows.count
        );
        let (to, scales) = (to.as_mut_ptr(), scales.as_mut_ptr());
        run!(self.0, round_rows(rows: CellRows<'_>, to: *mut i32, scales: *mut f32) -> bool)
    }

    /// Rounds at most 64 F16 rows to pairs of rows, `to[count / 2][len]`, and gives a scale for each column. False as in
    /// [`Rounded::rows`].
    #[must_use]
    pub fn columns(self, rows: CellRows<'_>, to: &mut [i32], scales: &mut [f32]) -> bool {
        assert!(rows.ty == CellType::F16 && rows.len.is_multiple_of(16) && rows.count <= CELLS);
        assert!(to.len() >= rows.count.div_ceil(2) * rows.len && scales.len() >= rows.len);
        let (to, scales) = (to.as_mut_ptr(), scales.as_mut_ptr());
        run!(self.0, round_columns(rows: CellRows<'_>, to: *mut i32, scales: *mut f32) -> bool)
    }

    /// `c[i][lane] = Σ_k a(i, k) b[k][lane]`, each with its scales, added to c if `add`.
    pub fn product(self, a: Rows<'_>, b: Columns<'_>, c: &mut [f32], add: bool) {
        let lanes = b.scales.len();
        check_lanes(lanes);
        let (rows, terms) = a.size;
        assert!(b.pairs.len() >= terms * lanes && c.len() >= rows * lanes && a.scales.len() >= rows);
        assert!(rows * terms == 0 || (rows - 1) * a.step.0 + (terms - 1) * a.step.1 < a.pairs.len());
        let a =
            words::Rows { pairs: a.pairs.as_ptr(), step: a.step, size: a.size, scales: a.scales.as_ptr() };
        let b = words::Columns { pairs: b.pairs.as_ptr(), lanes, scales: b.scales.as_ptr() };
        let c = c.as_mut_ptr();
        #[cfg(target_arch = "x86_64")]
        let (a, c) = match self.0.level() {
            Level::Amx => {
                let done = x86::tile_rows(&a, lanes);
                if done > 0 {
                    // SAFETY: the lengths were checked above; an Isa of this level exists only where the machine has AMX and
                    // the system grants it.
                    unsafe { x86::tile_product(a, b, c, add) };
                }
                (a.from(done), c.wrapping_add(done * lanes))
            }
            _ => (a, c),
        };
        run!(self.0, product<VNNI>(a: words::Rows, b: words::Columns, c: *mut f32, add: bool))
    }

    /// As [`super::softmax_columns`], but the weights go to `weights` as pairs of cells, `[cells / 2][lane]`, in
    /// units of `unit`.
    pub fn softmax_columns(
        self,
        s: &[f32],
        cells: usize,
        weights: &mut [i32],
        [max, sum, carry, unit]: [&mut [f32]; 4],
    ) {
        let lanes = max.len();
        check_lanes(lanes);
        assert!(s.len() >= cells * lanes && weights.len() >= cells.div_ceil(2) * lanes);
        assert!(sum.len() == lanes && carry.len() == lanes && unit.len() == lanes);
        let (s, weights) = (s.as_ptr(), weights.as_mut_ptr());
        let rest = [max.as_mut_ptr(), sum.as_mut_ptr(), carry.as_mut_ptr(), unit.as_mut_ptr()];
        run!(self.0, softmax_columns(
            s: *const f32, cells: usize, lanes: usize, weights: *mut i32, rest: [*mut f32; 4],
        ))
    }
}
