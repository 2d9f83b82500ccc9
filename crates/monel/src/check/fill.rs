//! Fills operands from a fixed seed.
//!
//! The generator is a counter run through a mixer (SplitMix64, Steele, Lea and Flood 2014), so a case always sees the
//! same numbers, on every machine and in every order of cases.

use super::{Case, Fill, Operand, View};
use crate::device::software::simd::{self, TILE_ROWS};
use crate::error::{Error, Result};
use crate::quant;
use crate::tensor::{DType, Desc};

/// Random numbers from a counter.
pub(super) struct Rng {
    counter: u64,
}

impl Rng {
    /// The numbers of one case: the seed comes from what the case says.
    pub(super) fn of_case(case: &Case) -> Rng {
        // FNV-1a over the printed case
        let hash = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
        Rng { counter: format!("{case:?}").bytes().fold(0xcbf2_9ce4_8422_2325, hash) }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.counter = self.counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.counter ^ (self.counter >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Evenly from 0 to 1, the end excluded.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Normal, mean 0, deviation 1 (Box and Muller).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    fn values(&mut self, fill: &Fill, count: usize) -> Result<Vec<f64>> {
        Ok(match fill {
            Fill::Normal(deviation) => (0..count).map(|_| self.normal() * f64::from(*deviation)).collect(),
            Fill::Uniform(from, to) => {
                let (from, width) = (f64::from(*from), f64::from(*to) - f64::from(*from));
                (0..count).map(|_| from + width * self.unit()).collect()
            }
            Fill::Ints(from, to) => {
                let width = to.abs_diff(*from).max(1);
                (0..count).map(|_| from.wrapping_add((self.next() % width) as i64) as f64).collect()
            }
            Fill::Shuffled => {
                let mut values: Vec<f64> = (0..count).map(|i| i as f64).collect();
                for i in (1..count).rev() {
                    values.swap(i, (self.next() % (i as u64 + 1)) as usize);
                }
                values
            }
            Fill::Values(values) if values.len() == count => values.clone(),
            Fill::Values(values) => {
                return Err(Error::shape(
                    "check",
                    format!("{count} values for the operand, found {}", values.len()),
                ));
            }
        })
    }
}

/// The memory of an operand before the view, the view on it, and the view's byte offset.
pub(super) fn layout(operand: &Operand) -> Result<(Desc, Desc, usize)> {
    let base = Desc::new(operand.dtype, &operand.ne)?;
    let (view, offset) = match operand.view {
        View::Whole => (base, 0),
        View::Permuted(axes) => (base.permute(axes)?, 0),
        View::Slice { dim, start, len } => base.slice(dim, start, len)?,
    };
    Ok((base, view, offset))
}

/// The bytes of an operand's memory (before the view).
pub(super) fn bytes(operand: &Operand, base: &Desc, rng: &mut Rng) -> Result<Vec<u8>> {
    let values = rng.values(&operand.fill, base.elements())?;
    encode(base, &values)
}

/// Values as the bytes of a contiguous tensor.
fn encode(base: &Desc, values: &[f64]) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(base.span());
    match base.dtype {
        DType::F32 => values.iter().for_each(|&x| bytes.extend((x as f32).to_le_bytes())),
        DType::F16 => values.iter().for_each(|&x| bytes.extend(half::f16::from_f32(x as f32).to_le_bytes())),
        DType::BF16 => {
            values.iter().for_each(|&x| bytes.extend(half::bf16::from_f32(x as f32).to_le_bytes()))
        }
        DType::I32 => values.iter().for_each(|&x| bytes.extend((x as i32).to_le_bytes())),
        DType::I64 => values.iter().for_each(|&x| bytes.extend((x as i64).to_le_bytes())),
        _ if base.is_empty() => {}
        DType::Packed(block) => {
            let (k, rows) = (base.ne[0], base.ne[1]);
            let natural = encode(&Desc::new(DType::of(block), &[k, rows])?, values)?;
            bytes.resize(base.span(), 0);
            let stride = block.row_bytes(k);
            for (tile, out) in bytes.chunks_exact_mut(simd::tile_bytes(block, k)).enumerate() {
                let first = tile * TILE_ROWS;
                let (from, count) = (&natural[first * stride..], (rows - first).min(TILE_ROWS));
                simd::pack_tile(block, k, from, stride, count, out).map_err(cannot_fill)?;
            }
        }
        DType::Q8A => {
            bytes.resize(base.span(), 0);
            for (values, out) in values.chunks_exact(base.ne[0]).zip(bytes.chunks_exact_mut(base.nb[1])) {
                simd::quantize_act_row(simd::Isa::SCALAR, &floats(values), out).map_err(cannot_fill)?;
            }
        }
        DType::Planar(block) => {
            let natural = encode(&Desc::new(DType::of(block), &base.ne)?, values)?;
            bytes.resize(base.span(), 0);
            let rows = natural.chunks_exact(block.row_bytes(base.ne[0]));
            for (from, out) in rows.zip(bytes.chunks_exact_mut(base.nb[1])) {
                quant::planar::encode_row(block, base.ne[0], from, out).map_err(cannot_fill)?;
            }
        }
        DType::Q8P => {
            bytes.resize(base.span(), 0);
            for (values, out) in values.chunks_exact(base.ne[0]).zip(bytes.chunks_exact_mut(base.nb[1])) {
                crate::ops::quantize_q8p(&floats(values), out);
            }
        }
        t => {
            let block = t.block().ok_or_else(|| cannot_fill(format!("{t} has no blocks")))?;
            bytes.resize(base.span(), 0);
            for (values, out) in values.chunks_exact(base.ne[0]).zip(bytes.chunks_exact_mut(base.nb[1])) {
                quant::quantize_row(block, &floats(values), out).map_err(cannot_fill)?;
            }
        }
    }
    Ok(bytes)
}

fn floats(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&x| x as f32).collect()
}

fn cannot_fill(why: impl std::fmt::Display) -> Error {
    Error::shape("check", format!("an operand that can be filled: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_numbers_have_mean_zero_and_deviation_one() {
        let mut rng = Rng { counter: 7 };
        let n = 100_000;
        let values: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
        let mean = values.iter().sum::<f64>() / n as f64;
        let variance = values.iter().map(|x| x * x).sum::<f64>() / n as f64;
        // five standard errors of the two estimates
        assert!(mean.abs() < 5.0 / (n as f64).sqrt(), "{mean}");
        assert!((variance - 1.0).abs() < 5.0 * (2.0 / n as f64).sqrt(), "{variance}");
    }

    #[test]
    fn shuffled_has_every_number_once() {
        let mut values = Rng { counter: 1 }.values(&Fill::Shuffled, 50).unwrap();
        assert_ne!(values, (0..50).map(f64::from).collect::<Vec<_>>());
        values.sort_by(f64::total_cmp);
        assert_eq!(values, (0..50).map(f64::from).collect::<Vec<_>>());
        assert!(Rng { counter: 1 }.values(&Fill::Values(vec![1.0]), 2).is_err());
    }
}
