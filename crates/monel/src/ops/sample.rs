//! Drawing a token on the device, so that decoding need not wait for the host.
//!
//! The order of the steps is that of llama.cpp's usual chain: penalties, top-k, top-p, min-p, temperature, draw. The
//! arithmetic is made so that every device can repeat it and the same seed gives the same text:
//!
//! - Candidates are ordered by logit, the lower id first among equals (the keys of `pick`).
//! - A candidate's weight is a whole number, `trunc(2^30 · e^(x - largest))`, with the exponential of
//!   `ops/unary.rs`: f32, rounded after each operation, none fused. Sums of whole numbers do not depend on their
//!   order. What is less likely than 2^-30 times the likeliest is never drawn.
//! - top-p keeps the shortest beginning of the candidates whose weights reach `total · p`, p in units of 2^-24. min-p keeps
//!   weights of at least `trunc(2^30 · min_p)`.
//! - With a temperature, weights are formed anew from `(x - largest) · (1 / temperature)`; the reciprocal comes with the
//!   parameters. Zero (or less) means the first candidate.
//! - The random number is the first word of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
//!   SC 2011) with the seed as key and the position as counter: no state is kept. `(random · total) >> 32` falls into
//!   the interval of one candidate.

mod shader;

use super::pick::{self, PIECE, pieces, scratch_keys, select, value_of};
use super::unary::{exp, vectorized};
use super::{Cost, Op};
use crate::check::{Case, Fill, Operand, Tolerance};
use crate::error::{Error, Result};
use crate::gpu::{Dispatch, GpuCall};
use crate::kernel::{Call, Input, Kernel, RefTensor};
use crate::tensor::{DType, Desc};
use std::collections::BinaryHeap;

/// What to draw by. [`SampleParams::to_values`] makes the op's input of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleParams {
    /// Above 1 flattens, below 1 sharpens; 0 or less takes the likeliest token.
    pub temperature: f32,
    /// How many of the likeliest tokens stay; 0 for all.
    pub top_k: u32,
    /// The share of the probability that the likeliest tokens have to reach; 1 or more for all.
    pub top_p: f32,
    /// The least probability, as a share of the largest; 0 for none.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens that occurred; 1 for none.
    pub repeat_penalty: f32,
    /// Taken from the logits of tokens that occurred.
    pub presence_penalty: f32,
    /// Taken from the logits of tokens once for each occurrence.
    pub frequency_penalty: f32,
    /// How many of the last tokens the penalties look at.
    pub penalty_last_n: u32,
    /// The key of the random numbers.
    pub seed: u64,
}

impl Default for SampleParams {
    fn default() -> SampleParams {
        SampleParams {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last_n: 64,
            seed: 0,
        }
    }
}

impl SampleParams {
    /// Always the likeliest token.
    pub fn greedy() -> SampleParams {
        SampleParams { temperature: 0.0, ..SampleParams::default() }
    }

    /// The values of the op's third input: temperature, top_k, top_p, min_p, repeat, presence, frequency, last_n, the
    /// seed's low and high half, 1 / temperature, and zeros. Whole numbers are stored as their bits.
    pub fn to_values(&self) -> [f32; 16] {
        let mut values = [0.0; 16];
        values[..11].copy_from_slice(&[
            self.temperature,
            f32::from_bits(self.top_k),
            self.top_p,
            self.min_p,
            self.repeat_penalty,
            self.presence_penalty,
            self.frequency_penalty,
            f32::from_bits(self.penalty_last_n),
            f32::from_bits(self.seed as u32),
            f32::from_bits((self.seed >> 32) as u32),
            1.0 / self.temperature,
        ]);
        values
    }

