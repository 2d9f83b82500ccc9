//! Attention of few tokens on a GPU: the cells are divided over workgroups, and the last of them combines what they found.
//!
//! A workgroup takes all query heads of a KV head, so that keys and values are read once for them. Into how many parts the
//! cells are cut at most is fixed when the kernel is encoded; how many there are and how long follows from the position
//! that is found when it runs. Few cells are one part, whose workgroup writes the result; of more, each workgroup leaves
//! its part in memory and counts itself, and the one that finds all counted combines them in their order, so that the
//! result does not depend on who that is. Workgroups without a part leave at once. The kernel's inner loop is written out
//! here for the sizes at hand (`decode_text`), as registers cannot be indexed.

use super::decode_fresh::{Fresh, Sizes};
use super::decode_text::{Loops, Query};
use super::{FlashAttention, Masking};
use crate::gpu::{Dispatch, GpuCall, Operand, Shader};
use crate::tensor::{DType, Desc};

/// Queries up to this many tokens come here; more are worth a matrix kernel.
const FEW_TOKENS: usize = 8;
/// Workgroups to aim for: two for each multiprocessor of a large GPU.
const WORKGROUPS: usize = 264;
/// Parts of the cells, at most.
const MOST_PARTS: usize = 64;
/// Cells of a part, at least, and what all but the last one are multiples of.
const SHORTEST: usize = 32;
/// How often a workgroup reads as many cells as it has on the way at once before more workgroups are worth it: to leave
/// parts and to combine them takes as long as a few such rounds. At least one. On an H200 256 cells of heads of 128 in
/// 1, 2 or 4 rounds by one workgroup give 393, 392 and 401 tokens per second (8B Q4_K_M).
const ALONE_ROUNDS: usize = 4;
/// Such rounds of a part, at least: fewer cells would leave a part of the workgroup idle and save no time.
const PART_ROUNDS: usize = 1;
/// Parts that an invocation asks for before it uses them when it combines.
const PARTS_AT_ONCE: usize = 8;
/// Heads that a workgroup takes at most, and what their queries and sums may need of an invocation's registers.
const MOST_HEADS: usize = 8;
const REGISTERS: usize = 160;
/// Elements of a head, at most.
const LARGEST: usize = 640;
/// Invocations of a workgroup, and subgroups at most.
const THREADS: usize = 256;
const SUBGROUPS: usize = 8;
/// Bytes of workgroup memory for sums.
const SUMS: usize = 24 << 10;

/// How the work is divided; follows from the operands' shapes alone, so that the memory for parts can be planned.
#[derive(Clone, Copy)]
struct Division {
    /// Parts of the cells.
    splits: usize,
    /// Query heads of a workgroup.
    heads: usize,
    /// Workgroups for the query heads of a KV head.
    parts: usize,
}

impl Division {
    fn new(q: &Desc, k: &Desc, v: &Desc) -> Option<Division> {
        let (head, value) = (k.ne[0], v.ne[0]);
        let [_, tokens, heads, batches] = q.ne;
        let (cells, kv_heads) = (k.ne[1], k.ne[2]);
        let fits = |n: usize| n != 0 && n.is_multiple_of(8) && n <= LARGEST;
        let queries = tokens * heads * batches;
        if !fits(head) || !fits(value) || !(1..=FEW_TOKENS).contains(&tokens) || queries == 0 {
            return None;
        }
        let group = heads / kv_heads;
        // Invocations of the narrowest subgroup that is worth it hold this many elements of q and of the sums.
        let held = (head.div_ceil(256) + value.div_ceil(256)) * 8;
        let most = (REGISTERS / held).clamp(1, MOST_HEADS);
        let heads = (1..=most.min(group)).rev().find(|n| group.is_multiple_of(*n))?;
        let rows = tokens * batches * kv_heads * (group / heads);
        let splits = (WORKGROUPS / rows).clamp(1, MOST_PARTS).min(cells.div_ceil(SHORTEST)).max(1);
        Some(Division { splits, heads, parts: group / heads })
    }

