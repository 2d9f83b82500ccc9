//! Attention on a GPU: few tokens by parts of the cells (`decode_shader`), many with matrices (`matrices`) or in tiles
//! (`tiles`), everything else by a workgroup for each query row.

use super::{FlashAttention, Masking, decode_shader, matrices, tiles};
use crate::gpu::{Dispatch, GpuCall, Shader};

/// Invocations of a workgroup, and cells it looks at together.
const THREADS: usize = 64;
/// Elements of a head that fit into registers and workgroup memory.
const LARGE: usize = 1024;

pub(super) fn shader(op: FlashAttention, call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
    let best = decode_shader::shader(op, call).or_else(|| matrices::shader(op, call));
    best.or_else(|| tiles::shader(op, call)).unwrap_or_else(|| rows(op, call))
}

/// Operands and numbers that every kernel of attention over whole rows has.
pub(super) fn operands(shader: Shader, op: FlashAttention, call: &GpuCall<'_>) -> Shader {
    let (q, k, v) = (&call.inputs[0], &call.inputs[1], &call.inputs[2]);
    let [_, tokens, heads, batches] = q.desc.ne;
    let [_, cells, kv_heads, kv_batches] = k.desc.ne;
    shader
        .part(include_str!("../../gpu/functions.wgsl"))
        .number("tokens", tokens)
        .number("heads", heads)
        .number("batches", batches)
        .number("group", heads / kv_heads.max(1))
        .number("share", batches / kv_batches.max(1))
        .number("cells", cells)
        .float("scale", op.scale)
        .input("q", q)
        .strides("q", q, true)
        .input("k", k)
        .strides("k", k, true)
        .input("v", v)
        .strides("v", v, true)
        .output("y", &call.output)
        .strides("y", &call.output, true)
}

/// Defines `$RANGE`: `first` and `last` of `token` from its position. `reports` says which invocation reports a position
/// outside the cache.
pub(super) fn causal(shader: Shader, call: &GpuCall<'_>, window: Option<usize>, reports: &str) -> Shader {
    let (positions, cells) = (&call.inputs[3], call.inputs[1].desc.ne[1]);
    let step = positions.desc.nb[0] / 4;
    let window = window.unwrap_or(cells).min(cells);
    let range = format!(
        "let position = bound[p.bound + token * {step}u];
  if u32(position) >= p.cells {{
    {reports}{{ fault(u32(position)); }}
    last = 0u;
  }} else {{
    last = u32(position) + 1u;
    if last > {window}u {{ first = last - {window}u; }}
  }}"
    );
    let text = move |p: u32| format!("position {} of a cache of {cells} cells", p as i32);
    shader.input("bound", positions).define("RANGE", range).can_fail(text)
}

/// A workgroup for each query row.
fn rows(op: FlashAttention, call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
    let (q, k, v) = (&call.inputs[0], &call.inputs[1], &call.inputs[2]);
    let (head, value) = (k.desc.ne[0], v.desc.ne[0]);
    let [_, tokens, heads, batches] = q.desc.ne;
    let rows = tokens * heads * batches;
    let fours = [head, value].iter().all(|n| n.is_multiple_of(4) && (1..=LARGE).contains(n));
    let shader = if fours {
        Shader::new("flash_attention", include_str!("flash_attention.wgsl"))
    } else {
        Shader::new("flash_attention_any", include_str!("flash_attention_any.wgsl"))
    };
    let mut shader = operands(shader, op, call).reductions(THREADS as u32).number("rows", rows);
    let groups = if fours {
        shader = shader
            .define("HEAD4", head / 4)
            .define("VALUE4", value / 4)
            .define("PARTS", (value / 4).div_ceil(THREADS));
        rows
    } else {
        // Only floats have rows that are no multiple of four.
        let keys = if head.is_multiple_of(4) {
            format!(
                "for (var i = 0u; i < {}u; i++) {{
        let at = q_at + 4u * i;
        score += dot(vec4<f32>(q[at], q[at + 1u], q[at + 2u], q[at + 3u]), quad_k(k_row, i));
      }}",
                head / 4
            )
        } else {
            format!("for (var i = 0u; i < {head}u; i++) {{ score += q[q_at + i] * get_k(k_row + i); }}")
        };
        let read = if value.is_multiple_of(4) { "quad_v(v_row, d / 4u)[d % 4u]" } else { "get_v(v_row + d)" };
        let blocks = value.div_ceil(THREADS);
        shader = shader
            .number("blocks", blocks)
            .number("values", value)
            .define("KEYS", keys)
            .define("VALUE", read);
        rows * blocks
    };
    // Scores are capped as cap tanh(score / cap).
    let cap = op.softcap.map(|cap| format!("score = f32({cap:e}) * tanh_f(score / f32({cap:e}));"));
    shader = shader.define("CAP", cap.unwrap_or_default());
    shader = match op.masking {
        Masking::None => shader.define("RANGE", "").define("MASK", ""),
        Masking::Causal { window } => causal(shader, call, window, "if li == 0u ").define("MASK", ""),
        Masking::Mask => {
            let mask = &call.inputs[3];
            let [_, b1, b2, b3] = mask.desc.nb.map(|b| b / mask.desc.dtype.block_bytes());
            let [_, _, n2, n3] = mask.desc.ne;
            let at = format!("p.m + token * {b1}u + (head % {n2}u) * {b2}u + (batch % {n3}u) * {b3}u + cell");
            // What a hidden cell holds has no influence, NaN included.
            let add = format!("let m = get_m({at});\n      score = select(score + m, -1e30, m < -3e38);");
            shader.input("m", mask).define("RANGE", "").define("MASK", add)
        }
    };
    Ok(vec![shader.groups(groups)?])
}