    /// The same as bytes, ready to be uploaded.
    pub fn to_bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        let values = self.to_values();
        bytes.as_chunks_mut::<4>().0.iter_mut().zip(values).for_each(|(b, v)| *b = v.to_bits().to_le_bytes());
        bytes
    }

    /// From the bits of the sixteen values.
    fn from_bits(bits: &[u32]) -> SampleParams {
        let float = |i: usize| f32::from_bits(bits[i]);
        SampleParams {
            temperature: float(0),
            top_k: bits[1],
            top_p: float(2),
            min_p: float(3),
            repeat_penalty: float(4),
            presence_penalty: float(5),
            frequency_penalty: float(6),
            penalty_last_n: bits[7],
            seed: u64::from(bits[8]) | u64::from(bits[9]) << 32,
        }
    }

    fn read(input: &Input) -> SampleParams {
        let values = input.row::<i32>(0);
        let bits: [u32; 16] = std::array::from_fn(|i| values[i] as u32);
        SampleParams::from_bits(&bits)
    }

    fn is_greedy(&self) -> bool {
        self.temperature.is_nan() || self.temperature <= 0.0
    }

    /// How many candidates top-k leaves.
    fn candidates(&self, vocabulary: usize) -> usize {
        match self.top_k as usize {
            _ if self.is_greedy() => 1,
            0 => vocabulary,
            k => k.min(vocabulary),
        }
    }

    fn penalises(&self) -> bool {
        self.repeat_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// A logit of a token that occurred `count` times.
    fn penalised(&self, logit: f32, count: usize) -> f32 {
        let repeated = if logit > 0.0 { logit / self.repeat_penalty } else { logit * self.repeat_penalty };
        repeated - count as f32 * self.frequency_penalty - self.presence_penalty
    }
}

/// Draws the token that follows position p. Inputs: logits F32 `[vocabulary]` of position p; history I32 `[n]`, the token at
/// each position (-1 for none; what is no token is passed over); parameters F32 `[16]` ([`SampleParams`]); p, I32 `[1]`.
/// Result I32 `[1]`. The penalties look at the last `penalty_last_n` of `history[0..=p]`. NaN among the logits is an
/// [`Error::Kernel`] of the submission.
#[derive(Clone, Copy, Debug)]
pub struct Sample;

