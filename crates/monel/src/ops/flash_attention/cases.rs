//! The cases of attention, and its tests on plain memory.

use super::{FlashAttention, Masking};
use crate::check::{Case, Fill, Operand, Tolerance};
use crate::tensor::DType;

/// Scores are f32 sums with errors near 1e-6 and the exponential is good to 1e-7; the reference starts from the same
/// converted cells, so the type of K and V does not matter.
const TOLERANCE: Tolerance = Tolerance::Nmse(1e-10);

/// Devices with matrices round queries and weights to f16 where there are many tokens and the cells are F16.
const ROUNDED: Tolerance = Tolerance::Nmse(1e-6);

/// Sizes of one case.
#[derive(Clone, Copy)]
struct Size {
    head: usize,
    tokens: usize,
    heads: usize,
    kv_heads: usize,
    cells: usize,
}

const fn size(head: usize, tokens: usize, heads: usize, kv_heads: usize, cells: usize) -> Size {
    Size { head, tokens, heads, kv_heads, cells }
}

impl Size {
    /// q, k and v the way a model has them: views of `[head, heads, tokens]` and of a cache.
    fn operands(self, k: DType, v: DType) -> Vec<Operand> {
        let view =
            |dtype, heads, rows| Operand::normal(dtype, &[self.head, heads, rows]).permuted([0, 2, 1, 3]);
        vec![
            view(DType::F32, self.heads, self.tokens),
            view(k, self.kv_heads, self.cells),
            view(v, self.kv_heads, self.cells),
        ]
    }

    fn op(self, masking: Masking) -> FlashAttention {
        FlashAttention { scale: 1.0 / (self.head as f32).sqrt(), softcap: None, masking }
    }

    fn tolerance(self, cells: DType) -> Tolerance {
        if cells == DType::F16 && self.tokens >= 16 { ROUNDED } else { TOLERANCE }
    }

    fn plain(self, dtype: DType) -> Case {
        Case::new(self.op(Masking::None), dtype, self.operands(dtype, dtype), self.tolerance(dtype))
    }

    /// The tokens stand at positions `first ..`.
    fn causal(self, dtype: DType, first: usize, window: Option<usize>) -> Case {
        let positions: Vec<i64> = (0..self.tokens).map(|t| (first + t) as i64).collect();
        self.at_positions(dtype, &positions, window)
    }

    fn at_positions(self, dtype: DType, positions: &[i64], window: Option<usize>) -> Case {
        let mut operands = self.operands(dtype, dtype);
        operands.push(Operand::ints(positions));
        Case::new(self.op(Masking::Causal { window }), dtype, operands, self.tolerance(dtype))
    }

    fn masked(self, k: DType, mask: Operand) -> Case {
        let mut operands = self.operands(k, k);
        operands.push(mask);
        Case::new(self.op(Masking::Mask), k, operands, TOLERANCE)
    }
}

