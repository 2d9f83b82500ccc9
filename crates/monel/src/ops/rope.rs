//! Rotary position embedding (Su et al., arXiv 2104.09864): pairs of elements are turned by angles that grow with the
//! token's position, each pair at its own frequency.
//!
//! Frequencies are computed in f64 when the kernel is built. A token's sines and cosines are computed once and used for
//! all its heads; the angle is reduced in f64, so positions of a million lose nothing.

use super::unary::vectorized;
use super::{Cost, Op};
use crate::check::{Case, Fill, Operand, Tolerance};
use crate::error::{Error, Result};
use crate::gpu::{Dispatch, GpuCall, Operand as GpuOperand, Shader};
use crate::kernel::{Call, Kernel, RefTensor};
use crate::tensor::{DType, Desc};
use std::f64::consts::{FRAC_2_PI, FRAC_PI_2, TAU};

/// Which elements form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeKind {
    /// Neighbours: 2i and 2i + 1.
    Normal,
    /// The halves of the rotated part: i and i + dims / 2.
    Neox,
}

/// How frequencies are changed for contexts longer than the model was trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Positions are divided by the factor.
    Linear(f32),
    /// YaRN (Peng et al., arXiv 2309.00071): pairs that turn often within the original context keep their frequency,
    /// those that turn rarely are divided by the factor, with a ramp between; everything is multiplied by
    /// 0.1 ln(factor) + 1.
    Yarn {
        /// Longer context over original context.
        factor: f32,
        /// Positions that the model was trained on.
        original_context: usize,
        /// Turns from which on a frequency is kept (usually 32).
        beta_fast: f32,
        /// Turns up to which a frequency is divided (usually 1).
        beta_slow: f32,
        /// Share of the ramp: 1 for YaRN, 0 for dividing everything (and no other magnitude).
        ext_factor: f32,
        /// A further factor of the magnitude (usually 1).
        attn_factor: f32,
    },
}

/// Turns pairs of x (F32 `[head, heads, tokens, batches]`) by their positions (I32 `[tokens]`). A third input, F32
/// `[dims / 2]`, divides the frequencies. In place of both there may be what [`RopeAngles`] makes of them, F32 `[dims,
/// tokens]`. Elements from `dims` on are copied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Which elements form a pair.
    pub kind: RopeKind,
    /// Elements that are turned, an even number.
    pub dims: usize,
    /// Pair i turns by `base^(-2 i / dims)` per position.
    pub base: f32,
    /// Changes for long contexts.
    pub scaling: RopeScaling,
}

