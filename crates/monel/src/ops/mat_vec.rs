//! Matrix times a few columns on a GPU: one kernel for all weight types, with what comes before and after fused in.
//!
//! A row of the result is the work of some neighbouring invocations of a subgroup, which take a group of its weights each
//! at a time. Planar weights are multiplied as integers with activations in eight bits (`Q8P`), 32 values with one 16-byte
//! load of codes; float weights in f32, eight values at a time. How many rows and groups are under way at once is the
//! work's [`Cut`]. Several products of one input need no merging: without a barrier between them they overlap.

mod cut;
mod normed;
#[cfg(all(test, feature = "vulkan"))]
mod tests;

use super::UnaryKind;
use super::unary::wgsl;
use crate::gpu::{Dispatch, GpuCall, Limits, Operand, Shader};
use crate::quant::BlockType;
use crate::tensor::{DType, Desc};
use cut::Cut;
pub(crate) use normed::Normed;

/// Columns that are made together.
pub(crate) const MAX_COLUMNS: usize = 8;

/// A product with what is fused into it. All operands are contiguous, weights have two dimensions.
pub(crate) struct Product<'a> {
    /// Weights `[k, n]`: planar, or floats.
    pub w: &'a Operand,
    /// A second matrix like `w`: the result is act(w x) times (w2 x).
    pub gated: Option<(&'a Operand, UnaryKind)>,
    /// Columns `[k, m]`: Q8P for planar weights, F32 for floats.
    pub x: &'a Operand,
    /// What makes the one column of x, which then lies nowhere.
    pub normed: Option<Normed<'a>>,
    /// Added to each column: F32 `[n]`.
    pub bias: Option<&'a Operand>,
    /// Added to the result: F32 `[n, m]`.
    pub residual: Option<&'a Operand>,
    /// The result `[n, m]`: F32, or Q8P.
    pub y: &'a Operand,
}

/// The weights of which [`Product::dispatch`] can make a product, and with which type of x.
pub(crate) fn takes(w: &Desc) -> Option<DType> {
    if w.ne[2] * w.ne[3] != 1 || !w.is_contiguous() {
        return None;
    }
    match w.dtype {
        DType::Planar(_) => Some(DType::Q8P),
        DType::F16 | DType::BF16 if w.ne[0].is_multiple_of(8) => Some(DType::F32),
        DType::F32 if w.ne[0].is_multiple_of(8) => Some(DType::F32),
        _ => None,
    }
}

/// Weights that an invocation takes at once: a group of 32 quantized ones, or eight floats.
fn unit(w: &Desc) -> usize {
    if let DType::Planar(_) = w.dtype { 32 } else { 8 }
}

/// The product alone.
pub(super) fn shader(call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
    let (w, x, y) = (&call.inputs[0], &call.inputs[1], &call.output);
    let plain = Product { w, gated: None, x, normed: None, bias: None, residual: None, y };
    plain.dispatch(&call.limits).map(|d| vec![d])
}