/// A mask `[cells, tokens]` from a rule: `None` hides.
fn mask(dtype: DType, cells: usize, tokens: usize, rule: impl Fn(usize, usize) -> Option<f64>) -> Operand {
    let values =
        (0..cells * tokens).map(|i| rule(i % cells, i / cells).unwrap_or(f64::NEG_INFINITY)).collect();
    Operand::normal(dtype, &[cells, tokens]).fill(Fill::Values(values))
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let types = DType::STORAGE.into_iter().filter(|t| t.block().is_some());
    for dtype in types {
        let head = if dtype.block_len() == 256 { 256 } else { 64 };
        for tokens in [1, 9] {
            cases.push(size(head, tokens, 4, 2, 150).plain(dtype));
            cases.push(size(head, tokens, 4, 2, 150).causal(dtype, 101, None));
        }
    }
    for dtype in [DType::F32, DType::F16] {
        for s in [
            size(64, 1, 9, 3, 300),
            size(64, 1, 9, 3, 1),
            size(64, 5, 9, 3, 70),
            size(64, 70, 9, 3, 200),
            size(256, 1, 4, 1, 600),
            size(256, 20, 4, 1, 100),
            size(80, 1, 2, 1, 33),
            size(40, 17, 6, 2, 129),
            size(33, 3, 10, 2, 7),
            size(7, 1, 5, 5, 131),
            size(1, 1, 1, 1, 1),
            size(8, 13, 1, 1, 65),
            size(8, 1, 70, 1, 30),
            size(64, 0, 9, 3, 10),
            size(64, 1, 3, 3, 0),
            size(64, 20, 3, 3, 0),
        ] {
            cases.push(s.plain(dtype));
        }
    }
    // all the way through: positions far into a cache, windows that end inside and outside of tiles
    for (s, first, window) in [
        (size(64, 1, 9, 3, 2100), 2099, None),
        (size(64, 1, 9, 3, 2100), 0, None),
        (size(64, 1, 9, 3, 2100), 1500, Some(512)),
        (size(64, 1, 4, 1, 1000), 400, Some(1000)),
        (size(64, 2, 4, 1, 1000), 998, Some(1)),
        (size(64, 130, 9, 3, 700), 0, None),
        (size(64, 130, 9, 3, 700), 570, None),
        (size(256, 33, 4, 1, 300), 200, Some(100)),
        (size(64, 100, 3, 1, 300), 3, Some(20)),
        (size(64, 12, 3, 3, 64), 5, Some(0)),
        (size(64, 2, 3, 3, 64), 5, Some(0)),
        // as models have them: groups of 4, 7, 8 and 16 heads; parts of different length, and empty ones
        (size(128, 1, 8, 2, 1500), 1444, None),
        (size(128, 1, 8, 2, 1500), 40, None),
        (size(64, 1, 14, 2, 900), 640, None),
        (size(128, 8, 8, 1, 400), 300, None),
        (size(64, 7, 16, 1, 300), 0, Some(40)),
        (size(96, 1, 4, 2, 260), 255, None),
        (size(256, 1, 4, 1, 900), 890, Some(512)),
        // matrices: rows of one and of several heads in a tile, scores that grow late, part tiles of cells
        (size(128, 200, 8, 2, 700), 480, None),
        (size(128, 64, 3, 3, 64), 0, None),
        (size(80, 50, 6, 2, 333), 283, Some(65)),
        (size(16, 17, 4, 4, 40), 11, None),
        // larger than what kernels keep at hand
        (size(1100, 2, 2, 1, 30), 20, None),
    ] {
        cases.push(s.causal(DType::F16, first, window));
    }
    // positions in no order
    cases.push(size(32, 6, 4, 2, 90).at_positions(DType::F32, &[80, 3, 3, 0, 89, 41], Some(30)));
    cases.push(size(32, 3, 2, 2, 90).at_positions(DType::F32, &[80, 3, 41], None));
    // K and V of different types, and of different head sizes
    for tokens in [1, 40] {
        let s = size(64, tokens, 8, 2, 200);
        cases.push(Case::new(
            s.op(Masking::None),
            DType::Q8_0,
            s.operands(DType::Q8_0, DType::Q4_0),
            TOLERANCE,
        ));
        let mut operands = s.operands(DType::F32, DType::F16);
        operands[2] = Operand::normal(DType::F16, &[48, 2, 200]).permuted([0, 2, 1, 3]);
        cases.push(Case::new(s.op(Masking::None), DType::F16, operands, TOLERANCE));
        // cells as a part of a longer cache
        let mut operands = s.operands(DType::F16, DType::F16);
        operands[1] = Operand::normal(DType::F16, &[64, 210, 2]).slice(1, 7, 200);
        cases.push(Case::new(s.op(Masking::None), DType::F16, operands, s.tolerance(DType::F16)));
        // a soft cap that bends: the tanh cancels to about 1e-6 of the cap
        let capped = FlashAttention { scale: 1.0, softcap: Some(6.0), masking: Masking::None };
        let operands = s.operands(DType::F16, DType::F16);
        let tolerance = if tokens < 16 { Tolerance::Nmse(1e-9) } else { ROUNDED };
        cases.push(Case::new(capped, DType::F16, operands, tolerance));
        // large scores: one cell takes it all
        let sharp = FlashAttention { scale: 20.0, softcap: None, masking: Masking::None };
        let operands = s.operands(DType::F32, DType::F32);
        // scores near 1,000 are rounded to 1e-4
        cases.push(Case::new(sharp, DType::F32, operands, Tolerance::Nmse(1e-7)));
    }
    cases.extend([growing(1), growing(40)]);
    cases.extend(mask_cases());
    cases
}

