//! Products of a row that is normed first, by every workgroup for itself.
//!
//! Reading a row once more costs a workgroup less than a kernel of its own costs everything behind it, which waits for that
//! kernel to begin, to end, and for the barrier between. So that the copies of this work stay few, workgroups are large.

use super::Operand;
use super::cut::Cut;
use crate::gpu::{Limits, Shader};
use crate::quant::BlockType;
use crate::tensor::{DType, Desc};

/// Workgroups of 512 invocations that a large device runs at once, and those of kernels with many registers.
const AT_ONCE: usize = 528;
const AT_HAND: usize = 264;

/// Whether weights are asked for behind the norm: codes but for Q8_0, of which early ones gain 4 us a layer (8B, an H200),
/// where Q4_K loses 9 to registers and Q4_0 and Q4_1 nothing either way; of floats the next workgroup's norm hides
/// behind the reads of those before.
pub(super) fn late(w: &Desc) -> bool {
    matches!(w.dtype, DType::Planar(block) if block != BlockType::Q8_0)
}

/// x / sqrt(mean(x²) + eps), times a weight, of one row.
#[derive(Clone, Copy)]
pub(crate) struct Normed<'a> {
    /// F32 `[k]`.
    pub x: &'a Operand,
    /// F32 `[k]`.
    pub weight: Option<&'a Operand>,
    /// Keeps the root away from zero.
    pub eps: f32,
}

impl Normed<'_> {
    /// The cut with workgroups that are large enough to norm a row.
    pub fn cut(&self, cut: Cut, limits: &Limits) -> Cut {
        let quads = self.quads();
        // As for chains of rows, processors that pose as GPUs want few invocations and short arrays.
        let least = match limits.software {
            true => quads.div_ceil(16).next_power_of_two().max(8),
            false if quads > 256 => 512,
            false => 128,
        };
        Cut { threads: cut.threads.max(least.min(limits.largest_group())), ..cut }
    }

    /// Rows of the result that a workgroup makes, in steps of `together`. A result so long that a GPU's workgroups come in
    /// turns is none: measured on an H200, logits took longer with their norm inside (119 us) than after it (113 us).
    /// Floats, which take longer to read, may come in two turns. Where weights wait for the norm, all workgroups run at once
    /// with as many rows each as that takes: a second wave would norm and wait once more (Q4_K 27.2 us, in one wave 24.0).
    pub fn rows(&self, w: &Desc, together: usize, limits: &Limits) -> Result<usize, String> {
        let n = w.ne[1];
        let most = if let DType::Planar(_) = w.dtype { AT_ONCE } else { 2 * AT_ONCE };
        match limits.software {
            true => Ok(n.div_ceil(16).next_multiple_of(together)),
            false if n.div_ceil(together) <= most => {
                let turns = if late(w) { n.div_ceil(together).div_ceil(AT_HAND) } else { 1 };
                Ok(together * turns)
            }
            false => Err(format!("at most {} rows behind a norm, found {n}", most * together)),
        }
    }

    /// The text that norms the row.
    pub const CALL: &'static str = "norm_column(thread, sg, nsg, lane);\n";

    fn quads(&self) -> usize {
        self.x.desc.ne[0] / 4
    }

    /// Adds the norm to a product's kernel, with `planar` weights in eight bits. The product finds its activations in the
    /// workgroup's memory.
    pub fn add(
        &self,
        shader: Shader,
        threads: usize,
        planar: bool,
        limits: &Limits,
    ) -> Result<Shader, String> {
        let (k, quads) = (self.x.desc.ne[0], self.quads());
        let operands = [Some(self.x), self.weight];
        for operand in operands.into_iter().flatten() {
            if operand.desc.dtype != DType::F32
                || operand.desc.ne != [k, 1, 1, 1]
                || !operand.desc.is_contiguous()
            {
                return Err(format!("a norm of one row: F32[{k}], found {}", operand.desc));
            }
        }
        // Beside it lie sums of subgroups and results that are quantized.
        let bytes = if planar { k + k / 4 } else { 4 * k };
        if bytes + (8 << 10) > limits.shared_memory as usize || !k.is_multiple_of(if planar { 32 } else { 8 })
        {
            return Err(format!("a norm of one row in a workgroup's memory, found {}", self.x.desc));
        }
        let shader = shader
            .part(include_str!("../../gpu/reduce.wgsl"))
            .part(include_str!("../../gpu/norm_factor.wgsl"))
            .part(include_str!("../../gpu/quantize.wgsl"))
            .part(include_str!("normed.wgsl"))
            .define("PARTS", quads.div_ceil(threads))
            .number("quads", quads)
            .float("eps", self.eps)
            .raw("x", "read", "vec4<f32>", self.x);
        let shader = match self.weight {
            Some(weight) => shader
                .raw("weight", "read", "vec4<f32>", weight)
                .define("WEIGHTS", format!("var w: array<vec4<f32>, {}>;", quads.div_ceil(threads)))
                .define("ASK", "w[i] = weight[p.weight + q];")
                .define("WEIGHT", "* w[i]"),
            None => shader.define("WEIGHTS", "").define("ASK", "").define("WEIGHT", ""),
        };
        Ok(match planar {
            true => shader
                .define("ACTS", "return Acts(low[g], high[g], scales[g]);")
                .define("KEEP", KEEP_CODES)
                .text(&format!(
                    "var<workgroup> low: array<vec4<u32>, {0}>;\nvar<workgroup> high: array<vec4<u32>, {0}>;
var<workgroup> scales: array<vec2<f32>, {0}>;\n",
                    k / 32
                )),
            false => shader
                .define("ACTS", "return Acts(column[2u * g], column[2u * g + 1u]);")
                .define("KEEP", "if q < p.quads { column[q] = v[i]; }")
                .text(&format!("var<workgroup> column: array<vec4<f32>, {quads}>;\n")),
        })
    }
}

/// Eight neighbours share a block, and a row is whole blocks. The halves lie apart, so that neighbours that read whole
/// blocks read neighbouring vectors.
const KEEP_CODES: &str = "let z = quantize_block(v[i]);
    if q < p.quads {
      let g = q / 8u;
      if (q & 4u) == 0u { low[g][q & 3u] = z.code; } else { high[g][q & 3u] = z.code; }
      if (q & 7u) == 0u { scales[g] = vec2<f32>(z.d, z.sum); }
    }";
