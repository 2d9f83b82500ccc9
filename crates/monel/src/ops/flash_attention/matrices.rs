//! Attention of many tokens on a GPU with cooperative matrices, from a cache in F16.
//!
//! The rows of all query heads that share a KV head lie one after the other, token by token, so that a workgroup's rows
//! read the same keys whatever the number of heads. Queries and weights are rounded to f16, sums are f32.

use super::shader::causal;
use super::{FlashAttention, Masking};
use crate::gpu::{Dispatch, GpuCall, Limits, Shader};
use crate::tensor::DType;

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

/// The dispatch, or `None` where another kernel does it.
pub(super) fn shader(op: FlashAttention, call: &GpuCall<'_>) -> Option<Result<Vec<Dispatch>, String>> {
    let (q, k, v) = (&call.inputs[0], &call.inputs[1], &call.inputs[2]);
    let limits = &call.limits;
    let (head, value) = (k.desc.ne[0], v.desc.ne[0]);
    let [_, tokens, heads, batches] = q.desc.ne;
    let kv_heads = k.desc.ne[2].max(1);
    let size = limits.subgroup_fixed.unwrap_or(0) as usize;
    // A row of sixteen has at least one invocation.
    let has = limits.has_matrices() && size >= ROWS;
    let whole = [head, value].iter().all(|n| n.is_multiple_of(16) && (16..=LARGEST).contains(n));
    let vectors = [k, v].iter().all(|o| o.desc.dtype == DType::F16 && o.in_vectors());
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

/// What the invocations of a workgroup copy of a tile of keys or values: a vector each, and those that many further.
#[derive(Clone, Copy)]
struct Copies {
    /// The tensor.
    name: char,
    /// Vectors of eight values in a row.
    vectors: usize,
    cells: usize,
    threads: usize,
    line: usize,
}

impl Copies {
    /// Vectors of an invocation.
    fn count(&self) -> usize {
        (self.cells * self.vectors).div_ceil(self.threads)
    }

    /// The text for each vector, its number for `$J`: vector `u$J` of row `r$J`.
    fn each(&self, text: &str) -> String {
        let Copies { vectors, cells, threads, .. } = *self;
        let place = |j: usize| {
            format!(
                "let at$J = li + {}u; let r$J = at$J / {vectors}u; let u$J = at$J % {vectors}u;",
                j * threads
            )
        };
        let one = |j: usize| match (j + 1) * threads <= cells * vectors {
            true => format!("{{ {} {text} }}", place(j)),
            false => format!("{{ {} if r$J < {cells}u {{ {text} }} }}", place(j)),
        };
        (0..self.count()).map(|j| one(j).replace("$J", &j.to_string()) + "\n    ").collect()
    }

    /// Asks for the tile that begins with cell `first`. Behind the last cell the last one is read again.
    fn load(&self, first: &str) -> String {
        let name = self.name;
        self.each(&format!("next$J = {name}[{name}_at + min({first} + r$J, end - 1u) * p.{name}1 + u$J];"))
    }

    /// Puts the tile into workgroup memory, zeros where `hidden` holds.
    fn store(&self, hidden: &str) -> String {
        let value = match hidden {
            "" => "next$J".to_string(),
            hidden => format!("select(next$J, vec4<u32>(0u), {hidden})"),
        };
        self.each(&format!("kv[r$J * {}u + u$J] = {value};", self.line))
    }

    /// Notes the cells that hold something else than numbers.
    fn look(&self) -> String {
        self.each("if not_finite(next$J) && c0 + r$J < end { broken[r$J] = 1u; }")
    }
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
        .vector_strides("k", k)
        .raw("v", "read", "vec4<u32>", v)
        .vector_strides("v", v)
        .output("y", &call.output)
        .strides("y", &call.output, true);
    let keys = Copies { name: 'k', vectors: head / 8, cells: tile.cells, threads, line };
    let values = Copies { name: 'v', vectors: value / 8, ..keys };
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
    let add_values = format!(
        "let a = coopLoadT<Rows>(&weights[sg * {}u + e * 2u], {weight_line}u);\n      {}",
        ROWS * weight_line,
        each(
            vs,
            &format!(
                "let b$J = coopLoadT<Cols>(&kv[e * {}u + 2u * $Ju], {line}u); o$J = coopMultiplyAdd(a, b$J, o$J);",
                16 * line
            )
        )
    );
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
        .define("NEXT", each(keys.count().max(values.count()), "var next$J = vec4<u32>(0u);"))
        .define(
            "QUERIES",
            each(ds, &format!("let a$J = coopLoadT<Rows>(&kv[sg * {}u + 2u * $Ju], {line}u);", ROWS * line)),
        )
        .define("RESULTS", each(vs, "var o$J = Sums();"))
        .define("LOAD_K", keys.load("c0"))
        .define("STORE_K", keys.store(""))
        .define("AHEAD_K", keys.load(&format!("c0 + {}u", tile.cells)))
        .define("LOAD_V", values.load("c0"))
        .define("LOOK_V", values.look())
        // What no row sees is zero: a weight of zero does not hide what is not a number.
        .define("STORE_V", values.store("c0 + r$J >= end || broken[r$J] != 0u"))
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
        .define("VALUES", add_values)
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
    use crate::tensor::Desc;

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
                        let limits = Limits { subgroup_fixed: Some(size), ..Limits::NARROW };
                        let [dispatch] = call(op, heads, limits).unwrap().try_into().unwrap();
                        let text = dispatch.source.text().unwrap();
                        compile(&text, Target::NARROW).unwrap_or_else(|e| panic!("{heads:?}: {e}\n{text}"));
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