fn mask_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for tokens in [1, 3, 50] {
        let s = size(64, tokens, 6, 2, 170);
        // the triangle, two hidden rows, a bias, everything hidden
        let triangle = |j: usize, t: usize| (j <= t + 100).then_some(0.0);
        let stripes = |j: usize, t: usize| (t % 7 != 2 && !(j / 5 + t).is_multiple_of(3)).then_some(0.0);
        let slope = |j: usize, t: usize| Some((j as f64 - t as f64) / 64.0);
        for dtype in [DType::F16, DType::F32] {
            cases.push(s.masked(DType::F16, mask(dtype, 170, tokens, triangle)));
            cases.push(s.masked(DType::F16, mask(dtype, 170, tokens, stripes)));
            cases.push(s.masked(DType::Q8_0, mask(dtype, 170, tokens, slope)));
            cases.push(s.masked(DType::F32, mask(dtype, 170, tokens, |_, _| None)));
        }
        // more mask rows than tokens; a mask for each head
        cases.push(s.masked(DType::F16, mask(DType::F16, 170, tokens + 14, triangle)));
        cases.push(s.masked(DType::F16, Operand::normal(DType::F16, &[170, tokens, 6])));
        cases.push(s.masked(DType::F16, Operand::normal(DType::F32, &[170, tokens, 3])));
        // what K and V hold in hidden cells does not matter
        let s = size(16, tokens, 2, 1, 90);
        let mut case = s.masked(DType::F32, mask(DType::F16, 90, tokens, |j, _| (j % 9 < 7).then_some(0.5)));
        let spoilt = |seed: usize| {
            let value = |i: usize| {
                if i / 16 % 9 < 7 { ((i * 37 + seed) % 101) as f64 / 50.0 - 1.0 } else { f64::NAN }
            };
            Operand::normal(DType::F32, &[16, 90, 1]).fill(Fill::Values((0..16 * 90).map(value).collect()))
        };
        case.inputs[1] = spoilt(1);
        case.inputs[2] = spoilt(2);
        cases.push(case);
        for dtype in [DType::F32, DType::F16] {
            let mut case = s.causal(dtype, 38 - 38 / tokens, None);
            case.inputs[1] = beyond(dtype, 38 + tokens, 3);
            case.inputs[2] = beyond(dtype, 38 + tokens, 4);
            cases.push(case);
        }
        // batches, K and V shared by two of four, the mask by all
        let batched =
            |dtype, ne: [usize; 3], batches| Operand::normal(dtype, &[ne[0], ne[1], ne[2], batches]);
        let operands = vec![
            batched(DType::F32, [32, tokens, 4], 4),
            batched(DType::F16, [32, 150, 2], 2),
            batched(DType::F16, [32, 150, 2], 2),
            Operand::normal(DType::F16, &[150, tokens]),
        ];
        let op = FlashAttention { scale: 0.2, softcap: None, masking: Masking::Mask };
        cases.push(Case::new(op, DType::F16, operands, TOLERANCE));
    }
    cases
}