impl Op for Sample {
    fn name(&self) -> &'static str {
        "sample"
    }

    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        let [logits, history, params, position] = inputs else {
            let expected = format!("logits, history, parameters and position, found {} inputs", inputs.len());
            return Err(Error::shape("sample", expected));
        };
        let wrong = |what: &str, found: &Desc| Err(Error::shape("sample", format!("{what}, found {found}")));
        if logits.rows() != 1 || logits.ne[0] == 0 || i32::try_from(logits.ne[0]).is_err() {
            return wrong("logits [1 to 2^31 - 1]", logits);
        }
        if history.rows() != 1 {
            return wrong("history [n]", history);
        }
        if params.ne != [16, 1, 1, 1] {
            return wrong("parameters [16]", params);
        }
        if position.ne != [1; 4] {
            return wrong("position [1]", position);
        }
        Desc::new(DType::I32, &[1])
    }

    fn supports(&self, inputs: &[Desc], _: &Desc) -> Result<(), String> {
        for (d, dtype) in inputs.iter().zip([DType::F32, DType::I32, DType::F32, DType::I32]) {
            if d.dtype != dtype || !d.has_dense_rows() {
                return Err(format!(
                    "F32 logits, I32 history, F32 parameters and I32 position, all dense, found {d}"
                ));
            }
        }
        Ok(())
    }

    fn cost(&self, inputs: &[Desc], _: &Desc) -> Cost {
        Cost { flops: inputs[0].elements() as f64 * 4.0, bytes: inputs[0].span() as f64 }
    }

    fn scratch(&self, inputs: &[Desc], _: &Desc) -> usize {
        // the candidates of each piece, in order, and for each piece how many they are and how many are NaN; on a GPU
        // the order numbers, a list, and its pieces' heads
        (inputs[0].ne[0] + pieces(inputs[0].ne[0])) * 8 + shader::EXTRA
    }

    fn kernels(&self, call: &Call<'_>) -> Vec<Kernel> {
        let (out, scratch) = (call.output, call.scratch);
        let [logits, history, params, position] = [0, 1, 2, 3].map(|i| call.inputs[i]);
        let vocabulary = logits.desc.ne[0];
        let count = pieces(vocabulary);
        vec![
            Kernel::new(count, 2, move |items, worker| {
                let mut best = Vec::new();
                let params = SampleParams::read(&params);
                let past = window(history.row(0), position.at([0; 4]), params.penalty_last_n);
                for piece in items {
                    let range = pick::range(vocabulary, piece);
                    let isa = worker.isa;
                    let mut floats = &logits.row(0)[range.clone()];
                    if params.penalises() {
                        let changed = worker.floats(range.len());
                        changed.copy_from_slice(floats);
                        penalise(changed, range.start, past, &params);
                        floats = changed;
                    }
                    let nan =
                        vectorized(isa, || floats.iter().fold(0, |n: u32, x| n + u32::from(x.is_nan())));
                    let kept = params.candidates(vocabulary).min(range.len());
                    select(isa, floats, range.start, kept, &mut best);
                    // SAFETY: these keys of the scratch memory belong to this piece.
                    let keys = unsafe { scratch_keys(&scratch, range.start..range.start + kept) };
                    keys.copy_from_slice(&best);
                    // SAFETY: so does this one.
                    let header =
                        unsafe { scratch_keys(&scratch, vocabulary + piece..vocabulary + piece + 1) };
                    header[0] = u64::from(nan) << 32 | kept as u64;
                }
                Ok(())
            }),
            Kernel::new(1, 1, move |items, _| {
                if items.is_empty() {
                    return Ok(());
                }
                // SAFETY: the first kernel is done with the scratch memory, and this one has a single item.
                let keys = unsafe { scratch_keys(&scratch, 0..vocabulary + count) };
                let (keys, headers) = keys.split_at(vocabulary);
                let position = position.at::<i32>([0; 4]);
                let nan: u64 = headers.iter().map(|h| h >> 32).sum();
                if nan > 0 {
                    let text = format!("sample: {nan} of {vocabulary} logits of position {position} are NaN");
                    return Err(Error::Kernel(text));
                }
                let lists = headers.iter().enumerate();
                let lists = lists.map(|(i, &h)| &keys[i * PIECE..i * PIECE + h as u32 as usize]).collect();
                let bits: [u32; 16] = std::array::from_fn(|i| params.row::<i32>(0)[i] as u32);
                let inverse = f32::from_bits(bits[10]);
                let token = choose(lists, vocabulary, &SampleParams::from_bits(&bits), inverse, position);
                // SAFETY: the result belongs to the only item.
                unsafe { out.set([0; 4], token as i32) };
                Ok(())
            }),
        ]
    }

    fn shader(&self, call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
        shader::shader(call)
    }

    fn reference(&self, inputs: &[RefTensor], output: &Desc) -> RefTensor {
        let [logits, history, params, position] = [0, 1, 2, 3].map(|i| &inputs[i].data);
        let bits: Vec<u32> = params.iter().map(|&x| (x as f32).to_bits()).collect();
        let token = reference(logits, history, &SampleParams::from_bits(&bits), position[0] as i32);
        RefTensor { ne: output.ne, data: vec![token as f64] }
    }
}

/// The tokens that penalties look at: the last `n` of those at positions 0 to p.
fn window<T>(history: &[T], position: i32, n: u32) -> &[T] {
    let end = history.len().min(usize::try_from(i64::from(position) + 1).unwrap_or(0));
    &history[end.saturating_sub(n as usize)..end]
}

/// Applies the penalties to the logits of the tokens from `start`.
fn penalise(logits: &mut [f32], start: usize, past: &[i32], params: &SampleParams) {
    let inside = |&t: &i32| usize::try_from(t).ok()?.checked_sub(start).filter(|&t| t < logits.len());
    let mut tokens: Vec<usize> = past.iter().filter_map(inside).collect();
    tokens.sort_unstable();
    for same in tokens.chunk_by(|a, b| a == b) {
        logits[same[0]] = params.penalised(logits[same[0]], same.len());
    }
}

/// The first word of Philox4x32-10.
fn random(seed: u64, position: i32) -> u32 {
    philox([position as u32, 0, 0, 0], [seed as u32, (seed >> 32) as u32])[0]
}

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xd251_1f53;
        let b = u64::from(counter[2]) * 0xcd9e_8d57;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    counter
}

/// 2^30 e^((x - largest) · inverse), cut off to a whole number.
#[inline(always)]
fn weight(key: u64, largest: f32, inverse: f32) -> u64 {
    let x = value_of(key);
    // equal infinities have a difference of zero here
    if x == largest { 1 << 30 } else { (exp((x - largest) * inverse) * (1u32 << 30) as f32) as u64 }
}

