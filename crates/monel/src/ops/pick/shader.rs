//! Greedy choice and the k largest on a GPU.

use crate::gpu::{Dispatch, GpuCall, Shader};

/// Elements of a row that one workgroup looks at, at least.
const PIECE: usize = 2048;
/// Places that one workgroup sorts by itself.
const CHUNK: usize = 2048;

/// Long rows are looked at in pieces by several workgroups, whose winners a second kernel compares.
pub(super) fn argmax(call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
    let (x, y) = (&call.inputs[0], &call.output);
    let (n, rows) = (x.desc.ne[0], x.desc.rows());
    // As many as the scratch memory has pairs for, and as one workgroup compares.
    let parts = n.div_ceil(PIECE).min(call.scratch.desc.ne[0] / 2 / rows.max(1)).clamp(1, 256);
    let piece = n.div_ceil(parts);
    let shader = |parts: usize| {
        Shader::new("argmax", include_str!("argmax.wgsl"))
            .part(include_str!("../../gpu/order.wgsl"))
            .number("groups", rows * parts)
            .number("parts", parts)
            .dims("n", x.desc.ne)
            .input("x", x)
            .strides("x", x, true)
    };
    let look = "let start = p.x + at.x * p.x1 + at.y * p.x2 + at.z * p.x3;
  for (var i = part * p.piece + li; i < min((part + 1u) * p.piece, p.n0); i += 256u) {
    let o = order_of(x[start + i]);
    if o > best || place == 0xffffffffu { best = o; place = i; }
  }";
    let keep = "y[p.y + at.x * p.y0 + at.y * p.y1 + at.z * p.y2] = i32(places[0]);";
    if parts == 1 {
        let shader = shader(1).number("piece", n).output("y", y).strides("y", y, false);
        return Ok(vec![shader.define("LOOK", look).define("KEEP", keep).groups(rows)?]);
    }
    let pairs = &call.scratch;
    let first = shader(parts).number("piece", piece).output("pairs", pairs).define("LOOK", look).define(
        "KEEP",
        "pairs[p.pairs + 2u * group] = bitcast<i32>(values[0]); \
             pairs[p.pairs + 2u * group + 1u] = i32(places[0]);",
    );
    let second = shader(1)
        .number("pieces", parts)
        .input("pairs", pairs)
        .output("y", y)
        .strides("y", y, false)
        .define(
            "LOOK",
            "if li < p.pieces {
    best = u32(pairs[p.pairs + 2u * (r * p.pieces + li)]);
    place = u32(pairs[p.pairs + 2u * (r * p.pieces + li) + 1u]);
  }",
        )
        .define("KEEP", keep);
    Ok(vec![first.groups(rows * parts)?, second.groups(rows)?])
}

/// One kernel finds which, the others sort. The number of steps a kernel takes stays small: drivers end loops that are
/// too long, and displays wait for them.
pub(super) fn top_k(k: usize, call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
    let (x, y) = (&call.inputs[0], &call.output);
    let rows = if k == 0 { 0 } else { x.desc.rows() };
    let shader = |name, body| {
        Shader::new(name, body)
            .part(include_str!("../../gpu/order.wgsl"))
            .number("k", k)
            .dims("n", x.desc.ne)
            .input("x", x)
            .strides("x", x, true)
            .raw("y", "read_write", "atomic<i32>", y)
            .strides("y", y, true)
    };
    let select = shader("top_k", include_str!("top_k.wgsl")).number("rows", rows);
    let sort = |parts: usize, size: usize, distance: usize, inner: bool| {
        shader("top_k_sort", include_str!("top_k_sort.wgsl"))
            .number("groups", rows * parts)
            .number("parts", parts)
            .number("size", size)
            .number("distance", distance)
            .number("inner", usize::from(inner))
            .define("CHUNK", CHUNK)
            .groups(rows * parts)
    };
    let mut list = vec![select.groups(rows)?];
    if k > 1 {
        list.push(sort(k.div_ceil(CHUNK), 0, 0, false)?);
    }
    let all = k.next_power_of_two();
    let mut size = 2 * CHUNK;
    while size <= all {
        // Comparisons of a step, 256 a workgroup.
        let parts = all / 2 / 256;
        list.push(sort(parts, size, 0, false)?);
        let mut distance = size / 4;
        while distance >= CHUNK {
            list.push(sort(parts, size, distance, false)?);
            distance /= 2;
        }
        list.push(sort(k.div_ceil(CHUNK), 0, 0, true)?);
        size *= 2;
    }
    Ok(list)
}