    /// Vectors of four floats for a query head's parts: the sums, and one with the largest score and the total.
    fn row_vectors(&self, value: usize) -> usize {
        self.splits * (value / 4 + 1)
    }
}

/// Bytes for the parts.
pub(super) fn scratch(inputs: &[Desc], output: &Desc) -> usize {
    match Division::new(&inputs[0], &inputs[1], &inputs[2]) {
        Some(division) if division.splits > 1 => output.rows() * division.row_vectors(output.ne[0]) * 16,
        _ => 0,
    }
}

/// The kernel, or `None` where the general one has to do it.
pub(super) fn shader(op: FlashAttention, call: &GpuCall<'_>) -> Option<Result<Vec<Dispatch>, String>> {
    let (q, k, v) = (&call.inputs[0], &call.inputs[1], &call.inputs[2]);
    let subgroup = call.limits.subgroup_fixed? as usize;
    let division = Division::new(&q.desc, &k.desc, &v.desc)?;
    let rows = q.desc.ne[1] * q.desc.ne[3];
    if !subgroup.is_power_of_two() || !(8..=64).contains(&subgroup) || rows > 65_535 {
        return None;
    }
    Some(kernel(op, call, &division, subgroup, None, None).map(|kernel| vec![kernel]))
}

/// The kernel of one token's attention with what goes before it, and with its result as eight-bit rows (`codes`) where
/// these are wanted instead.
pub(crate) fn fused(
    op: FlashAttention,
    call: &GpuCall<'_>,
    fresh: &Fresh<'_>,
    codes: Option<&Operand>,
) -> Result<Vec<Dispatch>, String> {
    let no = |why: &str| Err(format!("no attention with what goes before it: {why}"));
    let (q, k, v) = (&call.inputs[0], &call.inputs[1], &call.inputs[2]);
    let f16 = |cells: &Operand| sixteen(cells).is_some_and(|(ty, _)| ty == "f16");
    let Some(division) = Division::new(&q.desc, &k.desc, &v.desc) else { return no("sizes of heads") };
    let Some(subgroup) = call.limits.subgroup_fixed.map(|s| s as usize) else { return no("subgroups") };
    if q.desc.ne[1] * q.desc.ne[3] != 1 || k.desc.ne[3] != 1 {
        return no("more than one token");
    }
    if !matches!(op.masking, Masking::Causal { window } if window != Some(0)) || !f16(k) || !f16(v) {
        return no("the cells");
    }
    if !subgroup.is_power_of_two() || !(8..=64).contains(&subgroup) {
        return no("subgroups");
    }
    if let Some(codes) = codes {
        let [value, heads, ..] = call.output.desc.ne;
        if codes.desc.dtype != DType::Q8P
            || codes.desc.ne != [value * heads, 1, 1, 1]
            || !value.is_multiple_of(32)
        {
            return no("eight-bit rows");
        }
    }
    Ok(vec![kernel(op, call, &division, subgroup, Some(fresh), codes)?])
}

/// The numbers of a kernel that combining its parts needs.
struct Shape {
    /// Vectors of four elements in a row of the result.
    value4: usize,
    /// Invocations of a workgroup.
    threads: usize,
    /// Vectors of four floats in workgroup memory.
    slots: usize,
    /// Parts of the cells, at most.
    splits: usize,
    /// Workgroups along y: each leaves one part of something else.
    groups: u32,
}