impl Rope {
    /// The angle per position of each pair, and the magnitude of the rotation.
    pub(super) fn frequencies(&self) -> (Vec<f64>, f64) {
        let (pairs, dims) = (self.dims / 2, self.dims as f64);
        let plain = (0..pairs).map(|i| f64::from(self.base).powf(-2.0 * i as f64 / dims));
        match self.scaling {
            RopeScaling::None => (plain.collect(), 1.0),
            RopeScaling::Linear(factor) => (plain.map(|f| f / f64::from(factor)).collect(), 1.0),
            RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, ext_factor, attn_factor } => {
                let factor = f64::from(factor);
                // the pair that makes so many turns within the original context
                let pair_with = |turns: f32| {
                    dims * (original_context as f64 / (f64::from(turns) * TAU)).ln()
                        / (2.0 * f64::from(self.base).ln())
                };
                let first = pair_with(beta_fast).floor().max(0.0);
                let last = pair_with(beta_slow).ceil().min(dims - 1.0);
                let ext = f64::from(ext_factor);
                let frequencies = plain.enumerate().map(|(i, f)| {
                    let slow = ((i as f64 - first) / (last - first).max(0.001)).clamp(0.0, 1.0);
                    let keep = (1.0 - slow) * ext;
                    f / factor * (1.0 - keep) + f * keep
                });
                let stretch = if ext_factor == 0.0 { 1.0 } else { 1.0 + 0.1 * factor.ln() };
                (frequencies.collect(), f64::from(attn_factor) * stretch)
            }
        }
    }

    /// The elements of pair i.
    fn pair(&self, i: usize) -> (usize, usize) {
        match self.kind {
            RopeKind::Normal => (2 * i, 2 * i + 1),
            RopeKind::Neox => (i, i + self.dims / 2),
        }
    }

    /// What positions and perhaps factors have to be; gives how many positions there are.
    pub(super) fn of_positions(&self, op: &'static str, inputs: &[Desc], tokens: usize) -> Result<usize> {
        let (positions, factors) = match inputs {
            [positions] => (positions, None),
            [positions, factors] => (positions, Some(factors)),
            _ => {
                let found = format!("positions and perhaps factors, found {} inputs for them", inputs.len());
                return Err(Error::shape(op, found));
            }
        };
        if !self.dims.is_multiple_of(2) {
            return Err(Error::shape(op, format!("an even number of dims, found {}", self.dims)));
        }
        if positions.dtype != DType::I32 || positions.ne != [tokens, 1, 1, 1] {
            return Err(Error::shape(op, format!("positions I32[{tokens}], found {positions}")));
        }
        if let Some(factors) = factors.filter(|f| f.dtype != DType::F32 || f.ne != [self.dims / 2, 1, 1, 1]) {
            return Err(Error::shape(op, format!("factors F32[{}], found {factors}", self.dims / 2)));
        }
        Ok(tokens)
    }

    /// Whether angles can be made of positions and perhaps factors.
    pub(super) fn can_turn(&self, inputs: &[Desc]) -> Result<(), String> {
        if let Some(factors) = inputs.get(1).filter(|f| !f.has_dense_rows()) {
            return Err(format!("dense factors, found {factors}"));
        }
        let (frequencies, magnitude) = self.frequencies();
        if frequencies.iter().any(|f| !f.is_finite()) || !magnitude.is_finite() {
            return Err(format!("a base and a scaling that give finite frequencies, found {self:?}"));
        }
        Ok(())
    }

    /// Sines and cosines of a position's pairs, with the magnitude in them.
    pub(super) fn turns(
        &self,
        (frequencies, magnitude): (&[f64], f32),
        position: i32,
        factors: Option<&[f32]>,
        (sin, cos): (&mut [f32], &mut [f32]),
    ) {
        let position = f64::from(position);
        match factors {
            None => {
                for ((s, c), f) in sin.iter_mut().zip(cos.iter_mut()).zip(frequencies) {
                    let turn = sin_cos(position * f);
                    (*s, *c) = (turn.0 * magnitude, turn.1 * magnitude);
                }
            }
            Some(factors) => {
                let both = frequencies.iter().zip(factors);
                for ((s, c), (f, factor)) in sin.iter_mut().zip(cos.iter_mut()).zip(both) {
                    let turn = sin_cos(position * f / f64::from(*factor));
                    (*s, *c) = (turn.0 * magnitude, turn.1 * magnitude);
                }
            }
        }
    }

    /// Lets a kernel call `sin_cos_of(pair, position)`, the sine and cosine with the magnitude in them.
    pub(crate) fn angles(&self, shader: Shader, factors: Option<&GpuOperand>) -> Result<Shader, String> {
        let (frequencies, magnitude) = self.frequencies();
        // Turns per position, without the whole ones, in units of 2^-64. With factors whole turns would count.
        if factors.is_some() && frequencies.iter().any(|f| f.abs() >= TAU) {
            return Err(format!("frequencies below a turn with factors, found {self:?}"));
        }
        let fraction = |f: f64| ((f / TAU).rem_euclid(1.0) * 2f64.powi(64)) as u64;
        let turns = frequencies.iter().map(|&f| fraction(f));
        let mut table: Vec<u32> = turns.flat_map(|t| [t as u32, (t >> 32) as u32]).collect();
        // a binding has at least one word
        table.push(0);
        let shader = shader
            .part(include_str!("../gpu/functions.wgsl"))
            .part(include_str!("rope_angle.wgsl"))
            .table("turns", table)
            .float("magnitude", magnitude as f32);
        Ok(match factors {
            Some(factors) => shader
                .input("factors", factors)
                .define("FACTOR", "turn = divide(turn, factors[p.factors + pair]);"),
            None => shader.define("FACTOR", ""),
        })
    }

    /// The elements of a pair in a kernel's text.
    pub(crate) fn pair_text(&self, pair: &str) -> (String, String) {
        match self.kind {
            RopeKind::Normal => (format!("2u * {pair}"), format!("2u * {pair} + 1u")),
            RopeKind::Neox => (pair.to_string(), format!("{pair} + {}u", self.dims / 2)),
        }
    }

    #[inline(always)]
    fn turn(&self, x: &[f32], out: &mut [f32], sin: &[f32], cos: &[f32]) {
        let (x, kept) = x.split_at(self.dims);
        let (out, rest) = out.split_at_mut(self.dims);
        rest.copy_from_slice(kept);
        let turns = sin.iter().zip(cos);
        match self.kind {
            RopeKind::Normal => {
                let pairs = x.as_chunks::<2>().0.iter().zip(out.as_chunks_mut::<2>().0);
                for (([x0, x1], out), (sin, cos)) in pairs.zip(turns) {
                    *out = [x0 * cos - x1 * sin, x0 * sin + x1 * cos];
                }
            }
            RopeKind::Neox => {
                let (x0, x1) = x.split_at(self.dims / 2);
                let (out0, out1) = out.split_at_mut(self.dims / 2);
                let pairs = x0.iter().zip(x1).zip(out0.iter_mut().zip(out1));
                for (((x0, x1), (out0, out1)), (sin, cos)) in pairs.zip(turns) {
                    (*out0, *out1) = (x0 * cos - x1 * sin, x0 * sin + x1 * cos);
                }
            }
        }
    }
}

