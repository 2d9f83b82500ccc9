//! Matrix times many columns on a GPU with cooperative matrices: f16 by f16, sums in f32.
//!
//! Weights are planar or F16; x comes as F16 (what `QuantizeRows` makes of it, once for all products that read it). Codes
//! become f16 on their way into workgroup memory, 32 values an invocation, without conversions of integers: a byte b
//! under the bits of 1024 is the f16 1024 + b.

use crate::gpu::{Dispatch, GpuCall, Limits, Matrix, Shader};
use crate::quant::BlockType;
use crate::tensor::{DType, Desc};

/// A tile of the result: columns and rows of a workgroup, then of a subgroup.
struct Tile {
    bm: usize,
    bn: usize,
    wm: usize,
    wn: usize,
}

/// Measured on an H200: 263 TFLOP/s for 4096^3, an eighth less with the other orders of subgroups.
const LARGE: Tile = Tile { bm: 128, bn: 128, wm: 64, wn: 32 };
/// For results with few tiles.
const SMALL: Tile = Tile { bm: 64, bn: 64, wm: 32, wn: 32 };
/// Workgroups from which the large tile keeps a large GPU busy.
const ENOUGH: usize = 96;

/// Whether the device has what the kernel needs.
fn has(limits: &Limits) -> bool {
    limits.matrix == Some(Matrix { m: 16, n: 16, k: 16 })
        && limits.f16
        && limits.subgroup_fixed == Some(32)
        && limits.shared_memory >= 48 << 10
}

/// Whether products of these weights with many columns run on matrices, from x in F16.
pub(crate) fn takes(limits: &Limits, w: &Desc) -> bool {
    let kind = matches!(w.dtype, DType::Planar(_)) || w.dtype == DType::F16 && w.ne[0].is_multiple_of(32);
    has(limits) && kind && w.ne[0] > 0 && w.ne[2] * w.ne[3] == 1 && w.is_contiguous()
}

/// Whether the kernel can run with these operands: it reads sixteen bytes at a time.
pub(super) fn fits(call: &GpuCall<'_>) -> bool {
    let (w, x, y) = (&call.inputs[0], &call.inputs[1], &call.output);
    takes(&call.limits, &w.desc)
        && x.desc.is_contiguous()
        && y.desc.is_contiguous()
        && w.offset.is_multiple_of(16)
        && x.offset.is_multiple_of(16)
}

pub(super) fn shader(call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
    let (w, x, y) = (&call.inputs[0], &call.inputs[1], &call.output);
    let (k, n, m) = (w.desc.ne[0], w.desc.ne[1], x.desc.rows());
    if !fits(call) {
        return Err(format!("no product of {} and {} with matrices", w.desc, x.desc));
    }
    let tiles = |t: &Tile| m.div_ceil(t.bm) * n.div_ceil(t.bn);
    let tile = if tiles(&LARGE) >= ENOUGH { LARGE } else { SMALL };
    let subgroups = tile.bm / tile.wm * (tile.bn / tile.wn);
    let threads = 32 * subgroups;
    let codes = matches!(w.desc.dtype, DType::Planar(_));
    let row = w.desc.dtype.row_bytes(k) / 16;
    let (sign, one) = match w.desc.dtype {
        DType::Planar(BlockType::Q6_K | BlockType::Q8_0) => ("0x80808080u", "1152.0"),
        _ => ("0u", "1024.0"),
    };
    let (fm, fnn) = (tile.wm / 16, tile.wn / 16);
    let mut shader = Shader::new("mat_tile", include_str!("mat_tile.wgsl"))
        .enable("f16")
        .enable("wgpu_cooperative_matrix")
        .full_subgroups()
        .number("m", m)
        .number("n", n)
        .number("k", k)
        .number("row", row)
        .number("tiles_m", m.div_ceil(tile.bm))
        .number("tiles_n", n.div_ceil(tile.bn))
        .raw("w4", "read", "vec4<u32>", w)
        .raw("x4", "read", "vec4<u32>", x)
        .raw("y", "read_write", "f32", y);
    if let DType::Planar(block) = w.desc.dtype {
        shader = shader
            .raw("w1", "read", "u32", w)
            .number("groups", k / 32)
            .part(include_str!("../gpu/group.wgsl"))
            .part(include_str!("../gpu/dot4_plain.wgsl"))
            .text(&super::mat_vec::group(block).replace("NAME", "w"))
            .text(&HALVES.replace("SIGN", sign).replace("ONE", one));
    }
    let shader = shader
        .define("THREADS", threads)
        .define("BM", tile.bm)
        .define("BN", tile.bn)
        .define("WM", tile.wm)
        .define("WN", tile.wn)
        .define("ACROSS", tile.bm / tile.wm)
        .define("XS", tile.bm * 9)
        .define("WS", tile.bn * 9)
        .define("XROWS", threads / 8)
        .define("EDGE", subgroups * 256)
        .define("FIND_W", if codes { FIND_CODES } else { "var next: array<vec4<u32>, 4>;" })
        .define("FETCH_W", if codes { FETCH_CODES.into() } else { four(FETCH_F16, threads) })
        .define("STORE_W", if codes { STORE_CODES.into() } else { four(STORE_F16, threads) })
        // Written out: matrices in an array are kept in registers only if the driver unrolls every loop over them, and
        // those that are loaded from words have no type that an array could have.
        .define("SUMS", each(fm, fnn, "var cI_J = MC();"))
        .define("LOAD_A", each(fm, 1, "let aI = coopLoadT<MA>(&xs[(wm + 16u * Iu) * 9u + k * 2u], 9u);"))
        .define("MULTIPLY", multiply(fm, fnn))
        .define("STORE_WHOLE", each(fm, fnn, STORE_WHOLE))
        .define("STORE_EDGE", each(fm, fnn, STORE_EDGE));
    Ok(vec![shader.groups(if m == 0 || n == 0 { 0 } else { tiles(&tile) })?])
}

