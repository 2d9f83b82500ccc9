//! The ops as methods of the graph: one line each, so a model reads like its formula.

use super::{Graph, Value};
use crate::error::Result;
use crate::ops::{self, BinaryKind, GluKind, UnaryKind};
use crate::tensor::DType;

impl Graph {
    /// Rows of `table` (any type, `[n, rows]`) named by `ids` (I32 `[m]`), as F32 `[n, m]`.
    pub fn get_rows(&mut self, table: Value, ids: Value) -> Result<Value> {
        self.apply(ops::GetRows, &[table, ids])
    }

    /// Writes the rows of `rows` (F32 `[n, m]`) into `place` (`[n, r]`) at the row numbers `ids` (I32 `[m]`).
    pub fn set_rows(&mut self, place: Value, rows: Value, ids: Value) -> Result<Value> {
        self.apply_into(ops::SetRows, &[place, rows, ids], place)
    }

    /// `weights · x`: weights `[k, n, b2, b3]`, x F32 `[k, m, B2, B3]` gives F32 `[n, m, B2, B3]`; b2, b3 divide B2, B3.
    pub fn mat_mul(&mut self, weights: Value, x: Value) -> Result<Value> {
        self.apply(ops::MatMul, &[weights, x])
    }

    /// x / sqrt(mean(x²) + eps) per row, times `weight` (F32 `[n]`) where given.
    pub fn rms_norm(&mut self, x: Value, weight: Option<Value>, eps: f32) -> Result<Value> {
        let inputs: Vec<Value> = [Some(x), weight].into_iter().flatten().collect();
        self.apply(ops::RmsNorm { eps }, &inputs)
    }

    /// Rotary position embedding of x F32 `[head, heads, tokens]` at `positions` I32 `[tokens]`; `factors` F32
    /// `[rotated / 2]` divide the frequencies.
    pub fn rope(
        &mut self,
        x: Value,
        positions: Value,
        factors: Option<Value>,
        rope: ops::Rope,
    ) -> Result<Value> {
        let inputs: Vec<Value> = [Some(x), Some(positions), factors].into_iter().flatten().collect();
        self.apply(rope, &inputs)
    }

    /// Attention: q F32 `[head, tokens, heads]`, k and v `[head, cells, kv_heads]`; `bound` is the mask or the positions
    /// that `attention.masking` asks for. Gives F32 `[head, heads, tokens]`.
    pub fn flash_attention(
        &mut self,
        [q, k, v]: [Value; 3],
        bound: Option<Value>,
        attention: ops::FlashAttention,
    ) -> Result<Value> {
        let inputs: Vec<Value> = [Some(q), Some(k), Some(v), bound].into_iter().flatten().collect();
        self.apply(attention, &inputs)
    }

    /// `act(gate) * up`.
    pub fn glu(&mut self, kind: GluKind, gate: Value, up: Value) -> Result<Value> {
        self.apply(ops::Glu { kind }, &[gate, up])
    }

    /// A function of each element.
    pub fn unary(&mut self, kind: UnaryKind, x: Value) -> Result<Value> {
        self.apply(ops::Unary { kind }, &[x])
    }

    /// `a + b`; b may be repeated to a's shape.
    pub fn add(&mut self, a: Value, b: Value) -> Result<Value> {
        self.apply(ops::Binary { kind: BinaryKind::Add }, &[a, b])
    }

    /// `a - b`; b may be repeated to a's shape.
    pub fn sub(&mut self, a: Value, b: Value) -> Result<Value> {
        self.apply(ops::Binary { kind: BinaryKind::Sub }, &[a, b])
    }

    /// `a * b`; b may be repeated to a's shape.
    pub fn mul(&mut self, a: Value, b: Value) -> Result<Value> {
        self.apply(ops::Binary { kind: BinaryKind::Mul }, &[a, b])
    }

    /// `a / b`; b may be repeated to a's shape.
    pub fn div(&mut self, a: Value, b: Value) -> Result<Value> {
        self.apply(ops::Binary { kind: BinaryKind::Div }, &[a, b])
    }

    /// `x * scale + bias`.
    pub fn scale(&mut self, x: Value, scale: f32, bias: f32) -> Result<Value> {
        self.apply(ops::Scale { scale, bias }, &[x])
    }

    /// `softmax(x * scale + mask)` along rows.
    pub fn soft_max(&mut self, x: Value, mask: Option<Value>, scale: f32) -> Result<Value> {
        let inputs: Vec<Value> = [Some(x), mask].into_iter().flatten().collect();
        self.apply(ops::SoftMax { scale }, &inputs)
    }

    /// The same numbers as another type, contiguous.
    pub fn convert(&mut self, x: Value, to: DType) -> Result<Value> {
        self.apply(ops::Copy { to }, &[x])
    }

    /// Copies x into `place` (a leaf or a view of one), converting to its type.
    pub fn copy_into(&mut self, x: Value, place: Value) -> Result<Value> {
        self.check(place)?;
        self.apply_into(ops::Copy { to: self.desc(place).dtype }, &[x], place)
    }

    /// The index of each row's largest element (I32 `[rows]`); the first of equals.
    pub fn argmax(&mut self, x: Value) -> Result<Value> {
        self.apply(ops::Argmax, &[x])
    }

    /// The indices of each row's k largest elements, largest first (I32 `[k, rows..]`).
    pub fn top_k(&mut self, x: Value, k: usize) -> Result<Value> {
        self.apply(ops::TopK { k }, &[x])
    }

    /// Draws a token (I32 `[1]`) from logits F32 `[vocabulary]`; see [`ops::Sample`] for the other inputs.
    pub fn sample(&mut self, logits: Value, history: Value, params: Value, position: Value) -> Result<Value> {
        self.apply(ops::Sample, &[logits, history, params, position])
    }
}