/// Scores that grow from cell to cell, from 0 to some 90: what was summed up before has to be scaled again and again.
fn growing(tokens: usize) -> Case {
    let s = size(64, tokens, 2, 1, 300);
    let mut operands = s.operands(DType::F32, DType::F16);
    operands[0].fill = Fill::Uniform(1.0, 2.0);
    let noise = |i: usize| ((i * 37) % 101) as f64 / 50.0 - 1.0;
    let keys = (0..64 * 300).map(|i| (i / 64) as f64 * 0.003 + noise(i) * 0.5).collect();
    operands[1].fill = Fill::Values(keys);
    let op = FlashAttention { scale: 1.0, softcap: None, masking: Masking::None };
    // rounding to f16 moves scores of 90 by some thousandths
    Case::new(op, DType::F16, operands, Tolerance::Nmse(if tokens < 16 { 1e-9 } else { 1e-4 }))
}

/// A cache of 90 cells that was never written from cell `from` on.
fn beyond(dtype: DType, from: usize, seed: usize) -> Operand {
    let value = |i: usize| if i / 16 < from { ((i * 37 + seed) % 101) as f64 / 50.0 - 1.0 } else { f64::NAN };
    Operand::normal(dtype, &[16, 90, 1]).fill(Fill::Values((0..16 * 90).map(value).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Outcome, run_direct};
    use crate::device::software::simd::Isa;
    use crate::ops::Op;
    use crate::tensor::Desc;

    #[test]
    fn all_cases_on_every_instruction_set() {
        for case in cases() {
            for isa in Isa::available() {
                let outcome = run_direct(&case, isa);
                assert!(matches!(outcome, Outcome::Ok { .. }), "{}: {outcome:?}: {case:?}", isa.name());
            }
        }
    }

    #[test]
    fn positions_outside_the_cache_are_errors() {
        for (tokens, position) in [(1, 8), (1, -1), (20, 8), (20, i64::from(i32::MIN))] {
            let mut positions = vec![0; tokens];
            positions[tokens - 1] = position;
            let case = size(16, tokens, 2, 2, 8).at_positions(DType::F16, &positions, None);
            let Outcome::Failed { reason, .. } = run_direct(&case, Isa::detect()) else {
                panic!("position {position} of 8 cells was computed");
            };
            assert!(reason.contains(&format!("position {position} of a cache of 8 cells")), "{reason}");
        }
    }

    #[test]
    fn wrong_shapes_are_refused() {
        let desc = |dtype, ne: &[usize]| Desc::new(dtype, ne).unwrap();
        let q = desc(DType::F32, &[64, 5, 8]);
        let kv = desc(DType::F16, &[64, 30, 2]);
        let op = |masking| FlashAttention { scale: 1.0, softcap: None, masking };
        let positions = desc(DType::I32, &[5]);
        let causal = Masking::Causal { window: None };
        assert!(op(causal).output(&[q, kv, kv, positions]).is_ok());
        assert!(op(causal).output(&[q, kv, kv]).is_err());
        assert!(op(causal).output(&[q, kv, kv, desc(DType::I32, &[4])]).is_err());
        assert!(op(Masking::None).output(&[q, kv, kv, positions]).is_err());
        assert!(op(Masking::None).output(&[q, desc(DType::F16, &[64, 30, 3]), kv]).is_err());
        assert!(op(Masking::None).output(&[q, desc(DType::F16, &[32, 30, 2]), kv]).is_err());
        assert!(op(Masking::Mask).output(&[q, kv, kv, desc(DType::F16, &[30, 4])]).is_err());
        assert!(op(Masking::Mask).output(&[q, kv, kv, desc(DType::BF16, &[30, 5])]).is_err());
        let out = op(Masking::None).output(&[q, kv, kv]).unwrap();
        assert_eq!(out.ne, [64, 8, 5, 1]);
        assert!(op(Masking::None).supports(&[q, kv, kv], &out).is_ok());
        let turned = q.permute([1, 0, 2, 3]).unwrap();
        assert!(op(Masking::None).supports(&[turned, kv, kv], &out).is_err());
    }
}