/// The kernel.
fn kernel(
    op: FlashAttention,
    call: &GpuCall<'_>,
    division: &Division,
    subgroup: usize,
    fresh: Option<&Fresh<'_>>,
    codes: Option<&Operand>,
) -> Result<Dispatch, String> {
    let (q, k, v, y) = (&call.inputs[0], &call.inputs[1], &call.inputs[2], &call.output);
    let [_, tokens, heads, batches] = q.desc.ne;
    let (cells, kv_heads, kv_batches) = (k.desc.ne[1], k.desc.ne[2], k.desc.ne[3]);
    let (head, value) = (k.desc.ne[0], v.desc.ne[0]);
    let subgroups = (THREADS / subgroup).clamp(1, SUBGROUPS);
    let threads = subgroups * subgroup;
    let per_head = subgroups * value * 4;
    let sizes = Sizes { head, value, heads: division.heads, parts: division.parts, subgroup, subgroups };
    // Workgroup memory for sums, beside rows and a few numbers.
    let rows = if fresh.is_some() { sizes.turned() * 16 } else { 0 };
    let memory = (call.limits.shared_memory as usize).saturating_sub(rows + 1024).min(SUMS);
    if per_head > memory {
        return Err(format!("{per_head} bytes of workgroup memory for attention, found {memory}"));
    }
    let per_pass =
        (1..=division.heads).rev().find(|n| division.heads.is_multiple_of(*n) && n * per_head <= memory);
    let per_pass = per_pass.unwrap_or(1);
    let (fast_k, fast_v) = (sixteen(k), sixteen(v));
    let masked = op.masking == Masking::Mask;
    let fast = fast_k.is_some() && fast_v.is_some();
    let loops = Loops::new([head, value], [division.heads, per_pass], subgroup, fast, masked);
    let step = loops.rows_at_once() * loops.unroll;
    let round = step * subgroups;
    let (alone, part) = (ALONE_ROUNDS * round, (PART_ROUNDS * round).max(SHORTEST));
    let splits = if cells <= alone { 1 } else { division.splits.min(cells.div_ceil(part)) };
    let groups = [splits as u32, (kv_heads * division.parts) as u32, (tokens * batches) as u32];
    let log2e = std::f32::consts::LOG2_E;

    let mut shader = Shader::new("attention_decode", include_str!("decode_shader.wgsl"))
        .part(include_str!("../../gpu/functions.wgsl"))
        .number("tokens", tokens)
        .number("heads", heads)
        .number("share", batches / kv_batches)
        .number("cells", cells)
        .float("scale", op.scale * op.softcap.map_or(log2e, |cap| 1.0 / cap))
        .float("cap", op.softcap.unwrap_or(0.0) * log2e);
    let mut query = Query::Turned;
    if fresh.is_none() {
        (shader, query) = match vectors(q, 4) {
            Some(strides) => (numbers(shader.raw("q", "read", "vec4<f32>", q), "q", strides), Query::Vectors),
            None => (shader.input("q", q).strides("q", q, true), Query::Elements),
        };
    }
    let access = if fresh.is_some() { "read_write" } else { "read" };
    for (name, operand, fast) in [("k", k, fast_k), ("v", v, fast_v)] {
        shader = match fast {
            Some((_, strides)) => numbers(shader.raw(name, access, "vec4<u32>", operand), name, strides),
            None => shader.input(name, operand).strides(name, operand, true),
        };
    }
    let (with_y, store) = result(shader, y, codes, "head0 + head");
    let store = match codes {
        Some(_) => store,
        None => format!(
            "let to = p.y + (head0 + head) * p.y1 + token * p.y2 + batch * p.y3;
        {store}"
        ),
    };
    let whole = format!(
        "let total = total_of(head, top_of(head));
        let row = sum * select(1.0 / total, 0.0, total == 0.0);
        {store}"
    );
    shader = with_y;
    let unknown = if fresh.is_some() { "if !known { return; }" } else { "" };
    if splits == 1 {
        shader = shader.define("LEAVE", unknown).define("STORE", whole).define("COMBINE", "");
    } else {
        let row = value / 4 + 1;
        let part = format!(
            "if used == 1u {{
        {whole}
      }} else {{
        let to = p.parts + ((row0 + head) * {splits}u + split) * {row}u;
        parts[to + d] = sum;
        if d == 0u {{
          let top = top_of(head);
          parts[to + {}u] = vec4<f32>(top, total_of(head, top), 0.0, 0.0);
        }}
      }}",
            value / 4
        );
        shader = shader
            .coherent("parts", "vec4<f32>", &call.scratch)
            .counters(groups[1] as usize * groups[2] as usize)
            .define("LEAVE", format!("if split >= used {{ return; }} {unknown}"))
            .define("STORE", part);
        let slots = subgroups * per_pass * value / 4;
        let shape = Shape { value4: value / 4, threads, slots, splits, groups: groups[1] };
        shader = combine(shader, division, &shape, &store);
    }
    shader = match op.masking {
        Masking::None => shader.define("POSITION", "").define("RANGE", ""),
        Masking::Causal { window } => {
            let positions = &call.inputs[3];
            let step = positions.desc.nb[0] / 4;
            let window = window.unwrap_or(cells).min(cells);
            // With a fresh key the newest cell is not read from the cache.
            let range = format!(
                "let known = position < p.cells;
  if !known {{
    if li == 0u {{ fault(position); }}
    end = 0u;
  }} else {{
    end = position + 1u;
    first = end - min(end, {window}u);{newest}
  }}",
                newest = if fresh.is_some() { "\n    end = position;" } else { "" }
            );
            let text = move |p: u32| format!("position {} of a cache of {cells} cells", p as i32);
            let position = format!("let position = u32(bound[p.bound + token * {step}u]);");
            let shader = shader.input("bound", positions).define("POSITION", position);
            shader.define("RANGE", range).can_fail(text)
        }
        Masking::Mask => {
            let mask = &call.inputs[3];
            let [_, b1, b2, b3] = mask.desc.nb.map(|b| b / mask.desc.dtype.block_bytes());
            let [_, _, n2, n3] = mask.desc.ne;
            let range = format!(
                "let mask_at = p.mask + token * {b1}u + (batch % {n3}u) * {b3}u;
  let mask_heads = {n2}u;
  let mask_stride = {b2}u;"
            );
            shader.input("mask", mask).define("POSITION", "").define("RANGE", range)
        }
    };
    let cap = op.softcap.map(|_| "p.cap * tanh_f");
    shader = match fresh {
        Some(fresh) => fresh.define(shader.all_bindings(&call.limits), &sizes, &loops, cap)?,
        None => shader.define("ROWS", "").define("FRESH", "").define("NEWEST", ""),
    };
    shader = loops.define(shader, query, fast_k.map(|f| f.0), fast_v.map(|f| f.0), cap);
    let shader = shader
        .full_subgroups()
        .define("THREADS", threads)
        .define("SUBGROUP", subgroup)
        .define("SUBGROUPS", subgroups)
        .define("SLOTS", subgroups.max(threads / (division.heads * value / 4)) * division.heads)
        .define("SUMS", subgroups * per_pass * value / 4)
        .define("HEADS", division.heads)
        .define("PARTS", division.parts)
        .define("SPLITS", splits)
        .define("GRANULE", SHORTEST)
        .define("EVEN", splits * SHORTEST)
        .define("ALONE", alone)
        .define("PART", part)
        .define("STEP", step)
        .define("TILE", round)
        .define("PER_PASS", per_pass)
        .define("PASS_VALUES", per_pass * value / 4)
        .define("VALUE4", value / 4);
    shader.finish(groups)
}

