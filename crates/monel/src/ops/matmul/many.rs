//! Products with many columns on a GPU, in tiles that a workgroup shares.
//!
//! Weights of at most 16 bits are multiplied as f16 and summed in f32, x rounded to f16 by a kernel of its own before: it
//! is read once for each tile of rows, and needs a scale where its numbers leave the range of f16. One text (`halves.wgsl`)
//! multiplies by cooperative matrices where the device has them, else one by one; everything about loading, edges and
//! batches is the same. F32 and BF16 weights hold what f16 does not; they are multiplied in f32 (`floats.wgsl`).

use super::weights::{Loader, Weights};
use crate::gpu::{Dispatch, GpuCall, Limits, Operand, Shader};
use crate::tensor::{DType, Desc};
use std::fmt::Write;

/// Values along k that rows of x in f16 are padded to with zeros: the longest step.
const PAD: usize = 64;

/// Invocations that look at a column of x.
const COLUMN_THREADS: u32 = 128;

/// How a workgroup cuts the result. Public for measurements only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductTile {
    /// Rows (of the weights) and columns (of x) of a workgroup.
    pub rows: usize,
    /// Columns of a workgroup.
    pub cols: usize,
    /// Values along k at a time.
    pub step: usize,
    /// Rows and columns of a subgroup (with matrices) or of an invocation.
    pub part: [usize; 2],
    /// Whether cooperative matrices multiply.
    pub matrices: bool,
}

impl ProductTile {
    const fn new(rows: usize, cols: usize, step: usize, part: [usize; 2], matrices: bool) -> ProductTile {
        ProductTile { rows, cols, step, part, matrices }
    }

    /// Subgroups or invocations.
    fn parts(&self) -> usize {
        self.rows / self.part[0] * (self.cols / self.part[1])
    }

    fn threads(&self, limits: &Limits) -> usize {
        if self.matrices { self.parts() * limits.subgroup_fixed.unwrap_or(32) as usize } else { self.parts() }
    }

    /// Vectors of eight values from a row of a tile to the next.
    fn line(&self) -> usize {
        self.step / 8 + 1
    }

    fn shared_bytes(&self) -> usize {
        let pieces = if self.matrices { self.parts() * 1024 } else { 0 };
        (self.rows + self.cols) * self.line() * 16 + pieces + 16
    }

    /// Whether a device can run it. Too much shared memory is not an error everywhere, so nothing else would say it.
    pub fn fits(&self, limits: &Limits) -> bool {
        let [rows, cols] = self.part;
        let even = self.rows.is_multiple_of(rows) && self.cols.is_multiple_of(cols);
        let matrix =
            !self.matrices || limits.has_matrices() && rows.is_multiple_of(16) && cols.is_multiple_of(16);
        let threads = self.threads(limits);
        even && matrix
            && PAD.is_multiple_of(self.step)
            && self.step.is_multiple_of(32)
            && threads.is_multiple_of(self.step / 8)
            && threads <= limits.largest_group()
            && self.shared_bytes() <= limits.shared_memory as usize
    }
}

/// Whether products of these weights with many columns want x in F16, which all products of the same x share.
#[cfg(feature = "vulkan")]
pub(crate) fn takes(limits: &Limits, w: &Desc) -> bool {
    let kind = matches!(w.dtype, DType::Planar(_)) || w.dtype == DType::F16 && w.ne[0].is_multiple_of(8);
    let matrices = CODES[CODES.len() - 1].fits(limits);
    matrices && kind && w.ne[0] > 0 && w.ne[2] * w.ne[3] == 1 && w.is_contiguous()
}

/// Who loads what of a tile: `units` for each of its rows, each invocation the same unit of `count` rows.
pub(super) struct Spread {
    pub units: usize,
    pub rows_apart: usize,
    pub count: usize,
    rows: usize,
}

impl Spread {
    fn new(rows: usize, units: usize, threads: usize) -> Spread {
        let rows_apart = threads / units;
        Spread { units, rows_apart, count: rows.div_ceil(rows_apart), rows }
    }

