//! Attention in one step: `softmax(scale q·k + mask) v` without ever storing the scores.
//!
//! The softmax is taken online, tile by tile of cells (Milakov and Gimelshein, arXiv 1805.02867; Dao et al.,
//! arXiv 2205.14135). Two ways through the same formula: many query rows against tiles of cells (`prefill`), and few
//! rows with the cells divided over items, whose partial results are combined (`decode`; on GPUs `decode_shader`).
//!
//! With [`Masking::Causal`] the kernels read the positions when they run and visit only the cells that can be seen, so
//! a decode step recorded once is replayed for every position.

mod cases;
mod decode;
mod decode_fresh;
mod decode_shader;
mod decode_text;
mod matrices;
mod operands;
mod prefill;
mod rounded;
mod shader;
mod tiles;

pub(super) use cases::cases;
pub(crate) use decode_fresh::Fresh;
pub(crate) use decode_shader::fused;

use super::{Cost, Op};
use crate::error::{Error, Result};
use crate::gpu::{Dispatch, GpuCall};
use crate::kernel::{Call, Kernel, RefTensor};
use crate::tensor::{DType, Desc};
use operands::Operands;
use shader::shader;

/// Which cells a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Masking {
    /// All of them.
    None,
    /// The fourth input is the tokens' positions (I32 `[tokens]`): the query at position p sees cell j if `j <= p` and,
    /// with a window w, `j > p - w`. A position past the last cell is an error of the submission.
    Causal {
        /// How many cells, the query's own included, are seen at most.
        window: Option<usize>,
    },
    /// The fourth input (F32 or F16 `[cells, tokens or more, heads or a divisor, batches or a divisor]`) is added to the
    /// scores; minus infinity hides a cell. What K and V hold in cells hidden from every row has no influence, NaN
    /// included.
    Mask,
}

/// Attention of q (F32 `[head, tokens, heads, batches]`) over k (`[head, cells, kv_heads, batches]`) and v
/// (`[head_v, cells, kv_heads, batches]`), both of any float or quantized type. Heads are a multiple of kv_heads, each KV head
/// serves as many query heads in a row; batches of k and v divide those of q. Gives F32 `[head_v, heads, tokens,
/// batches]`. Rows that see no cell are zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlashAttention {
    /// Multiplies q·k.
    pub scale: f32,
    /// Scores become `cap tanh(score / cap)`, before the mask.
    pub softcap: Option<f32>,
    /// Which cells a query sees; decides what the fourth input is.
    pub masking: Masking,
}

