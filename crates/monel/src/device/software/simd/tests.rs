//! Every instruction set of this machine, every type, odd shapes: against `f64` sums of what the operands hold.

use super::*;
use crate::quant::tests::{Random, random_blocks};
use crate::quant::{BlockType, dequantize_row, quantize_row};

mod floats;
mod levels;
mod products;
mod rounded;
mod vectors;

fn quantized() -> impl Iterator<Item = BlockType> {
    BlockType::ALL.into_iter().filter(|ty| !ty.is_float())
}