    /// The condition under which the nth row is one of the tile; empty where it always is.
    pub fn guard(&self, nth: usize) -> String {
        let (first, units) = (nth * self.rows_apart, self.units);
        if first + self.rows_apart <= self.rows {
            return String::new();
        }
        format!("if li / {units}u + {first}u < {}u ", self.rows)
    }
}

/// Bytes of temporary memory: x in f16 and a scale for each column.
pub(super) fn scratch(x: &Desc) -> usize {
    x.rows() * (x.ne[0].next_multiple_of(PAD) * 2 + 4)
}

/// The dispatches of a product with many columns, in the given tile or the best one.
pub(super) fn shader(call: &GpuCall<'_>, tile: Option<ProductTile>) -> Result<Vec<Dispatch>, String> {
    let (w, y) = (&call.inputs[0].desc, &call.output.desc);
    let k = w.ne[0];
    let wide = matches!(w.dtype, DType::F32 | DType::BF16);
    let x = &call.inputs[1];
    // x in F16 is used as it lies, in vectors of eight.
    let vectors = k.is_multiple_of(8) && x.desc.is_contiguous() && x.offset.is_multiple_of(16);
    let odd = x.desc.dtype == DType::F16 && !vectors;
    if wide || odd || k == 0 || !k.is_multiple_of(4) || y.is_empty() {
        return floats(call);
    }
    let tile = tile.unwrap_or_else(|| best_tile(&call.limits, w, y));
    if !tile.fits(&call.limits) {
        return Err(format!("a tile that fits the device, found {tile:?}"));
    }
    let weights = Weights::of(&call.inputs[0], call.limits.f16);
    if call.inputs[1].desc.dtype == DType::F16 {
        return Ok(vec![halves(call, weights, tile)?]);
    }
    Ok(vec![columns(call)?, halves(call, weights, tile)?])
}

/// Tiles for devices with matrices, the largest first, for codes and for F16. Codes become f16 once for each tile of
/// columns and F16 is only moved, so the one wants wide tiles and the other large ones. Measured on an H200.
const CODES: [ProductTile; 4] = [
    ProductTile::new(64, 128, 64, [64, 32], true),
    ProductTile::new(64, 64, 64, [32, 32], true),
    ProductTile::new(32, 64, 64, [32, 16], true),
    ProductTile::new(32, 32, 64, [16, 16], true),
];
const HALVES: [ProductTile; 4] = [
    ProductTile::new(128, 128, 64, [64, 32], true),
    ProductTile::new(64, 128, 64, [64, 32], true),
    ProductTile::new(64, 64, 64, [32, 32], true),
    ProductTile::new(32, 32, 64, [16, 16], true),
];
/// Tiles for devices without.
const WITHOUT: [ProductTile; 2] =
    [ProductTile::new(64, 64, 32, [4, 4], false), ProductTile::new(32, 32, 32, [4, 2], false)];
/// The tile for processors that pose as GPUs.
const SOFTWARE: ProductTile = ProductTile::new(32, 32, 32, [4, 4], false);
/// Workgroups that keep a large device busy.
const BUSY: usize = 96;

/// The largest tile that keeps the device busy, else the smallest.
fn best_tile(limits: &Limits, w: &Desc, y: &Desc) -> ProductTile {
    let [n, m, b2, b3] = y.ne;
    if limits.software {
        return SOFTWARE;
    }
    let tiles: &[ProductTile] = match limits.has_matrices() {
        true if w.dtype == DType::F16 => &HALVES,
        true => &CODES,
        false => &WITHOUT,
    };
    let good = |t: &&ProductTile| {
        let groups = n.div_ceil(t.rows) * m.div_ceil(t.cols) * b2 * b3;
        t.fits(limits) && t.cols < 2 * m && groups >= BUSY
    };
    let small = tiles.last().copied().unwrap_or(SOFTWARE);
    tiles.iter().find(good).copied().unwrap_or(small)
}