/// The pieces' candidates in one order, found as far as they are asked for.
struct Candidates<'a> {
    lists: Vec<&'a [u64]>,
    heads: BinaryHeap<(u64, usize)>,
    next: Vec<usize>,
    sorted: Vec<u64>,
}

impl<'a> Candidates<'a> {
    fn new(lists: Vec<&'a [u64]>) -> Candidates<'a> {
        let heads =
            lists.iter().enumerate().filter_map(|(i, list)| list.first().map(|&key| (key, i))).collect();
        Candidates { next: vec![1; lists.len()], lists, heads, sorted: Vec::new() }
    }

    /// The candidate of rank `i`.
    fn get(&mut self, i: usize) -> Option<u64> {
        while self.sorted.len() <= i {
            let mut head = self.heads.peek_mut()?;
            let (key, list) = *head;
            match self.lists[list].get(self.next[list]) {
                Some(&following) => *head = (following, list),
                None => drop(std::collections::binary_heap::PeekMut::pop(head)),
            }
            self.next[list] += 1;
            self.sorted.push(key);
        }
        Some(self.sorted[i])
    }

    /// The weights of the first n; all of them need no order.
    fn total(&mut self, n: usize, vocabulary: usize, largest: f32, inverse: f32) -> u64 {
        if n < vocabulary {
            return (0..n).map_while(|i| self.get(i)).map(|key| weight(key, largest, inverse)).sum();
        }
        self.lists.iter().flat_map(|list| list.iter()).map(|&key| weight(key, largest, inverse)).sum()
    }
}

/// The token, from each piece's candidates in order. There is at least one.
fn choose(
    lists: Vec<&[u64]>,
    vocabulary: usize,
    params: &SampleParams,
    inverse: f32,
    position: i32,
) -> usize {
    let mut candidates = Candidates::new(lists);
    let Some(first) = candidates.get(0) else { return 0 };
    let mut n = params.candidates(vocabulary);
    if n == 1 {
        return pick::index_of(first);
    }
    let largest = value_of(first);
    if params.top_p < 1.0 {
        let share = (params.top_p.max(0.0) * (1u32 << 24) as f32) as u128;
        let enough = u128::from(candidates.total(n, vocabulary, largest, 1.0)) * share;
        let (mut sum, mut kept) = (0, 0);
        while kept < n && (kept == 0 || u128::from(sum) << 24 < enough) {
            sum += candidates.get(kept).map_or(0, |key| weight(key, largest, 1.0));
            kept += 1;
        }
        n = kept;
    }
    if params.min_p > 0.0 {
        let least = (params.min_p * (1u32 << 30) as f32) as u64;
        let passes = |key: u64| weight(key, largest, 1.0) >= least;
        n = (1..n).find(|&i| !candidates.get(i).is_some_and(passes)).unwrap_or(n);
    }
    let total = candidates.total(n, vocabulary, largest, inverse);
    let mut left = ((u128::from(random(params.seed, position)) * u128::from(total)) >> 32) as u64;
    for i in 0..n {
        let Some(key) = candidates.get(i) else { break };
        let weight = weight(key, largest, inverse);
        if left < weight {
            return pick::index_of(key);
        }
        left -= weight;
    }
    // not reached: what is left is less than the total
    pick::index_of(first)
}

/// The same in f64, step by step over the sorted vocabulary.
fn reference(logits: &[f64], history: &[f64], params: &SampleParams, position: i32) -> usize {
    let mut counts = vec![0; logits.len()];
    for &token in window(history, position, params.penalty_last_n) {
        if token >= 0.0 && (token as usize) < counts.len() {
            counts[token as usize] += 1;
        }
    }
    // the penalties in f32, as ties and order depend on their rounding
    let value =
        |(&x, &count): (&f64, &usize)| if count > 0 { params.penalised(x as f32, count) } else { x as f32 };
    let mut candidates: Vec<(f32, usize)> = logits.iter().zip(&counts).map(value).zip(0..).collect();
    candidates.sort_by(|a, b| b.0.total_cmp(&a.0));
    let largest = candidates[0].0;
    candidates.truncate(params.candidates(logits.len()));
    let weight = |x: f32| if x == largest { 1.0 } else { (f64::from(x) - f64::from(largest)).exp() };
    if params.top_p < 1.0 {
        let total: f64 = candidates.iter().map(|c| weight(c.0)).sum();
        let mut sum = 0.0;
        let reaches = |c: &(f32, usize)| {
            sum += weight(c.0);
            sum >= total * f64::from(params.top_p)
        };
        let kept = candidates.iter().position(reaches).map_or(candidates.len(), |i| i + 1);
        candidates.truncate(kept);
    }
    if params.min_p > 0.0 {
        let kept = candidates.iter().take_while(|c| weight(c.0) >= f64::from(params.min_p)).count();
        candidates.truncate(kept.max(1));
    }
    if candidates.len() == 1 {
        return candidates[0].1;
    }
    let weights = |c: &(f32, usize)| weight(c.0).powf(1.0 / f64::from(params.temperature));
    let total: f64 = candidates.iter().map(weights).sum();
    let mut left = f64::from(random(params.seed, position)) / 4_294_967_296.0 * total;
    for c in &candidates {
        left -= weights(c);
        if left < 0.0 {
            return c.1;
        }
    }
    candidates[candidates.len() - 1].1
}

pub(super) fn cases() -> Vec<Case> {
    let plain = SampleParams::default();
    let loose = SampleParams { top_k: 0, top_p: 1.0, min_p: 0.0, temperature: 1.0, ..plain };
    let strict = SampleParams { repeat_penalty: 1.3, frequency_penalty: 0.2, presence_penalty: 0.1, ..plain };
    let variants = [
        SampleParams::greedy(),
        SampleParams { repeat_penalty: 1.5, ..SampleParams::greedy() },
        SampleParams { seed: 1, ..plain },
        SampleParams { seed: 0x7f00_0000_1234, top_p: 1.0, min_p: 0.0, ..plain },
        SampleParams { top_k: 1, ..plain },
        SampleParams { top_k: 3000, min_p: 0.0, temperature: 1.7, ..plain },
        SampleParams { top_p: 0.0, ..plain },
        SampleParams { min_p: 2.0, ..plain },
        SampleParams { seed: 5, ..loose },
        SampleParams { seed: 6, top_p: 0.9, ..loose },
        SampleParams { seed: 7, min_p: 0.01, temperature: 3.0, ..loose },
        SampleParams { seed: 8, ..strict },
        SampleParams { seed: 9, penalty_last_n: 0, ..strict },
        SampleParams { seed: 10, penalty_last_n: 1000, ..strict },
    ];
    let mut cases = Vec::new();
    for (vocabulary, position) in
        [(1, 0), (7, 3), (300, 0), (8193, 120), (49_152, 7), (151_936, 99), (262_144, -1)]
    {
        for (i, params) in variants.iter().enumerate() {
            if vocabulary > 100_000 && i % 3 != 2 {
                continue;
            }
            let logits = Operand::normal(DType::F32, &[vocabulary]).fill(Fill::Normal(3.0));
            // some before the vocabulary and some behind it
            let tokens = Fill::Ints(-1, vocabulary.min(200) as i64 + 3);
            let history = Operand::normal(DType::I32, &[128]).fill(tokens);
            let values = params.to_values().iter().map(|&x| x.into()).collect();
            let params = Operand::normal(DType::F32, &[16]).fill(Fill::Values(values));
            let inputs = vec![logits, history, params, Operand::ints(&[position])];
            cases.push(Case::new(Sample, DType::F32, inputs, Tolerance::Exact));
        }
    }
    // many equal logits: the order among them decides
    let logits = Operand::normal(DType::F32, &[9000]).fill(Fill::Ints(0, 3));
    let values = SampleParams { seed: 3, ..plain }.to_values().iter().map(|&x| x.into()).collect();
    let params = Operand::normal(DType::F32, &[16]).fill(Fill::Values(values));
    let inputs = vec![logits, Operand::ints(&[]), params, Operand::ints(&[12])];
    cases.push(Case::new(Sample, DType::F32, inputs, Tolerance::Exact));
    cases
}

#[cfg(test)]
mod tests {
    use super::pick::key;
    use super::*;
    use crate::check::{Outcome, run_direct};
    use crate::device::software::simd::Isa;