/// Lets a kernel call `known_sin_cos(pair, token)`, the sine and cosine that [`RopeAngles`](super::RopeAngles) made.
pub(crate) fn known_angles(shader: Shader, dims: usize, angles: &GpuOperand) -> Result<Shader, String> {
    if angles.desc.dtype != DType::F32 || angles.desc.ne[0] != dims || !angles.desc.has_dense_rows() {
        return Err(format!("angles F32[{dims}, tokens] in dense rows, found {}", angles.desc));
    }
    Ok(shader
        .part(include_str!("rope_known.wgsl"))
        .raw("angles", "read", "f32", angles)
        .number("angles1", angles.desc.nb[1] / 4)
        .define("ANGLE_PAIRS", dims / 2))
}

/// Sine and cosine of an angle, to about 1e-7. The angle is reduced to a quarter turn in f64 (error 1e-16 of the angle),
/// where the Taylor series are short; without branches, so that a loop becomes vector code.
#[inline(always)]
fn sin_cos(angle: f64) -> (f32, f32) {
    /// Adding it leaves no bits behind the point; the whole number stands in the low bits.
    const SHIFT: f64 = 1.5 * (1u64 << 52) as f64;
    let shifted = angle * FRAC_2_PI + SHIFT;
    let quarter = shifted.to_bits() as u32;
    let r = (angle - (shifted - SHIFT) * FRAC_PI_2) as f32;
    let r2 = r * r;
    let sin = r + r * r2 * (-1.0 / 6.0 + r2 * (1.0 / 120.0 + r2 * (-1.0 / 5040.0 + r2 * (1.0 / 362_880.0))));
    let cos = 1.0
        + r2 * (-0.5
            + r2 * (1.0 / 24.0 + r2 * (-1.0 / 720.0 + r2 * (1.0 / 40_320.0 - r2 * (1.0 / 3_628_800.0)))));
    let (s, c) = if quarter & 1 == 0 { (sin, cos) } else { (cos, sin) };
    // the sine is negative in the third and fourth quarter, the cosine in the second and third
    let sign = |x: f32, negative: u32| f32::from_bits(x.to_bits() ^ (negative & 2) << 30);
    (sign(s, quarter), sign(c, quarter.wrapping_add(1)))
}