impl Op for FlashAttention {
    fn name(&self) -> &'static str {
        "flash_attention"
    }

    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        let wrong = |what: String| Err(Error::shape("flash_attention", what));
        let expected = if self.masking == Masking::None { 3 } else { 4 };
        if inputs.len() != expected {
            return wrong(format!("{expected} inputs with {:?}, found {}", self.masking, inputs.len()));
        }
        let (q, k, v) = (&inputs[0], &inputs[1], &inputs[2]);
        if q.ne[0] != k.ne[0] {
            return wrong(format!("q and k of one head size, found {q} and {k}"));
        }
        if k.ne[1..] != v.ne[1..] {
            return wrong(format!("k and v of the same cells and heads, found {k} and {v}"));
        }
        let divides = |small: usize, large: usize| small != 0 && large.is_multiple_of(small);
        if !divides(k.ne[2], q.ne[2]) || !divides(k.ne[3], q.ne[3]) {
            return wrong(format!("the heads and batches of k to divide those of q, found {k} and {q}"));
        }
        match self.masking {
            Masking::None => {}
            Masking::Causal { .. } => {
                let positions = &inputs[3];
                if positions.dtype != DType::I32 || positions.ne != [q.ne[1], 1, 1, 1] {
                    return wrong(format!("positions I32[{}], found {positions}", q.ne[1]));
                }
            }
            Masking::Mask => {
                let m = &inputs[3];
                let float = matches!(m.dtype, DType::F32 | DType::F16);
                let fits = m.ne[0] == k.ne[1] && m.ne[1] >= q.ne[1];
                if !float || !fits || !divides(m.ne[2], q.ne[2]) || !divides(m.ne[3], q.ne[3]) {
                    return wrong(format!(
                        "a mask F32 or F16 [{} cells, {} tokens, heads or a divisor], found {m}",
                        k.ne[1], q.ne[1]
                    ));
                }
            }
        }
        Desc::new(DType::F32, &[v.ne[0], q.ne[2], q.ne[1], q.ne[3]])
    }

    fn supports(&self, inputs: &[Desc], output: &Desc) -> Result<(), String> {
        let (q, k, v) = (&inputs[0], &inputs[1], &inputs[2]);
        if q.dtype != DType::F32 || !q.has_dense_rows() {
            return Err(format!("q is F32 with dense rows, found {q}"));
        }
        for (name, d) in [("k", k), ("v", v)] {
            if d.dtype.block().is_none() || !d.has_dense_rows() {
                return Err(format!("{name} is a float or quantized type with dense rows, found {d}"));
            }
        }
        if output.dtype != DType::F32 || !output.has_dense_rows() {
            return Err(format!("the result is F32 with dense rows, found {output}"));
        }
        if k.ne[1] >= 1 << 24 {
            return Err(format!("fewer than 2^24 cells, found {k}"));
        }
        match (self.masking, self.softcap) {
            (Masking::Mask, _) if !inputs[3].has_dense_rows() => {
                Err(format!("the mask has dense rows, found {}", inputs[3]))
            }
            (_, Some(cap)) if cap.is_nan() || cap <= 0.0 => Err(format!("a positive soft cap, found {cap}")),
            _ => Ok(()),
        }
    }

    fn cost(&self, inputs: &[Desc], output: &Desc) -> Cost {
        let (q, k, v) = (&inputs[0], &inputs[1], &inputs[2]);
        // With positions or a mask the number of visible cells is not known here: all cells count, which is the most.
        let pairs = (q.ne[1] * q.ne[2] * q.ne[3] * k.ne[1]) as f64;
        let bytes = inputs.iter().chain([output]).map(|d| d.span() as f64).sum();
        Cost { flops: pairs * (2 * (k.ne[0] + v.ne[0]) + 12) as f64, bytes }
    }

    fn scratch(&self, inputs: &[Desc], output: &Desc) -> usize {
        decode::scratch(inputs, output).max(decode_shader::scratch(inputs, output))
    }

    fn kernels(&self, call: &Call<'_>) -> Vec<Kernel> {
        let operands = Operands::new(*self, call);
        if call.output.desc.is_empty() {
            Vec::new()
        } else if operands.few_rows() {
            decode::kernels(operands, call)
        } else {
            vec![prefill::kernel(operands)]
        }
    }

    fn shader(&self, call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
        shader(*self, call)
    }

    fn reference(&self, inputs: &[RefTensor], output: &Desc) -> RefTensor {
        let (q, k, v) = (&inputs[0], &inputs[1], &inputs[2]);
        let [_, tokens, heads, batches] = q.ne;
        let [cells, kv_heads, kv_batches] = [k.ne[1], k.ne[2], k.ne[3]];
        let mut out = RefTensor::zeros(output.ne);
        for (b, h, t) in
            (0..batches * heads * tokens).map(|i| (i / tokens / heads, i / tokens % heads, i % tokens))
        {
            let (kh, kb) = (h / (heads / kv_heads), b / (batches / kv_batches));
            let cell = |j: usize| j + cells * (kh + kv_heads * kb);
            let query = q.row(t + tokens * (h + heads * b));
            let scores: Vec<f64> = (0..cells)
                .map(|j| {
                    let dot: f64 = query.iter().zip(k.row(cell(j))).map(|(q, k)| q * k).sum();
                    let score = dot * f64::from(self.scale);
                    let score =
                        self.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh());
                    match self.masking {
                        Masking::None => score,
                        Masking::Causal { window } => {
                            let p = inputs[3].data[t];
                            let oldest = window.map_or(f64::NEG_INFINITY, |w| p - w as f64);
                            if j as f64 <= p && j as f64 > oldest { score } else { f64::NEG_INFINITY }
                        }
                        Masking::Mask => {
                            let m = &inputs[3];
                            let m = m.at([j, t, h % m.ne[2], b % m.ne[3]]);
                            if m == f64::NEG_INFINITY { m } else { score + m }
                        }
                    }
                })
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if max == f64::NEG_INFINITY {
                continue;
            }
            let weights: Vec<f64> =
                scores.iter().map(|s| if *s == f64::NEG_INFINITY { 0.0 } else { (s - max).exp() }).collect();
            let total: f64 = weights.iter().sum();
            let sum = out.row_mut(h + heads * (t + tokens * b));
            for (j, weight) in weights.iter().enumerate().filter(|(_, weight)| **weight != 0.0) {
                sum.iter_mut().zip(v.row(cell(j))).for_each(|(sum, v)| *sum += weight * v / total);
            }
        }
        out
    }
}
