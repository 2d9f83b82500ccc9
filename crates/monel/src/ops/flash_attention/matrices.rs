//! Attention of many tokens on a GPU with cooperative matrices, from a cache in F16.
//!
//! The rows of all query heads that share a KV head lie one after the other, token by token, so that a workgroup's rows
//! read the same keys whatever the number of heads. Queries and weights are rounded to f16, sums are f32.

use super::shader::causal;
use super::{FlashAttention, Masking};
use crate::gpu::{Dispatch, GpuCall, Limits, Matrix, Shader};
use crate::tensor::{DType, Desc};

/// Rows of a subgroup.
const ROWS: usize = 16;
/// Largest head whose results and queries stay in registers.
const LARGEST: usize = 128;
/// Tokens from which it is worth while.
const FEW: usize = 16;
/// Workgroups that keep a large device busy.
const BUSY: usize = 200;
/// Scores are kept in units of log2(e).
const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// How a workgroup works.
#[derive(Clone, Copy, Debug)]
struct Tile {
    subgroups: usize,
    /// Cells at a time.
    cells: usize,
}

impl Tile {
    /// Vectors of eight values from a row of keys or values to the next.
    fn line(head: usize, value: usize) -> usize {
        head.max(value) / 8 + 1
    }

    /// Numbers from a row of scores to the next: rows eight banks apart.
    fn pitch(self) -> usize {
        self.cells + 8
    }

    fn shared_bytes(self, head: usize, value: usize) -> usize {
        let rows = self.subgroups * ROWS;
        let tiles = rows.max(self.cells) * Tile::line(head, value) * 16;
        tiles + rows * (self.pitch() * 4 + (self.cells / 8 + 1) * 16 + 12) + self.cells * 4 + 16
    }
}

fn tile(limits: &Limits, rows: usize, groups: usize, [head, value]: [usize; 2]) -> Option<Tile> {
    let subgroups = [4, 2].into_iter().find(|s| rows.div_ceil(s * ROWS) * groups >= BUSY).unwrap_or(2);
    let fits = |t: &Tile| t.shared_bytes(head, value) <= limits.shared_memory as usize;
    [64, 32].map(|cells| Tile { subgroups, cells }).into_iter().find(fits)
}

/// Whether rows can be read in vectors of eight halves.
fn in_vectors(desc: &Desc, offset: u64) -> bool {
    desc.dtype == DType::F16 && offset.is_multiple_of(16) && desc.nb[1..].iter().all(|b| b.is_multiple_of(16))
}

/// The dispatch, or `None` where another kernel does it.
pub(super) fn shader(op: FlashAttention, call: &GpuCall<'_>) -> Option<Result<Vec<Dispatch>, String>> {
    let (q, k, v) = (&call.inputs[0], &call.inputs[1], &call.inputs[2]);
    let limits = &call.limits;
    let (head, value) = (k.desc.ne[0], v.desc.ne[0]);
    let [_, tokens, heads, batches] = q.desc.ne;
    let kv_heads = k.desc.ne[2].max(1);
    let size = limits.subgroup_fixed.unwrap_or(0) as usize;
    let has =
        limits.f16 && limits.matrix == Some(Matrix { m: 16, n: 16, k: 16 }) && [16, 32, 64].contains(&size);
    let whole = [head, value].iter().all(|n| n.is_multiple_of(16) && (16..=LARGEST).contains(n));
    let vectors = [k, v].iter().all(|o| in_vectors(&o.desc, o.offset));
    if !has
        || !whole
        || !vectors
        || tokens < FEW
        || op.masking == Masking::Mask
        || call.output.desc.is_empty()
    {
        return None;
    }
    let rows = tokens * (heads / kv_heads);
    let tile = tile(limits, rows, kv_heads * batches, [head, value])?;
    Some(matrices(op, call, tile, size))
}

/// The line for each of `count`, its number for `$J`.
fn each(count: usize, line: &str) -> String {
    (0..count).map(|j| line.replace("$J", &j.to_string()) + "\n    ").collect()
}