/// x in f16.
fn columns(call: &GpuCall<'_>) -> Result<Dispatch, String> {
    let x = &call.inputs[1];
    let [k, m, b2, b3] = x.desc.ne;
    let shader = Shader::new("mat_mul_columns", include_str!("columns.wgsl"))
        .reductions(if call.limits.software { 16 } else { COLUMN_THREADS })
        .number("count", m * b2 * b3)
        .number("m", m)
        .number("b2", b2)
        .number("b3", b3)
        .number("quads", k / 4);
    let shader = if x.in_vectors() {
        shader.raw("x", "read", "vec4<f32>", x).define("QUAD", "x[start + q]").vector_strides("x", x)
    } else {
        shader.input("x", x).strides("x", x, true).define("QUAD", "quad_x(start, q)")
    };
    converted(shader, call, "read_write").groups(m * b2 * b3)
}

/// Declares x in f16, `xh`, and its scales where it was made from F32.
fn converted(shader: Shader, call: &GpuCall<'_>, access: &str) -> Shader {
    let x = &call.inputs[1];
    if x.desc.dtype == DType::F16 {
        return shader.raw("xh", access, "vec4<u32>", x).number("line", x.desc.ne[0] / 8);
    }
    let line = x.desc.ne[0].next_multiple_of(PAD) / 8;
    let scales = Operand { offset: call.scratch.offset + (x.desc.rows() * line * 16) as u64, ..call.scratch };
    shader
        .raw("xh", access, "vec4<u32>", &call.scratch)
        .number("line", line)
        .raw("scales", access, "f32", &scales)
}

/// The product in tiles of f16.
fn halves(call: &GpuCall<'_>, weights: Weights, tile: ProductTile) -> Result<Dispatch, String> {
    let (w, y) = (&call.inputs[0], &call.output);
    let [n, m, b2, b3] = y.desc.ne;
    let groups = [m.div_ceil(tile.cols), n.div_ceil(tile.rows), b2 * b3];
    if groups.iter().zip(call.limits.groups).any(|(&g, most)| g > most as usize) {
        return Err(format!("at most {:?} workgroups, found {groups:?}", call.limits.groups));
    }
    let (threads, line) = (tile.threads(&call.limits), tile.line());
    let name = if tile.matrices { "mat_mul_matrices" } else { "mat_mul_halves" };
    let shader = Shader::new(name, include_str!("halves.wgsl"))
        .number("n", n)
        .number("m", m)
        .number("b2", b2)
        .number("share2", b2 / w.desc.ne[2])
        .number("share3", b3 / w.desc.ne[3])
        .number("steps", w.desc.ne[0].div_ceil(tile.step));
    let shader = converted(weights.declare(shader, w), call, "read").output("y", y).strides("y", y, false);
    let rows = weights.loader(&Spread::new(tile.rows, tile.step / weights.unit(), threads), line);
    let ready = call.inputs[1].desc.dtype == DType::F16;
    let padded = !ready || w.desc.ne[0].is_multiple_of(tile.step);
    let cols = column_loader(&Spread::new(tile.cols, tile.step / 8, threads), line, padded);
    let multiply = if tile.matrices { matrices(&call.limits, tile, y, !ready) } else { one_by_one(tile) };
    let mut shader = shader
        .define("THREADS", threads)
        .define("ROWS", tile.rows)
        .define("COLS", tile.cols)
        .define("STEP", tile.step)
        .define("LINE", line)
        .define("WTILE", tile.rows * line)
        .define("XTILE", tile.cols * line)
        .define("SUM", if ready { "sum" } else { "sum * scales[p.scales + columns + col]" })
        .define("EPILOGUE", "")
        .define("DECLARE", multiply.declare)
        .define("BEGIN", rows.begin + "\n  " + &cols.begin + "\n  " + &multiply.begin)
        .define("STORE", rows.store + "\n    " + &cols.store)
        .define("NEXT", rows.next + "\n      " + &cols.next)
        .define("MULTIPLY", multiply.multiply)
        .define("END", multiply.end);
    if tile.matrices {
        shader = shader.enable("f16").enable("wgpu_cooperative_matrix").full_subgroups();
    }
    shader.finish(groups.map(|g| g as u32))
}

