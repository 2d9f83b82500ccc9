//! Drawing on a GPU: one kernel gives every logit its order number, the next draws with one workgroup.

use crate::gpu::{Dispatch, GpuCall, Shader};

pub(super) fn shader(call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
    if !call.limits.int64 {
        return Err("sums of weights need 64-bit integers, which the device has not".into());
    }
    let [logits, history, params, position] = [0, 1, 2, 3].map(|i| &call.inputs[i]);
    let n = logits.desc.ne[0];
    let order = Shader::new("sample_order", include_str!("order.wgsl"))
        .part(include_str!("../../gpu/order.wgsl"))
        .number("n", n)
        .number("past", history.desc.ne[0])
        .input("logits", logits)
        .input("history", history)
        .input("params", params)
        .input("positions", position)
        .output("scratch", &call.scratch);
    let draw = Shader::new("sample", include_str!("sample.wgsl"))
        .part(include_str!("../../gpu/functions.wgsl"))
        .part(include_str!("../../gpu/order.wgsl"))
        .number("n", n)
        .input("params", params)
        .input("positions", position)
        .output("scratch", &call.scratch)
        .output("y", &call.output)
        .can_fail(move |nan| format!("sample: {nan} of {n} logits are NaN"));
    Ok(vec![order.items(n, 128)?, draw.groups(1)?])
}