/// The text with which the workgroup that leaves the last part of the cells puts all parts together, and `store` writes
/// `row`.
fn combine(shader: Shader, division: &Division, shape: &Shape, store: &str) -> Shader {
    let &Shape { value4, threads, slots, splits, groups } = shape;
    let all = division.heads * value4;
    let across = all.min(threads);
    let side = (threads / across).min(slots / across).clamp(1, splits);
    let loads = splits.div_ceil(side).min(PARTS_AT_ONCE);
    let lines = |line: &dyn Fn(usize) -> String| (0..loads).map(line).collect::<Vec<_>>().join("\n    ");
    let asked = lines(&|i| {
        format!(
            "let n{i} = part + {}u; let at{i} = at + min(n{i}, used - 1u) * {}u;
    let values{i} = parts[at{i} + d]; let end{i} = parts[at{i} + {value4}u];
    let some{i} = n{i} < used && end{i}.y != 0.0;",
            i * side,
            value4 + 1
        )
    });
    let top =
        (0..loads).fold("top".to_string(), |top, i| format!("max({top}, select(-1e30, end{i}.x, some{i}))"));
    let add = lines(&|i| {
        format!("if some{i} {{ let w = exp2(end{i}.x - top); total += w * end{i}.y; sum += w * values{i}; }}")
    });
    let collect = format!(
        "{asked}
    let higher = {top};
    let carry = exp2(top - higher); total *= carry; sum *= carry; top = higher;
    {add}"
    );
    let combine = format!(
        "if used > 1u {{
    if !is_last(p.counters + wg.z * {groups}u + wg.y, used, li) {{ return; }}
    for (var start = 0u; start < {all}u; start += {across}u) {{
      let i = min(start + li % {across}u, {}u);
      let nth = li / {across}u;
      let head = i / {value4}u;
      let d = i % {value4}u;
      let row = combined(p.parts + (row0 + head) * {}u, head, d, nth, used, li);
      if nth == 0u && start + li < {all}u {{
        {store}
      }}
    }}
  }}",
        all - 1,
        splits * (value4 + 1)
    );
    shader
        .part(include_str!("decode_parts.wgsl"))
        .define("SIDE", side)
        .define("ACROSS", across)
        .define("STRIDE", side * loads)
        .define("COLLECT", collect)
        .define("COMBINE", combine)
}