/// x, with zeros behind the end of its columns where they are not in memory (`padded`).
fn column_loader(spread: &Spread, line: usize, padded: bool) -> Loader {
    let Spread { units, rows_apart, count, .. } = *spread;
    let mut text =
        Loader { begin: format!("let xu = li % {units}u; let xr = li / {units}u;"), ..Loader::default() };
    let place = |step: &str| match padded {
        true => format!("{step} + xu"),
        false => format!("min({step} + xu, p.line - 1u)"),
    };
    for i in 0..count {
        let row = format!("xr + {}u", i * rows_apart);
        let _ = write!(
            text.begin,
            "\n  let xa{i} = p.xh + (columns + min(col0 + {row}, p.m - 1u)) * p.line; var xv{i} = xh[xa{i} + {}];",
            place("0u")
        );
        let _ = write!(text.next, "\n      xv{i} = xh[xa{i} + {}];", place(&format!("next * {units}u")));
        let value = match padded {
            true => format!("xv{i}"),
            false => format!("select(vec4<u32>(0u), xv{i}, step * {units}u + xu < p.line)"),
        };
        let _ = write!(text.store, "\n    {}{{ xs[({row}) * {line}u + xu] = {value}; }}", spread.guard(i));
    }
    text
}

/// Text that multiplies the tiles and writes the result.
struct Multiply {
    declare: String,
    begin: String,
    multiply: String,
    end: String,
}

/// Each invocation has rows and columns of its own, as far apart as there are invocations, so that neighbours read
/// neighbouring rows of the tiles.
fn one_by_one(tile: ProductTile) -> Multiply {
    let [rows, cols] = tile.part;
    let (apart_rows, apart_cols, line) = (tile.rows / rows, tile.cols / cols, tile.line());
    Multiply {
        declare: String::new(),
        begin: format!(
            "let part_row = li % {apart_rows}u; let part_col = li / {apart_rows}u;
  var sums: array<f32, {count}>;
  for (var i = 0u; i < {count}u; i++) {{ sums[i] = 0.0; }}",
            count = rows * cols
        ),
        multiply: format!(
            "for (var e = 0u; e < {steps}u; e++) {{
      for (var c = 0u; c < 4u; c++) {{
        var a: array<vec2<f32>, {rows}>;
        for (var i = 0u; i < {rows}u; i++) {{ a[i] = unpack2x16float(ws[(part_row + i * {apart_rows}u) * {line}u + e][c]); }}
        for (var j = 0u; j < {cols}u; j++) {{
          let b = unpack2x16float(xs[(part_col + j * {apart_cols}u) * {line}u + e][c]);
          for (var i = 0u; i < {rows}u; i++) {{
            sums[i * {cols}u + j] = fma(a[i].y, b.y, fma(a[i].x, b.x, sums[i * {cols}u + j]));
          }}
        }}
      }}
    }}",
            steps = tile.step / 8
        ),
        end: format!(
            "for (var i = 0u; i < {rows}u; i++) {{
    for (var j = 0u; j < {cols}u; j++) {{
      put(row0 + part_row + i * {apart_rows}u, col0 + part_col + j * {apart_cols}u, columns, to, sums[i * {cols}u + j]);
    }}
  }}"
        ),
    }
}