fn matrices(
    op: FlashAttention,
    call: &GpuCall<'_>,
    tile: Tile,
    size: usize,
) -> Result<Vec<Dispatch>, String> {
    let (q, k, v) = (&call.inputs[0], &call.inputs[1], &call.inputs[2]);
    let (head, value) = (k.desc.ne[0], v.desc.ne[0]);
    let [_, tokens, heads, batches] = q.desc.ne;
    let [_, cells, kv_heads, kv_batches] = k.desc.ne;
    let group = heads / kv_heads.max(1);
    let (rows, threads) = (tile.subgroups * ROWS, tile.subgroups * size);
    let (line, pitch, weight_line) = (Tile::line(head, value), tile.pitch(), tile.cells / 8 + 1);
    let blocks = (tokens * group).div_ceil(rows);
    // Scores are capped as cap tanh(score / cap).
    let (unit, cap) = match op.softcap {
        Some(cap) => (1.0, format!("v = f32({:e}) * tanh_f(v / f32({cap:e}));", cap * LOG2_E)),
        None => (LOG2_E, String::new()),
    };
    let strides = |shader: Shader, name: &str, desc: &Desc| {
        (1..4).fold(shader, |s, d| s.number(&format!("{name}{d}"), desc.nb[d] / 16))
    };
    let mut shader = Shader::new("flash_attention_matrices", include_str!("matrices.wgsl"))
        .enable("f16")
        .enable("wgpu_cooperative_matrix")
        .full_subgroups()
        .part(include_str!("../../gpu/functions.wgsl"))
        .number("tokens", tokens)
        .number("rows", tokens * group)
        .number("blocks", blocks)
        .number("kv_heads", kv_heads)
        .number("batches", batches)
        .number("share", batches / kv_batches.max(1))
        .number("cells", cells)
        .float("scale", op.scale * unit)
        .input("q", q)
        .strides("q", q, true)
        .raw("k", "read", "vec4<u32>", k)
        .raw("v", "read", "vec4<u32>", v)
        .output("y", &call.output)
        .strides("y", &call.output, true);
    shader = strides(strides(shader, "k", &k.desc), "v", &v.desc);
    // What an invocation reads of a tile: the same vector of rows that lie `apart` from each other.
    let loads = |name: char, width: usize| {
        let vectors = width / 8;
        let count = (tile.cells * vectors).div_ceil(threads);
        let place = |j: usize| {
            format!(
                "let at{j} = li + {}u; let r{j} = at{j} / {vectors}u; let u{j} = at{j} % {vectors}u;",
                j * threads
            )
        };
        let whole = (tile.cells * vectors).is_multiple_of(threads);
        let guard = |text: String, j: usize| match whole || j + 1 < count {
            true => text,
            false => format!("if r{j} < {}u {{ {text} }}", tile.cells),
        };
        let all = |f: &dyn Fn(usize) -> String| -> String {
            (0..count).map(|j| format!("{{ {} {} }}\n    ", place(j), guard(f(j), j))).collect()
        };
        // Behind the last cell the last one is read again.
        let load =
            all(&|j| format!("next{j} = {name}[{name}_at + min(c0 + r{j}, end - 1u) * p.{name}1 + u{j}];"));
        let store = match name {
            'k' => all(&|j| format!("kv[r{j} * {line}u + u{j}] = next{j};")),
            // What no row sees is zero: a weight of zero does not hide what is not a number.
            _ => all(&|j| {
                format!(
                    "kv[r{j} * {line}u + u{j}] = select(next{j}, vec4<u32>(0u), c0 + r{j} >= end || broken[r{j}] != 0u);"
                )
            }),
        };
        let look = all(&|j| {
            format!("if not_finite(next{j}) && c0 + r{j} < end {{ broken[r{j}] = 1u; wrong = 1u; }}")
        });
        (count, load, store, look)
    };
    let (k_count, k_load, k_store, _) = loads('k', head);
    let (v_count, v_load, v_store, v_look) = loads('v', value);
    let (ds, js, vs) = (head / 16, tile.cells / 16, value / 16);
    let scores: String = (0..js)
        .map(|j| {
            let sums: String = (0..ds)
                .map(|d| {
                    format!(
                        "let b{j}_{d} = coopLoad<Cols>(&kv[{}u], {line}u); s{j} = coopMultiplyAdd(a{d}, b{j}_{d}, s{j});\n    ",
                        j * 16 * line + d * 2
                    )
                })
                .collect();
            format!("var s{j} = Sums();\n    {sums}let to{j} = mine + {}u; coopStoreT(s{j}, &scores[to{j}], pitch);\n    ", j * 16)
        })
        .collect();
    let values = format!(
        "let a = coopLoadT<Rows>(&weights[sg * {}u + e * 2u], {weight_line}u);\n      {}",
        ROWS * weight_line,
        each(
            vs,
            &format!(
                "let b$J = coopLoadT<Cols>(&kv[e * {}u + {{2 * $J}}], {line}u); o$J = coopMultiplyAdd(a, b$J, o$J);",
                16 * line
            )
        )
    );
    // Places of columns are numbers, not sums.
    let values =
        (0..vs).fold(values, |text, j| text.replace(&format!("{{2 * {j}}}"), &format!("{}u", 2 * j)));
    shader = shader
        .define("THREADS", threads)
        .define("SIZE", size)
        .define("SHARE_ROW", size / ROWS)
        .define("BLOCK", rows)
        .define("GROUP", group.max(1))
        .define("CELLS", tile.cells)
        .define("CHUNKS", tile.cells / 8)
        .define("KV", rows.max(tile.cells) * line)
        .define("LINE", line)
        .define("PITCH", pitch)
        .define("SCORES", rows * pitch)
        .define("WEIGHT_LINE", weight_line)
        .define("WEIGHTS", rows * weight_line)
        .define("HEAD8", head / 8)
        .define("STEPS", js)
        .define("NEXT", each(k_count.max(v_count), "var next$J = vec4<u32>(0u);"))
        .define(
            "QUERIES",
            each(ds, &format!("let a$J = coopLoadT<Rows>(&kv[sg * {}u + 2u * $Ju], {line}u);", ROWS * line)),
        )
        .define("RESULTS", each(vs, "var o$J = Sums();"))
        .define("AHEAD_K", k_load.replace("min(c0 +", &format!("min(c0 + {}u +", tile.cells)))
        .define("LOAD_K", k_load)
        .define("STORE_K", k_store)
        .define("LOAD_V", v_load)
        .define("LOOK_V", v_look)
        .define("STORE_V", v_store)
        .define("MAKE_SCORES", scores)
        .define(
            "RESCALE",
            each(
                vs,
                "coopStoreT(o$J, &scores[mine], sixteen);
      workgroupBarrier();
      rescale(mine, sg * 16u, lane);
      workgroupBarrier();
      o$J = coopLoadT<Sums>(&scores[mine], sixteen);
      workgroupBarrier();",
            ),
        )
        .define("VALUES", values)
        .define(
            "WRITE",
            each(
                vs,
                "coopStoreT(o$J, &scores[mine], sixteen);
    workgroupBarrier();
    write(mine, row0 + sg * 16u, sg * 16u, lane, y_at + $Ju * 16u, head0);
    workgroupBarrier();",
            ),
        )
        .define("CAP", cap);
    shader = match op.masking {
        Masking::Causal { window } => causal(shader, call, window, ""),
        _ => shader.define("RANGE", ""),
    };
    Ok(vec![shader.groups(blocks * kv_heads * batches)?])
}

