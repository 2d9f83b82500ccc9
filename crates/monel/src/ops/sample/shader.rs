//! Drawing on a GPU, in three kernels: the order numbers of the logits, a list of those that may be among the first few,
//! the draw. No 64-bit integers are needed.

use crate::gpu::{Dispatch, GpuCall, Shader};

/// Pieces of the logits, at most: what one workgroup looks at side by side.
const PIECES: usize = 256;
/// Candidates that are sorted rather than searched.
const FEW: usize = 1024;
/// Bytes behind two words for each logit: two words for each piece, and one.
pub(super) const EXTRA: usize = (2 * PIECES + 2) * 4;

pub(super) fn shader(call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
    let [logits, history, params, position] = [0, 1, 2, 3].map(|i| &call.inputs[i]);
    let n = logits.desc.ne[0];
    let piece = n.div_ceil(PIECES).next_multiple_of(PIECES);
    let pieces = n.div_ceil(piece);
    let shader = |name, body| {
        Shader::new(name, body)
            .number("n", n)
            .number("piece", piece)
            .number("pieces", pieces)
            .number("heads", 2 * n)
            .input("params", params)
            .define("FEW", FEW)
    };
    let order = shader("sample_order", include_str!("order.wgsl"))
        .part(include_str!("../../gpu/order.wgsl"))
        .number("past", history.desc.ne[0])
        .input("logits", logits)
        .input("history", history)
        .input("positions", position)
        .output("scratch", &call.scratch);
    let collect = shader("sample_collect", include_str!("collect.wgsl")).raw(
        "scratch",
        "read_write",
        "atomic<i32>",
        &call.scratch,
    );
    let draw = shader("sample", include_str!("sample.wgsl"))
        .part(include_str!("../../gpu/functions.wgsl"))
        .part(include_str!("../../gpu/order.wgsl"))
        .part(include_str!("../../gpu/wide.wgsl"))
        .input("positions", position)
        .raw("scratch", "read_write", "atomic<i32>", &call.scratch)
        .output("y", &call.output)
        .can_fail(move |nan| format!("{nan} of {n} logits are NaN"));
    Ok(vec![order.groups(pieces)?, collect.groups(pieces)?, draw.groups(1)?])
}