/// A line for each matrix of a subgroup's tile, with its place in it for `I` and `J`.
fn each(fm: usize, fnn: usize, line: &str) -> String {
    let places = (0..fm).flat_map(|i| (0..fnn).map(move |j| (i, j)));
    places.map(|(i, j)| line.replace('I', &i.to_string()).replace('J', &j.to_string()) + "\n      ").collect()
}

/// One step of sixteen along k.
fn multiply(fm: usize, fnn: usize) -> String {
    let mut text = String::new();
    for j in 0..fnn {
        let j = j.to_string();
        text += &"let bJ = coopLoad<MB>(&ws[(wn + 16u * Ju) * 9u + k * 2u], 9u);\n      ".replace('J', &j);
        for i in 0..fm {
            let line = "cI_J = coopMultiplyAdd(aI, bJ, cI_J);\n      ";
            text += &line.replace('I', &i.to_string()).replace('J', &j);
        }
    }
    text
}

const STORE_WHOLE: &str = "let toI_J = p.y + (m0 + wm + 16u * Iu) * stride + n0 + wn + 16u * Ju;
    coopStoreT(cI_J, &y[toI_J], stride);";

const STORE_EDGE: &str = "coopStoreT(cI_J, &edge[mine], sixteen);
    workgroupBarrier();
    copy_edge(mine, lane, size, m0 + wm + 16u * Iu, n0 + wn + 16u * Ju);
    workgroupBarrier();";

/// Halves are loaded as x is: neighbours read neighbouring words.
const FETCH_F16: &str = "next[I] = w4[p.w4 + min(n0 + x_row + ROWu, p.n - 1u) * p.row + word];";
const STORE_F16: &str = "ws[(x_row + ROWu) * 9u + x_word] = next[I];";

/// A line for each of the four words of an invocation.
fn four(line: &str, threads: usize) -> String {
    let nth = |i: usize| line.replace("ROW", &(i * threads / 8).to_string()).replace('I', &i.to_string());
    (0..4).map(nth).collect::<Vec<_>>().join("\n      ")
}

/// Codes: two invocations a row, a group each; they become f16 when they are stored.
const FIND_CODES: &str = "let w_row = p.w4 + min(n0 + li / 2u, p.n - 1u) * p.row;
  let to_w = (li / 2u) * 9u + (li % 2u) * 4u;
  var next: Group;";
const FETCH_CODES: &str = "next = group_w(w_row, group);";
const STORE_CODES: &str = "ws[to_w] = eight(next.low.x, next.low.y, next.d0, next.m);
    ws[to_w + 1u] = eight(next.low.z, next.low.w, next.d0, next.m);
    ws[to_w + 2u] = eight(next.high.x, next.high.y, next.d1, next.m);
    ws[to_w + 3u] = eight(next.high.z, next.high.w, next.d1, next.m);";

/// Eight bytes as f16 times d plus m.
const HALVES: &str = "fn four(bytes: u32, d: f32, c: f32) -> vec2<u32> {
  let b = bytes ^ SIGN;
  let even = unpack2x16float((b & 0x00ff00ffu) | 0x64006400u);
  let odd = unpack2x16float(((b >> 8u) & 0x00ff00ffu) | 0x64006400u);
  return vec2<u32>(pack2x16float(vec2<f32>(even.x, odd.x) * d + c), pack2x16float(vec2<f32>(even.y, odd.y) * d + c));
}
fn eight(a: u32, b: u32, d: f32, m: f32) -> vec4<u32> {
  let c = m - ONE * d;
  return vec4<u32>(four(a, d, c), four(b, d, c));
}
";

// The compiler of kernels belongs to the Vulkan device.
#[cfg(all(test, feature = "vulkan"))]
mod tests {
    use super::*;
    use crate::device::vulkan::shader::{Target, compile};
    use crate::gpu::{Memory, Operand};

    #[test]
    fn kernels_for_every_type_of_weights_compile() {
        let operand =
            |dtype, ne: &[usize], memory| Operand { desc: Desc::new(dtype, ne).unwrap(), offset: 0, memory };
        let types = BlockType::ALL.into_iter().filter(|t| !t.is_float()).map(DType::Planar);
        for w in types.chain([DType::F16]) {
            for m in [40, 1024] {
                let inputs = [
                    operand(w, &[512, 2048], Memory::Input(0)),
                    operand(DType::F16, &[512, m], Memory::Input(1)),
                ];
                let output = operand(DType::F32, &[2048, m], Memory::Output);
                let scratch = operand(DType::I32, &[0], Memory::Scratch);
                let call = GpuCall { inputs: &inputs, output, scratch, limits: Limits::LARGE, window: None };
                let [dispatch] = shader(&call).unwrap().try_into().unwrap();
                let target = Target { version: (1, 6), int8: true, dot: true };
                let words = compile(&dispatch.source.text().unwrap(), target);
                words.unwrap_or_else(|e| panic!("{w}, {m} columns: {e}"));
            }
        }
    }
}