// The compiler of kernels belongs to the Vulkan device.
#[cfg(all(test, feature = "vulkan"))]
mod tests {
    use super::*;
    use crate::device::vulkan::shader::{Target, compile};
    use crate::gpu::{Memory, Operand};

    fn call(op: FlashAttention, [head, value]: [usize; 2], limits: Limits) -> Option<Vec<Dispatch>> {
        let operand = |dtype, ne: &[usize], memory| {
            Some(Operand { desc: Desc::new(dtype, ne).ok()?, offset: 0, memory })
        };
        let mut inputs = vec![
            operand(DType::F32, &[head, 100, 6], Memory::Input(0))?,
            operand(DType::F16, &[head, 300, 2], Memory::Input(1))?,
            operand(DType::F16, &[value, 300, 2], Memory::Input(2))?,
        ];
        if op.masking != Masking::None {
            inputs.push(operand(DType::I32, &[100], Memory::Input(3))?);
        }
        let output = operand(DType::F32, &[value, 6, 100], Memory::Output)?;
        let scratch = operand(DType::I32, &[0], Memory::Scratch)?;
        shader(op, &GpuCall { inputs: &inputs, output, scratch, limits, window: None })?.ok()
    }

    /// The software device has no matrices, so these kernels do not run in tests everywhere; they have to be valid.
    #[test]
    fn kernels_compile() {
        for heads in [[64, 64], [128, 128], [80, 80], [96, 48], [16, 112]] {
            for masking in
                [Masking::None, Masking::Causal { window: None }, Masking::Causal { window: Some(70) }]
            {
                for softcap in [None, Some(30.0)] {
                    for size in [16, 32, 64] {
                        let op = FlashAttention { scale: 0.1, softcap, masking };
                        let limits = Limits { subgroup_fixed: Some(size), ..Limits::LARGE };
                        let [dispatch] = call(op, heads, limits).unwrap().try_into().unwrap();
                        let text = dispatch.source.text().unwrap();
                        let target = Target { version: (1, 6), int8: true, dot: true };
                        compile(&text, target).unwrap_or_else(|e| panic!("{heads:?}: {e}\n{text}"));
                    }
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_left_to_others() {
        let op = FlashAttention { scale: 0.1, softcap: None, masking: Masking::None };
        assert!(call(op, [256, 256], Limits::LARGE).is_none());
        assert!(call(op, [72, 64], Limits::LARGE).is_none());
        assert!(call(op, [64, 64], Limits { matrix: None, ..Limits::LARGE }).is_none());
        assert!(call(op, [128, 128], Limits { shared_memory: 16 << 10, ..Limits::LARGE }).is_none());
        assert!(call(op, [128, 128], Limits { shared_memory: 48 << 10, ..Limits::LARGE }).is_some());
    }
}