impl Op for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        let [x, rest @ ..] = inputs else {
            return Err(Error::shape("rope", "x, positions and perhaps factors, found no inputs"));
        };
        if self.dims > x.ne[0] {
            return Err(Error::shape("rope", format!("dims within {x}, found {}", self.dims)));
        }
        match rest {
            [angles] if angles.dtype == DType::F32 => {
                if !self.dims.is_multiple_of(2) || angles.ne != [self.dims, x.ne[2], 1, 1] {
                    let expected = format!("angles F32[{}, {}], found {angles}", self.dims, x.ne[2]);
                    return Err(Error::shape("rope", expected));
                }
            }
            _ => _ = self.of_positions("rope", rest, x.ne[2])?,
        }
        Desc::new(DType::F32, &x.ne)
    }

    fn supports(&self, inputs: &[Desc], output: &Desc) -> Result<(), String> {
        super::all_f32_rows(&inputs[..1], output)?;
        match &inputs[1..] {
            [angles] if angles.dtype == DType::F32 => match angles.has_dense_rows() {
                true => Ok(()),
                false => Err(format!("angles in dense rows, found {angles}")),
            },
            rest => self.can_turn(rest),
        }
    }

    fn cost(&self, inputs: &[Desc], output: &Desc) -> Cost {
        let angles = (inputs[0].ne[2] * inputs[0].ne[3] * self.dims / 2) as f64;
        let bytes = inputs.iter().chain([output]).map(|d| d.span() as f64).sum();
        Cost { flops: output.elements() as f64 * 3.0 + angles * 30.0, bytes }
    }

    fn kernels(&self, call: &Call<'_>) -> Vec<Kernel> {
        let (x, turned, factors) = (call.inputs[0], call.inputs[1], call.inputs.get(2).copied());
        let (rope, out, pairs) = (*self, call.output, self.dims / 2);
        let known = turned.desc.dtype == DType::F32;
        let (frequencies, magnitude) = if known { (Vec::new(), 1.0) } else { self.frequencies() };
        let magnitude = magnitude as f32;
        let [_, heads, tokens, batches] = out.desc.ne;
        vec![Kernel::rows(tokens * batches, out.desc.nb[2] * 4, move |item, worker| {
            let (token, batch) = (item % tokens, item / tokens);
            let isa = worker.isa;
            let (sin, cos) = if known {
                turned.row::<f32>(token).split_at(pairs)
            } else {
                let (sin, cos) = worker.floats(2 * pairs).split_at_mut(pairs);
                let position = turned.at::<i32>([token, 0, 0, 0]);
                let factors = factors.as_ref().map(|f| f.row::<f32>(0));
                vectorized(isa, || {
                    rope.turns((&frequencies, magnitude), position, factors, (&mut *sin, &mut *cos))
                });
                (&*sin, &*cos)
            };
            for head in 0..heads {
                // SAFETY: all heads of a token belong to its item.
                let out = unsafe { out.row_mut::<f32>(head + heads * item) };
                vectorized(isa, || rope.turn(x.row3(head, token, batch), out, sin, cos));
            }
            Ok(())
        })]
    }

    fn shader(&self, call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
        let (x, turned, y) = (&call.inputs[0], &call.inputs[1], &call.output);
        let pairs = self.dims / 2;
        let [n, heads, tokens, _] = y.desc.ne;
        // An invocation for each pair and for each element behind them.
        let steps = n - pairs;
        let count = if steps == 0 { 0 } else { y.desc.elements() / n.max(1) * steps };
        let mut shader = Shader::new("rope", include_str!("rope.wgsl"))
            .number("count", count)
            .number("steps", steps)
            .number("pairs", pairs)
            .number("n1", heads)
            .number("n2", tokens)
            .input("x", x)
            .strides("x", x, true)
            .output("y", y)
            .strides("y", y, true);
        shader = if turned.desc.dtype == DType::F32 {
            let turn = "known_sin_cos(at.x, at.z)";
            known_angles(shader, self.dims, turned)?.define("TURN", turn)
        } else {
            let turn = "sin_cos_of(at.x, positions[p.positions + at.z * p.positions0])";
            let shader = shader.input("positions", turned).number("positions0", turned.desc.nb[0] / 4);
            self.angles(shader, call.inputs.get(2))?.define("TURN", turn)
        };
        let (first, second) = self.pair_text("at.x");
        let shader = shader.define("FIRST", first).define("SECOND", second);
        Ok(vec![shader.items(count, 64)?])
    }

    fn reference(&self, inputs: &[RefTensor], output: &Desc) -> RefTensor {
        let (frequencies, magnitude) = self.frequencies();
        let [_, heads, tokens, _] = output.ne;
        let mut out = inputs[0].clone();
        let pairs = self.dims / 2;
        let known = inputs[1].ne == [self.dims, tokens, 1, 1] && inputs[1].ne[0] != tokens.min(1);
        for r in 0..out.rows() {
            let token = r / heads % tokens;
            for (i, f) in frequencies.iter().enumerate() {
                let (sin, cos) = if known {
                    (inputs[1].row(token)[i], inputs[1].row(token)[pairs + i])
                } else {
                    let factor = inputs.get(2).map_or(1.0, |factors| factors.data[i]);
                    let (sin, cos) = (inputs[1].data[token] * f / factor).sin_cos();
                    (sin * magnitude, cos * magnitude)
                };
                let (a, b) = self.pair(i);
                let (x0, x1) = (inputs[0].row(r)[a], inputs[0].row(r)[b]);
                out.row_mut(r)[a] = x0 * cos - x1 * sin;
                out.row_mut(r)[b] = x0 * sin + x1 * cos;
            }
        }
        out
    }
}