/// The result, and the text that stores `row`, elements 4d .. 4d + 3 of the row at `to`, or of `head` in eight bits.
fn result(shader: Shader, y: &Operand, codes: Option<&Operand>, head: &str) -> (Shader, String) {
    if let Some(codes) = codes {
        let quads = y.desc.ne[0] / 4;
        let all = quads * y.desc.ne[1];
        let mut store = format!(
            "let block = quantize_block(row);
      let word = ({head}) * {quads}u + d;
      codes[p.codes + word] = block.code;
      if word % 8u == 0u {{
        let at = p.codes + {all}u + word / 4u;
        codes[at] = bitcast<u32>(block.d);
        codes[at + 1u] = bitcast<u32>(block.sum);
      }}"
        );
        // What fills the row up to sixteen bytes.
        for word in all + all / 4..codes.desc.span() / 4 {
            store.push_str(&format!("\n      if word == 1u {{ codes[p.codes + {word}u] = 0u; }}"));
        }
        let shader = shader.part(include_str!("../../gpu/quantize.wgsl"));
        return (shader.raw("codes", "read_write", "u32", codes), store);
    }
    match vectors(y, 4) {
        Some(strides) => {
            let shader = numbers(shader.raw("y", "read_write", "vec4<f32>", y), "y", strides);
            (shader, "y[to + d] = row;".to_string())
        }
        None => {
            let store = "for (var e = 0u; e < 4u; e++) { y[to + 4u * d + e] = row[e]; }".to_string();
            (shader.output("y", y).strides("y", y, true), store)
        }
    }
}

/// The name of the type of cells that can be read sixteen bytes at a time, with their strides in such units.
fn sixteen(cells: &Operand) -> Option<(&'static str, [usize; 3])> {
    let name = match cells.desc.dtype {
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        _ => return None,
    };
    vectors(cells, 8).map(|strides| (name, strides))
}

