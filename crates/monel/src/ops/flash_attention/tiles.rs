//! Attention of many tokens on a GPU: tiles of queries against tiles of cells in workgroup memory.

use super::{FlashAttention, Masking};
use crate::gpu::{Dispatch, GpuCall, Shader};

/// Queries and cells of a tile, largest first.
const TILES: [[usize; 2]; 3] = [[32, 32], [16, 32], [16, 16]];
/// Largest head whose results stay in registers.
const LARGEST: usize = 256;
/// Invocations that share a query, and groups of them.
const SHARE: usize = 8;
const GROUPS: usize = 16;

/// The dispatch, or `None` where the kernel for single rows does it.
pub(super) fn shader(op: FlashAttention, call: &GpuCall<'_>) -> Option<Result<Vec<Dispatch>, String>> {
    let (q, k, v) = (&call.inputs[0], &call.inputs[1], &call.inputs[2]);
    let (head, value) = (k.desc.ne[0], v.desc.ne[0]);
    let tokens = q.desc.ne[1];
    let whole = [head, value].iter().all(|n| n.is_multiple_of(4) && (4..=LARGEST).contains(n));
    if !whole || tokens < GROUPS || op.masking == Masking::Mask || call.limits.subgroup < SHARE as u32 {
        return None;
    }
    // One vector more than a row, so that neighbouring rows do not meet in one bank.
    let pitch = head.max(value) / 4 + 1;
    let bytes = |[bq, bk]: [usize; 2]| (bq + bk) * pitch * 16 + bq * bk * 4 + bq * 8;
    let tile = TILES.into_iter().find(|&t| bytes(t) <= call.limits.shared_memory as usize)?;
    Some(tiles(op, call, tile, pitch))
}

fn tiles(
    op: FlashAttention,
    call: &GpuCall<'_>,
    [bq, bk]: [usize; 2],
    pitch: usize,
) -> Result<Vec<Dispatch>, String> {
    let (q, k, v, y) = (&call.inputs[0], &call.inputs[1], &call.inputs[2], &call.output);
    let (head, value) = (k.desc.ne[0], v.desc.ne[0]);
    let [_, tokens, heads, batches] = q.desc.ne;
    let (cells, kv_heads, kv_batches) = (k.desc.ne[1], k.desc.ne[2], k.desc.ne[3]);
    let (per, keys, parts) = (bq / GROUPS, bk / SHARE, (value / 4).div_ceil(SHARE));
    let blocks = tokens.div_ceil(bq);
    let mut shader = Shader::new("flash_attention_tiles", include_str!("tiles.wgsl"))
        .part(include_str!("../../gpu/functions.wgsl"))
        .number("count", blocks * heads * batches)
        .number("blocks", blocks)
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
        .output("y", y)
        .strides("y", y, true)
        .define("BQ", bq)
        .define("BK", bk)
        .define("PITCH", pitch)
        .define("QUERIES", bq * pitch)
        .define("ROWS", bk * pitch)
        .define("WEIGHTS", bq * bk)
        .define("HEAD4", head / 4)
        .define("VALUE4", value / 4)
        .define("PER", per)
        .define("KEYS", keys)
        .define("SCORES", per * keys)
        .define("PARTS", parts)
        .define("SUMS", per * parts);
    // Scores are capped as cap tanh(score / cap).
    let cap = op.softcap.map(|cap| format!("v = f32({cap:e}) * tanh_f(v / f32({cap:e}));"));
    shader = shader.define("CAP", cap.unwrap_or_default());
    shader = match op.masking {
        Masking::Causal { window } => {
            let positions = &call.inputs[3];
            let step = positions.desc.nb[0] / 4;
            let window = window.unwrap_or(cells).min(cells);
            let range = format!(
                "let position = bound[p.bound + token * {step}u];
    if u32(position) >= p.cells {{
      fault(u32(position));
      last = 0u;
    }} else {{
      last = u32(position) + 1u;
      if last > {window}u {{ first = last - {window}u; }}
    }}"
            );
            let text = move |p: u32| format!("position {} of a cache of {cells} cells", p as i32);
            shader.input("bound", positions).define("RANGE", range).can_fail(text)
        }
        _ => shader.define("RANGE", ""),
    };
    Ok(vec![shader.groups(blocks * heads * batches)?])
}