/// Each subgroup has a part of the tile as 16x16 matrices. Whole tiles of unscaled columns are written by the subgroups as
/// they are; others go through workgroup memory, where every element can be looked at.
fn matrices(limits: &Limits, tile: ProductTile, y: &Operand, scaled: bool) -> Multiply {
    let [rows, cols] = tile.part;
    let (parts, line, size) = (tile.parts(), tile.line(), limits.subgroup_fixed.unwrap_or(32));
    let (down, across, parts_down) = (rows / 16, cols / 16, tile.rows / rows);
    let aligned = y.desc.nb[0] == 4 && y.in_vectors();
    // Written out: matrices in an array stay in registers only if every index is a constant, and what is loaded from words
    // has no type that a variable could have before the compiler's passes.
    let each = |text: &str| -> String {
        let places = (0..down).flat_map(|i| (0..across).map(move |j| (i, j)));
        places.map(|(i, j)| text.replace("$I", &i.to_string()).replace("$J", &j.to_string())).collect()
    };
    let mut multiply = format!("for (var e = 0u; e < {}u; e++) {{", tile.step / 16);
    for i in 0..down {
        let _ = write!(
            multiply,
            "\n      let a{i} = coopLoadT<Rows>(&ws[(part_row + {}u) * {line}u + e * 2u], {line}u);",
            i * 16
        );
    }
    for j in 0..across {
        let _ = write!(
            multiply,
            "\n      let b{j} = coopLoad<Cols>(&xs[(part_col + {}u) * {line}u + e * 2u], {line}u);",
            j * 16
        );
        for i in 0..down {
            let _ = write!(multiply, "\n      c{i}_{j} = coopMultiplyAdd(a{i}, b{j}, c{i}_{j});");
        }
    }
    multiply.push_str("\n    }");
    let look = format!(
        "for (var i = li; i < {}u; i += {}u) {{
    if col0 + i < p.m && scales[p.scales + columns + col0 + i] != 1.0 {{ scaled = 1u; }}
  }}
  workgroupBarrier();",
        tile.cols,
        parts * size as usize,
    );
    let look = if scaled { look } else { String::new() };
    let whole =
        format!("scaled == 0u && row0 + {}u <= p.n && col0 + {}u <= p.m && {aligned}", tile.rows, tile.cols);
    Multiply {
        declare: format!(
            "var<workgroup> piece: array<f32, {}>;
alias Rows = coop_mat16x16<f16, A>;
alias Cols = coop_mat16x16<f16, B>;
alias Sums = coop_mat16x16<f32, C>;",
            parts * 256
        ),
        begin: format!(
            "let part_row = (sg % {parts_down}u) * {rows}u; let part_col = (sg / {parts_down}u) * {cols}u;
{}",
            each("\n  var c$I_$J = Sums();")
        ),
        multiply,
        end: format!(
            "{look}
  let column = p.y1;
  if {whole} {{
    let at = to + row0 + part_row + (col0 + part_col) * column;{}
  }} else {{
    let at = sg * 256u;
    let sixteen = 16u;{}
  }}",
            each("\n    let at$I_$J = at + $Iu * 16u + $Ju * 16u * column; coopStore(c$I_$J, &y[at$I_$J], column);"),
            each(&format!(
                "\n    coopStore(c$I_$J, &piece[at], sixteen);
    workgroupBarrier();
    for (var e = lane; e < 256u; e += {size}u) {{
      put(row0 + part_row + $Iu * 16u + e % 16u, col0 + part_col + $Ju * 16u + e / 16u, columns, to, piece[at + e]);
    }}
    workgroupBarrier();"
            )),
        ),
    }
}

/// The product in f32.
fn floats(call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
    let (w, x, y) = (&call.inputs[0], &call.inputs[1], &call.output);
    let (k, m) = (w.desc.ne[0], x.desc.ne[1]);
    let [n, _, b2, b3] = y.desc.ne;
    let load = match k.is_multiple_of(4) {
        true => "if kk < p.k { wv = quad_w(row, kk / 4u); }",
        false => "for (var j = 0u; j < 4u; j++) { if kk + j < p.k { wv[j] = get_w(row + kk + j); } }",
    };
    let (tiles_n, tiles_m) = (n.div_ceil(64), m.div_ceil(64));
    let shader = Shader::new("mat_mul_floats", include_str!("floats.wgsl"))
        .number("k", k)
        .number("n", n)
        .number("m", m)
        .number("tiles_n", tiles_n)
        .number("tiles_m", tiles_m)
        .number("b2", b2)
        .number("share2", b2.max(1) / w.desc.ne[2])
        .number("share3", b3.max(1) / w.desc.ne[3])
        .input("w", w)
        .strides("w", w, true)
        .input("x", x)
        .strides("x", x, true)
        .output("y", y)
        .strides("y", y, false)
        .define("LOAD_W", load);
    Ok(vec![shader.groups(tiles_n * tiles_m * b2 * b3)?])
}