    #[test]
    fn philox_gives_the_published_numbers() {
        // the known answers of the authors' Random123 library
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = philox([u32::MAX; 4], [u32::MAX; 2]);
        assert_eq!(ones, [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
        assert_eq!(pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    fn keys(logits: &[f32]) -> Vec<u64> {
        let mut keys: Vec<u64> = logits.iter().enumerate().map(|(i, &x)| key(x, i)).collect();
        keys.sort_unstable_by(|a, b| b.cmp(a));
        keys
    }

    #[test]
    fn tokens_come_as_often_as_they_should() {
        let logits = [0.0, 1.0, -1.0, 2.0, 0.5];
        let params = SampleParams {
            temperature: 0.7,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 42,
            ..Default::default()
        };
        let (keys, n) = (keys(&logits), 20_000);
        let mut counts = [0.0f64; 5];
        for position in 0..n {
            counts[choose(vec![&keys], 5, &params, 1.0 / 0.7, position)] += 1.0;
        }
        let weights = logits.map(|x: f32| (f64::from(x) / 0.7).exp());
        let total: f64 = weights.iter().sum();
        for (count, weight) in counts.iter().zip(weights) {
            let p = weight / total;
            // five standard deviations of a binomial count
            let limit = 5.0 * (f64::from(n) * p * (1.0 - p)).sqrt();
            assert!((count - f64::from(n) * p).abs() < limit, "{counts:?}, expected {}", f64::from(n) * p);
        }
    }

    #[test]
    fn infinite_logits_are_certain_or_impossible() {
        let params = SampleParams { top_k: 0, top_p: 1.0, min_p: 0.0, ..Default::default() };
        let certain = keys(&[1.0, f32::INFINITY, 2.0]);
        let impossible = keys(&[f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY]);
        let nothing = keys(&[f32::NEG_INFINITY; 3]);
        let mut seen = [false; 3];
        for position in 0..100 {
            assert_eq!(choose(vec![&certain], 3, &params, 1.25, position), 1);
            assert_eq!(choose(vec![&impossible], 3, &params, 1.25, position), 1);
            seen[choose(vec![&nothing], 3, &params, f32::INFINITY, position)] = true;
        }
        assert_eq!(seen, [true; 3]);
    }

    #[test]
    fn nan_logits_are_counted_in_the_error() {
        let mut logits = vec![0.5; 9000];
        (logits[3], logits[8999]) = (f64::NAN, f64::NAN);
        for params in [SampleParams::default(), SampleParams::greedy()] {
            let values = params.to_values().iter().map(|&x| x.into()).collect();
            let case = Case::new(
                Sample,
                DType::F32,
                vec![
                    Operand::normal(DType::F32, &[9000]).fill(Fill::Values(logits.clone())),
                    Operand::ints(&[1, 2]),
                    Operand::normal(DType::F32, &[16]).fill(Fill::Values(values)),
                    Operand::ints(&[1]),
                ],
                Tolerance::Exact,
            );
            let Outcome::Failed { reason, .. } = run_direct(&case, Isa::SCALAR) else { panic!("no error") };
            assert!(reason.contains("2 of 9000 logits of position 1 are NaN"), "{reason}");
        }
    }

    #[test]
    fn parameters_survive_as_bits() {
        let params = SampleParams { seed: 0xffff_ffff_7fa0_0001, top_k: u32::MAX, ..SampleParams::default() };
        let bits: Vec<u32> =
            params.to_bytes().as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        assert_eq!(SampleParams::from_bits(&bits), params);
    }

    #[test]
    fn windows_stay_inside_the_history() {
        let history = [1, 2, 3, 4];
        assert_eq!(window(&history, 2, 2), [2, 3]);
        assert!(window(&history, 2, 0).is_empty());
        assert_eq!(window(&history, 100, 3), [2, 3, 4]);
        assert!(window(&history, -5, 3).is_empty());
        assert_eq!(window(&history, i32::MAX, u32::MAX), history);
    }
}