impl Product<'_> {
    /// The dispatch, or why there is none.
    pub fn dispatch(&self, limits: &Limits) -> Result<Dispatch, String> {
        self.dispatch_as(limits, None)
    }

    /// The dispatch with the work cut in the given way or the best one.
    pub(super) fn dispatch_as(&self, limits: &Limits, cut: Option<Cut>) -> Result<Dispatch, String> {
        let (w, x, y) = (self.w, self.x, self.y);
        let (k, n, columns) = (w.desc.ne[0], w.desc.ne[1], x.desc.rows());
        let all = [Some(x), Some(y), self.bias, self.residual, self.gated.map(|g| g.0)];
        if takes(&w.desc) != Some(x.desc.dtype) || all.iter().flatten().any(|o| !o.desc.is_contiguous()) {
            return Err(format!("no product of {} and {} for few columns", w.desc, x.desc));
        }
        if columns > MAX_COLUMNS {
            return Err(format!("at most {MAX_COLUMNS} columns, found {columns}"));
        }
        let cut = cut.unwrap_or_else(|| Cut::best(limits, self));
        let cut = self.normed.map_or(cut, |n| n.cut(cut, limits));
        let (cols, groups) = (columns.max(1), k / unit(&w.desc));
        let Cut { rows: at_once, lanes, sets, threads, .. } = cut;
        let quantizes = y.desc.dtype == DType::Q8P;
        // Rows of a workgroup: what is quantized comes in blocks of 32.
        let together = threads / (lanes * sets) * at_once;
        let alone = !quantizes && self.normed.is_none();
        let together = if quantizes { 32.max(together) } else { together };
        let rows = match &self.normed {
            Some(norm) => norm.rows(&w.desc, together, limits)?,
            None => together,
        };
        if !cut.fits(limits) || quantizes && !together.is_multiple_of(32) || sets > 1 && !alone {
            return Err(format!("a cut of the work that fits the device, found {cut:?}"));
        }
        let mut shader = Shader::new("mat_vec", include_str!("mat_vec.wgsl"))
            .all_bindings(limits)
            .define("THREADS", threads)
            .define("COLS", cols)
            .define("LANES", lanes)
            .define("AT_ONCE", at_once)
            .define("SETS", sets)
            .define("ROWS", rows)
            .number("n", n)
            .number("groups", groups)
            .number("row", w.desc.dtype.row_bytes(k) / 16)
            .number("column", x.desc.dtype.row_bytes(k) / 16);
        let second = self.gated.map(|g| g.0);
        shader = match w.desc.dtype {
            DType::Planar(block) => planar(shader, limits, block, w, second),
            _ => floats(shader, w, second)?,
        };
        let is_planar = matches!(w.desc.dtype, DType::Planar(_));
        shader = match &self.normed {
            Some(_) if columns != 1 => return Err(format!("one column to norm, found {columns}")),
            Some(norm) => norm.add(shader, threads, is_planar, limits)?,
            None => read_columns(shader, x, is_planar),
        };
        let mut epilogue = String::new();
        if let Some(bias) = self.bias {
            shader = shader.input("bias", bias);
            epilogue.push_str("v += bias[p.bias + row];\n");
        }
        if let Some((_, activation)) = self.gated {
            shader = shader.part(include_str!("../gpu/functions.wgsl"));
            epilogue.push_str(&format!("v = ({}) * up;\n", wgsl(activation)));
        }
        if let Some(residual) = self.residual {
            shader = shader.input("rest", residual);
            epilogue.push_str("v += rest[p.rest + c * p.n + row];\n");
        }
        // With one round of rows the norm can be computed while their first weights are on their way.
        let one_round = rows == together && cut.all_begin(groups);
        let (before, early) = match self.normed {
            Some(_) if one_round && is_planar && !normed::late(&w.desc) => ("", Some(Normed::CALL)),
            Some(_) => (Normed::CALL, None),
            None => ("", None),
        };
        let (met, rounds) = cut.rounds(cols, second.is_some());
        let shader = shader
            .define("EPILOGUE", epilogue)
            .define("BEFORE", before)
            .define("MET", met)
            .define("ROUNDS", rounds.replace("$ROWS", &rows.to_string()))
            .define("PRODUCT", cut.product(cols, groups, second.is_some(), early))
            .define("SUM", cut.sum(cols, second.is_some()));
        let shader = if quantizes {
            // The rows of a workgroup meet in shared memory, and eight invocations quantize a block of them.
            let words = y.desc.dtype.row_bytes(n) / 4;
            shader
                .part(include_str!("../gpu/quantize.wgsl"))
                .raw("y", "read_write", "u32", y)
                .number("words", words)
                .define("SHARED", format!("var<workgroup> made: array<f32, {}>;", rows * cols))
                .define("STORE", format!("made[c * {rows}u + row % {rows}u] = v;"))
                .define(
                    "QUANTIZE",
                    format!(
                        "workgroupBarrier();
  for (var i = thread; i < {quads}u; i += {threads}u) {{
    let c = i / {per_column}u;
    let part = i % {per_column}u;
    let q = quantize_block(vec4<f32>(made[4u * i], made[4u * i + 1u], made[4u * i + 2u], made[4u * i + 3u]));
    let block = group_of(wg) * {blocks}u + part / 8u;
    if block * 32u < p.n {{
      let row = p.y + c * p.words;
      y[row + block * 8u + part % 8u] = q.code;
      let to = row + p.n / 4u + 2u * block;
      if part % 8u == 0u {{ y[to] = bitcast<u32>(q.d); y[to + 1u] = bitcast<u32>(q.sum); }}
      if part % 8u == 1u && to + 2u < row + p.words && block * 32u + 32u == p.n {{ y[to + 2u] = 0u; y[to + 3u] = 0u; }}
    }}
  }}",
                        quads = rows * cols / 4,
                        per_column = rows / 4,
                        blocks = rows / 32,
                    ),
                )
        } else {
            shader
                .output("y", y)
                .define("SHARED", "")
                .define("STORE", "y[p.y + c * p.n + row] = v;")
                .define("QUANTIZE", "")
        };
        shader.groups(if columns == 0 { 0 } else { n.div_ceil(rows) })
    }
}