/// Two changes of frequencies for the cases.
fn yarns() -> [RopeScaling; 2] {
    let yarn = RopeScaling::Yarn {
        factor: 4.0,
        original_context: 2048,
        beta_fast: 32.0,
        beta_slow: 1.0,
        ext_factor: 1.0,
        attn_factor: 1.0,
    };
    let flat = RopeScaling::Yarn {
        factor: 8.0,
        original_context: 512,
        beta_fast: 32.0,
        beta_slow: 1.0,
        ext_factor: 0.0,
        attn_factor: 0.5,
    };
    [yarn, flat]
}

/// Rotations of all kinds.
pub(super) fn samples() -> Vec<Rope> {
    let [yarn, flat] = yarns();
    let mut samples = Vec::new();
    for scaling in [RopeScaling::None, RopeScaling::Linear(2.5), yarn, flat] {
        for (dims, base) in [(64, 10_000.0), (256, 1_000_000.0), (20, 500_000.0), (2, 10.0)] {
            samples.push(Rope { kind: RopeKind::Neox, dims, base, scaling });
        }
    }
    samples
}

pub(super) fn cases() -> Vec<Case> {
    // sine and cosine are good to 1e-7, and each result is the sum of two products
    let tolerance = Tolerance::Relative(5e-7);
    let mut cases = Vec::new();
    let [yarn, flat] = yarns();
    let x = |ne: &[usize]| Operand::normal(DType::F32, ne);
    let positions = |n: usize| Operand::normal(DType::I32, &[n]).fill(Fill::Ints(0, 1_000_001));
    for kind in [RopeKind::Normal, RopeKind::Neox] {
        for scaling in [RopeScaling::None, RopeScaling::Linear(2.5), yarn, flat] {
            let rope = |dims, base| Rope { kind, dims, base, scaling };
            let mut case = |rope, operands| cases.push(Case::new(rope, DType::F32, operands, tolerance));
            case(rope(64, 10_000.0), vec![x(&[64, 9, 1]), Operand::ints(&[1_000_000])]);
            case(rope(64, 10_000.0), vec![x(&[64, 3, 4]), Operand::ints(&[0, 1, 2047, 131_071])]);
            case(rope(256, 1_000_000.0), vec![x(&[256, 4, 7]), positions(7)]);
            case(rope(20, 500_000.0), vec![x(&[33, 2, 5]), positions(5)]);
            case(rope(2, 10.0), vec![x(&[2, 1, 3, 2]), Operand::ints(&[3, -5, 100])]);
            case(rope(0, 10_000.0), vec![x(&[7, 2, 3]), positions(3)]);
            case(rope(64, 10_000.0), vec![x(&[64, 9, 0]), positions(0)]);
            let factors = Operand::normal(DType::F32, &[24]).fill(Fill::Uniform(1.0, 32.0));
            case(rope(48, 10_000.0), vec![x(&[64, 3, 6]), positions(6), factors]);
            // q as a part of a wider row; the heads in another order
            case(rope(64, 10_000.0), vec![x(&[64, 12, 5]).slice(1, 3, 9), positions(5)]);
            case(rope(64, 10_000.0), vec![x(&[64, 5, 3]).permuted([0, 2, 1, 3]), positions(5)]);
        }
        let rope = Rope { kind, dims: 64, base: 10_000.0, scaling: RopeScaling::None };
        let angles = |ne: &[usize]| Operand::normal(DType::F32, ne).fill(Fill::Uniform(-1.0, 1.0));
        for operands in [
            vec![x(&[64, 9, 1]), angles(&[64, 1])],
            vec![x(&[80, 3, 5, 2]), angles(&[64, 5])],
            vec![x(&[64, 12, 5]).slice(1, 3, 9), angles(&[64, 9]).slice(1, 2, 5)],
            vec![x(&[64, 9, 0]), angles(&[64, 0])],
        ] {
            cases.push(Case::new(rope, DType::F32, operands, tolerance));
        }
        cases.push(Case::new(rope, DType::F32, vec![x(&[64, 9, 512]), positions(512)], tolerance));
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Outcome, run_direct};
    use crate::device::software::simd::Isa;

    #[test]
    fn all_cases_on_every_instruction_set() {
        for (case, isa) in cases().iter().flat_map(|c| Isa::available().map(move |isa| (c, isa))) {
            let outcome = run_direct(case, isa);
            assert!(matches!(outcome, Outcome::Ok { .. }), "{}: {outcome:?}: {case:?}", isa.name());
        }
    }

    #[test]
    fn sine_and_cosine_are_good_everywhere() {
        // quarter turns, their neighbours, small, large and negative angles
        let edges = (-9..10).flat_map(|i| [-1e-9, 0.0, 1e-9].map(|d| f64::from(i) * FRAC_PI_2 / 2.0 + d));
        let spread = (0..10_000).map(|i| f64::from(i) * 100.7 - 3e5);
        for angle in edges.chain(spread) {
            let (s, c) = sin_cos(angle);
            let (sin, cos) = angle.sin_cos();
            // two roundings of numbers up to 1
            assert!(
                (f64::from(s) - sin).abs() < 1.2e-7 && (f64::from(c) - cos).abs() < 1.2e-7,
                "{angle}: {s} {c}"
            );
        }
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
        let rope = |scaling| Rope { kind: RopeKind::Neox, dims: 128, base: 10_000.0, scaling };
        let (plain, one) = rope(RopeScaling::None).frequencies();
        let (scaled, magnitude) = rope(RopeScaling::Yarn {
            factor: 16.0,
            original_context: 4096,
            beta_fast: 32.0,
            beta_slow: 1.0,
            ext_factor: 1.0,
            attn_factor: 1.0,
        })
        .frequencies();
        assert_eq!(one, 1.0);
        assert!((magnitude - (0.1 * 16f64.ln() + 1.0)).abs() < 1e-12);
        let turns = |i: usize| 4096.0 * plain[i] / TAU;
        for i in 0..64 {
            let share = scaled[i] / plain[i];
            // one pair of slack: the ends of the ramp are whole pairs
            if i > 0 && turns(i - 1) > 32.0 && turns(i + 1) > 32.0 {
                assert!((share - 1.0).abs() < 1e-12, "pair {i}: {share}");
            }
            if turns(i.saturating_sub(1)) < 1.0 {
                assert!((share - 1.0 / 16.0).abs() < 1e-12, "pair {i}: {share}");
            }
            assert!((1.0 / 16.0 - 1e-12..=1.0 + 1e-12).contains(&share));
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let desc = |dtype, ne: &[usize]| Desc::new(dtype, ne).unwrap();
        let rope = |dims| Rope { kind: RopeKind::Neox, dims, base: 10_000.0, scaling: RopeScaling::None };
        let (x, positions) = (desc(DType::F32, &[64, 3, 5]), desc(DType::I32, &[5]));
        assert!(rope(64).output(&[x, positions]).is_ok());
        assert!(rope(66).output(&[x, positions]).is_err());
        assert!(rope(63).output(&[x, positions]).is_err());
        assert!(rope(64).output(&[x, desc(DType::I32, &[4])]).is_err());
        assert!(rope(64).output(&[x, positions, desc(DType::F32, &[31])]).is_err());
        let zero = Rope { scaling: RopeScaling::Linear(0.0), ..rope(64) };
        assert!(zero.supports(&[x, positions], &x).is_err());
    }
}