#[cfg(all(test, feature = "vulkan"))]
mod tests {
    use super::*;
    use crate::device::vulkan::shader::{Target, compile};
    use crate::gpu::Memory;
    use crate::quant::BlockType;

    fn dispatches(
        w: DType,
        x: DType,
        [k, n, m]: [usize; 3],
        tile: Option<ProductTile>,
    ) -> Result<Vec<Dispatch>, String> {
        let operand = |dtype, ne: &[usize], memory| {
            let desc = Desc::new(dtype, ne).map_err(|e| e.to_string())?;
            Ok::<_, String>(Operand { desc, offset: 0, memory })
        };
        let inputs = [operand(w, &[k, n], Memory::Input(0))?, operand(x, &[k, m], Memory::Input(1))?];
        let output = operand(DType::F32, &[n, m], Memory::Output)?;
        let scratch = operand(DType::I32, &[scratch(&inputs[1].desc) / 4], Memory::Scratch)?;
        shader(&GpuCall { inputs: &inputs, output, scratch, limits: Limits::LARGE, window: None }, tile)
    }

    /// The software device has no matrices, so these kernels do not run in tests everywhere; they have to be valid.
    #[test]
    fn kernels_with_matrices_are_valid() {
        let quantized = BlockType::ALL.into_iter().filter(|b| !b.is_float());
        let mut types: Vec<DType> = quantized.flat_map(|b| [DType::of(b), DType::Planar(b)]).collect();
        types.push(DType::F16);
        let check = |d: &Dispatch| {
            let text = d.source.text().unwrap();
            compile(&text, Target::LARGE).unwrap_or_else(|e| panic!("{}: {e}\n{text}", d.source.name()));
            assert!(d.source.full_subgroups() == (d.source.name() == "mat_mul_matrices"));
        };
        for dtype in types {
            for x in [DType::F32, DType::F16] {
                dispatches(dtype, x, [768, 100, 70], None).unwrap().iter().for_each(check);
            }
        }
        for tile in CODES.into_iter().chain(HALVES) {
            assert!(tile.fits(&Limits::LARGE), "{tile:?}");
            dispatches(DType::Planar(BlockType::Q4_K), DType::F32, [512, 256, 256], Some(tile))
                .unwrap()
                .iter()
                .for_each(check);
        }
    }

    #[test]
    fn tiles_fill_the_device_and_fit_its_memory() {
        let halves = Desc::new(DType::F16, &[4096, 4096]).unwrap();
        let tile = |n, m| best_tile(&Limits::LARGE, &halves, &Desc::new(DType::F32, &[n, m]).unwrap());
        assert_eq!(tile(14_336, 512).rows, 128);
        assert!(tile(576, 512).rows < 128);
        assert!(tile(14_336, 32).cols <= 32);
        let small = Limits { shared_memory: 16 << 10, ..Limits::LARGE };
        assert!(!HALVES[0].fits(&small));
        assert!(best_tile(&small, &halves, &Desc::new(DType::F32, &[14_336, 512]).unwrap()).fits(&small));
        assert!(!HALVES[0].fits(&Limits { matrix: None, ..Limits::LARGE }));
        for size in [8, 16, 32, 64] {
            let narrow = Limits { subgroup_fixed: Some(size), ..Limits::NARROW };
            let y = Desc::new(DType::F32, &[14_336, 512]).unwrap();
            assert!(best_tile(&narrow, &halves, &y).fits(&narrow), "subgroups of {size}");
        }
    }
}