/// Lets a product read the columns as they lie in memory.
fn read_columns(shader: Shader, x: &Operand, planar: bool) -> Shader {
    match planar {
        true => shader.raw("x4", "read", "vec4<u32>", x).raw("x2", "read", "vec2<f32>", x).define(
            "ACTS",
            "let at = p.x4 + c * p.column;
  return Acts(x4[at + 2u * g], x4[at + 2u * g + 1u], x2[2u * (at + 2u * p.groups) + g]);",
        ),
        false => shader
            .raw("x4", "read", "vec4<f32>", x)
            .define("ACTS", "let at = p.x4 + c * p.column + 2u * g;\n  return Acts(x4[at], x4[at + 1u]);"),
    }
}

/// Integer products.
fn planar(
    shader: Shader,
    limits: &Limits,
    block: BlockType,
    w: &Operand,
    second: Option<&Operand>,
) -> Shader {
    let dot = match limits.dot4 {
        true => include_str!("../gpu/dot4.wgsl"),
        false => include_str!("../gpu/dot4_plain.wgsl"),
    };
    let text = match block {
        BlockType::Q4_0 => include_str!("../gpu/group/q4_0.wgsl"),
        BlockType::Q4_1 => include_str!("../gpu/group/q4_1.wgsl"),
        BlockType::Q5_0 => include_str!("../gpu/group/q5_0.wgsl"),
        BlockType::Q5_1 => include_str!("../gpu/group/q5_1.wgsl"),
        BlockType::Q4_K => include_str!("../gpu/group/q4_k.wgsl"),
        BlockType::Q5_K => include_str!("../gpu/group/q5_k.wgsl"),
        BlockType::Q6_K => include_str!("../gpu/group/q6_k.wgsl"),
        _ => include_str!("../gpu/group/q8_0.wgsl"),
    };
    let shader = shader
        .part(dot)
        .part(include_str!("../gpu/group.wgsl"))
        .define("TWO_SCALES", block == BlockType::Q6_K)
        .raw("w4", "read", "vec4<u32>", w)
        .raw("w1", "read", "u32", w)
        .text(&text.replace("NAME", "w"));
    match second {
        Some(up) => shader
            .raw("u4", "read", "vec4<u32>", up)
            .raw("u1", "read", "u32", up)
            .text(&text.replace("NAME", "u")),
        None => shader,
    }
}

/// Products in f32.
fn floats(shader: Shader, w: &Operand, second: Option<&Operand>) -> Result<Shader, String> {
    let text = match w.desc.dtype {
        DType::F16 => include_str!("../gpu/eight/f16.wgsl"),
        DType::BF16 => include_str!("../gpu/eight/bf16.wgsl"),
        DType::F32 => include_str!("../gpu/eight/f32.wgsl"),
        other => return Err(format!("no eight values of {other} at once")),
    };
    let shader = shader
        .part(include_str!("../gpu/eight.wgsl"))
        .raw("w4", "read", "vec4<u32>", w)
        .text(&text.replace("NAME", "w"));
    Ok(match second {
        Some(up) => shader.raw("u4", "read", "vec4<u32>", up).text(&text.replace("NAME", "u")),
        None => shader,
    })
}