/// Strides in vectors of `elements` elements, where the tensor's rows lie on their borders.
fn vectors(operand: &Operand, elements: usize) -> Option<[usize; 3]> {
    let bytes = elements * operand.desc.dtype.block_bytes();
    let strides: [usize; 3] =
        std::array::from_fn(|d| if operand.desc.ne[d + 1] > 1 { operand.desc.nb[d + 1] } else { 0 });
    let fits = operand.offset.is_multiple_of(bytes as u64) && strides.iter().all(|s| s.is_multiple_of(bytes));
    fits.then(|| strides.map(|s| s / bytes))
}

fn numbers(shader: Shader, name: &'static str, strides: [usize; 3]) -> Shader {
    strides
        .into_iter()
        .zip(1..)
        .fold(shader, |shader, (stride, d)| shader.number(&format!("{name}{d}"), stride))
}

// The compiler of kernels belongs to the Vulkan device.
#[cfg(all(test, feature = "vulkan"))]
mod tests {
    use super::*;
    use crate::device::vulkan::shader::{Target, compile};
    use crate::gpu::{Limits, Memory};
    use crate::ops::{RmsNorm, Rope, RopeKind, RopeScaling};

    /// The software device has subgroups of one size; kernels for the others have to be valid, and in bounds of memory,
    /// bindings and immediates also with everything that goes before attention.
    #[test]
    fn kernels_compile_for_other_subgroups() {
        let op = FlashAttention { scale: 0.1, softcap: None, masking: Masking::Causal { window: None } };
        let operand = |dtype, ne: &[usize], memory| Operand {
            desc: Desc::new(dtype, ne).unwrap(),
            offset: 0,
            memory: Memory::Input(memory),
        };
        for (head, heads, kv_heads, cells) in
            [(64, 9, 3, 4096), (128, 32, 8, 8192), (256, 4, 1, 2048), (64, 14, 2, 600), (128, 8, 8, 100)]
        {
            for size in [16, 32, 64] {
                let limits = Limits { subgroup_fixed: Some(size), ..Limits::NARROW };
                let inputs = [
                    operand(DType::F32, &[head, 1, heads], 0),
                    operand(DType::F16, &[head, cells, kv_heads], 1),
                    operand(DType::F16, &[head, cells, kv_heads], 2),
                    operand(DType::I32, &[1], 3),
                ];
                let output = operand(DType::F32, &[head, heads, 1], 4);
                let descs = inputs.map(|i| i.desc);
                let scratch = operand(DType::I32, &[scratch(&descs, &output.desc) / 4], 5);
                let call = GpuCall { inputs: &inputs, output, scratch, limits, window: None };
                let kind = RopeKind::Normal;
                let rope = Rope { kind, dims: head, base: 10_000.0, scaling: RopeScaling::None };
                let rows = [heads, kv_heads, kv_heads].map(|n| operand(DType::F32, &[head, n], 6));
                let value = operand(DType::F32, &[head, 1, kv_heads], 6);
                let [angles, weight] = [7, 8].map(|n| operand(DType::F32, &[head], n));
                let norm = Some((RmsNorm { eps: 1e-6 }, Some(&weight)));
                let fresh =
                    Fresh { rope, angles: &angles, q: &rows[0], k: &rows[1], v: &value, norms: [norm, norm] };
                let codes = operand(DType::Q8P, &[head * heads], 9);
                let kernels = [
                    shader(op, &call).unwrap().unwrap(),
                    fused(op, &call, &fresh, None).unwrap(),
                    fused(op, &call, &fresh, Some(&codes)).unwrap(),
                ];
                for kernel in kernels {
                    let [dispatch] = kernel.try_into().unwrap();
                    let text = dispatch.source.text().unwrap();
                    compile(&text, Target::NARROW)
                        .unwrap_or_else(|e| panic!("{head} {heads} {size}: {e}\n{text}"));
                    // Whoever counts has counters, one for each group of workgroups that share a result.
                    let [parts, y, z] = dispatch.groups.map(|n| n as usize);
                    assert_eq!(dispatch.counters, if parts > 1 { y * z } else { 0 });
                }
            }
        }
    }
}
