//! Attention of many tokens on a GPU: tiles of queries against tiles of cells in workgroup memory.

use super::shader::{causal, operands};
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
    let (q, k, v) = (&call.inputs[0], &call.inputs[1], &call.inputs[2]);
    let (head, value) = (k.desc.ne[0], v.desc.ne[0]);
    let [_, tokens, heads, batches] = q.desc.ne;
    let (per, keys, parts) = (bq / GROUPS, bk / SHARE, (value / 4).div_ceil(SHARE));
    let blocks = tokens.div_ceil(bq);
    let shader = Shader::new("flash_attention_tiles", include_str!("tiles.wgsl"));
    let mut shader = operands(shader, op, call)
        .number("count", blocks * heads * batches)
        .number("blocks", blocks)
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
        Masking::Causal { window } => causal(shader, call, window, ""),
        _ => shader.define("RANGE", ""),
    };
    Ok(vec![shader.groups(blocks * heads * batches)?])
}
