//! Matrix products: `out[n, m] = Σ_k weights[k, n] · x[k, m]`, ggml's `mul_mat`.
//!
//! Float weights are multiplied in f32. Quantized weights are multiplied as integers with x quantized to eight bits
//! in blocks of 32: packed weights as they are, weights in a file's own layout packed on the way, tile by tile.
//! Dimensions 2 and 3 of x are batches; those of the weights divide them (grouped heads share a matrix).

pub(crate) mod many;
mod weights;

use super::{Cost, Op};
use crate::check::{Case, Fill, Operand, Tolerance};
use crate::device::software::simd::{self, Isa};
use crate::error::{Error, Result};
use crate::gpu::{Dispatch, GpuCall, Shader};
use crate::kernel::{Call, Input, Kernel, Output, RefTensor, Worker};
use crate::quant::{BlockType, planar};
use crate::tensor::{DType, Desc};
use std::ops::Range;

/// Rows in a tile of packed weights, and rows of float weights per item.
const TILE: usize = simd::TILE_ROWS;
/// Bytes of activations that stay in a core's second cache while a tile meets them.
const PANEL_BYTES: usize = 480 << 10;
/// Columns up to which a GPU makes a row of the result at a time.
const FEW_COLUMNS: usize = super::mat_vec::MAX_COLUMNS;
/// Tiles of many columns that are worth handing to a thread at once.
const NEIGHBOURS: usize = 24;
/// Multiply-adds worth handing to a thread at once: about 10 µs.
const PIECE: usize = 1 << 20;

/// Weights `[k, n, b2, b3]` of any real type, x F32 (or what `QuantizeRows` makes of it) `[k, m, B2, B3]`; the result is F32 `[n, m, B2, B3]`.
#[derive(Clone, Copy, Debug)]
pub struct MatMul;

impl Op for MatMul {
    fn name(&self) -> &'static str {
        "mat_mul"
    }

    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        let [w, x] = inputs else {
            return Err(Error::shape("mat_mul", format!("weights and x, found {} inputs", inputs.len())));
        };
        let batches = (2..4).all(|d| w.ne[d] != 0 && x.ne[d].is_multiple_of(w.ne[d]));
        if w.ne[0] != x.ne[0] || !batches {
            let expected = format!("weights [k, n, b2, b3] and x [k, m, b2 i, b3 j], found {w} and {x}");
            return Err(Error::shape("mat_mul", expected));
        }
        Desc::new(DType::F32, &[w.ne[1], x.ne[1], x.ne[2], x.ne[3]])
    }

    fn supports(&self, inputs: &[Desc], output: &Desc) -> Result<(), String> {
        let (w, x) = (&inputs[0], &inputs[1]);
        let quantized = w.dtype.is_quantized() && !matches!(w.dtype, DType::Q8A | DType::Q8P);
        let pair = match x.dtype {
            DType::F32 => w.dtype.is_float() || quantized,
            DType::Q8A => quantized,
            DType::Q8P => matches!(w.dtype, DType::Planar(_)),
            DType::F16 => w.dtype == DType::F16 || quantized,
            _ => false,
        };
        if !pair {
            return Err(format!("no product of {} weights with {} values", w.dtype, x.dtype));
        }
        if !w.has_dense_rows() || !x.has_dense_rows() || !output.has_dense_rows() {
            return Err(format!("rows have to be dense, found {w}, {x}, {output}"));
        }
        Ok(())
    }

    fn cost(&self, inputs: &[Desc], output: &Desc) -> Cost {
        let bytes = inputs.iter().chain([output]).map(|d| d.span() as f64).sum();
        Cost { flops: 2.0 * inputs[0].ne[0] as f64 * output.elements() as f64, bytes }
    }

    fn scratch(&self, inputs: &[Desc], _: &Desc) -> usize {
        let (w, x) = (&inputs[0], &inputs[1]);
        let halves =
            x.dtype == DType::F32 && !matches!(w.dtype, DType::F32 | DType::BF16) && x.ne[1] > FEW_COLUMNS;
        let halves = if halves { many::scratch(x) } else { 0 };
        let own = if w.dtype.is_quantized() && x.dtype != DType::Q8A {
            simd::act_row_bytes(x.ne[0]) * x.rows()
        } else if x.dtype == DType::F16 {
            4 * x.ne[0] * x.rows()
        } else {
            0
        };
        own.max(halves)
    }

    fn kernels(&self, call: &Call<'_>) -> Vec<Kernel> {
        let (w, x, out) = (call.inputs[0], call.inputs[1], call.output);
        if out.desc.is_empty() {
            return Vec::new();
        }
        if w.desc.dtype.is_float() {
            let kind = Kind::Float(w.desc.dtype.block().unwrap_or(BlockType::F32));
            if x.desc.dtype == DType::F32 {
                return vec![Product::new(kind, w, x, out).kernel(call.isa, call.threads)];
            }
            let Ok(desc) = Desc::new(DType::F32, &x.desc.ne) else { return Vec::new() };
            // SAFETY: the plan reserved this much for the op.
            let wide = unsafe { Output::new(call.scratch.ptr(), desc) };
            let widen = Kernel::rows(desc.rows(), desc.nb[1], move |r, worker| {
                // SAFETY: row r belongs to item r.
                simd::f16_to_f32(worker.isa, x.row(r), unsafe { wide.row_mut(r) });
                Ok(())
            });
            // SAFETY: the same memory, written by the kernel before.
            let x = unsafe { Input::new(call.scratch.ptr(), desc) };
            return vec![widen, Product::new(kind, w, x, out).kernel(call.isa, call.threads)];
        }
        let kind = match w.desc.dtype {
            DType::Packed(block) => Kind::Packed(block),
            DType::Planar(block) => Kind::Planar(block),
            other => Kind::Blocks(other.block().unwrap_or(BlockType::Q8_0)),
        };
        if x.desc.dtype == DType::Q8A {
            return vec![Product::new(kind, w, x, out).kernel(call.isa, call.threads)];
        }
        let Ok(desc) = Desc::new(DType::Q8A, &x.desc.ne) else { return Vec::new() };
        // SAFETY: the plan reserved this much for the op.
        let quantized = unsafe { Output::new(call.scratch.ptr(), desc) };
        let quantize = Kernel::rows(desc.rows(), x.desc.nb[1], move |r, worker| {
            let isa = worker.isa;
            // SAFETY: row r belongs to item r.
            let row = unsafe { quantized.row_mut::<u8>(r) };
            if x.desc.dtype != DType::F32 {
                let values = worker.floats(x.desc.ne[0]);
                match x.desc.dtype {
                    DType::F16 => simd::f16_to_f32(isa, x.row(r), values),
                    _ => super::q8p_floats(x.row(r), values),
                }
                return simd::quantize_act_row(isa, values, row).map_err(|e| Error::Kernel(e.to_string()));
            }
            simd::quantize_act_row(isa, x.row(r), row).map_err(|e| Error::Kernel(e.to_string()))
        });
        // SAFETY: the same memory, written by the kernel before.
        let x = unsafe { Input::new(call.scratch.ptr(), desc) };
        vec![quantize, Product::new(kind, w, x, out).kernel(call.isa, call.threads)]
    }

    fn shader(&self, call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
        let (w, x, y) = (&call.inputs[0], &call.inputs[1], &call.output);
        let (k, m) = (w.desc.ne[0], x.desc.ne[1]);
        let [n, _, b2, b3] = y.desc.ne;
        if x.desc.dtype == DType::Q8P && matches!(w.desc.dtype, DType::Planar(_)) {
            return super::mat_vec::shader(call);
        }
        // Floats in order and aligned; others as they lie.
        if x.desc.rows() <= FEW_COLUMNS
            && super::mat_vec::takes(&w.desc) == Some(x.desc.dtype)
            && let Ok(dispatches) = super::mat_vec::shader(call)
        {
            return Ok(dispatches);
        }
        if w.desc.dtype.block().is_none() && !matches!(w.desc.dtype, DType::Planar(_))
            || !matches!(x.desc.dtype, DType::F32 | DType::F16)
        {
            return Err(format!("no GPU kernel for {} times {}", w.desc.dtype, x.desc.dtype));
        }
        let operands = |shader: Shader| {
            shader
                .number("b2", b2)
                .number("b3", b3)
                .number("share2", b2.max(1) / w.desc.ne[2])
                .number("share3", b3.max(1) / w.desc.ne[3])
                .input("w", w)
                .strides("w", w, true)
                .input("x", x)
                .strides("x", x, true)
                .output("y", y)
                .strides("y", y, false)
        };
        let quads = k.is_multiple_of(4);
        if m <= FEW_COLUMNS {
            let (step, load, product) = match quads {
                true => (
                    4,
                    "quad_w(row, q)",
                    "dot(v, vec4<f32>(get_x(i), get_x(i + 1u), get_x(i + 2u), get_x(i + 3u)))",
                ),
                false => (1, "get_w(row + q)", "v * get_x(i)"),
            };
            let shader = Shader::new("mat_vec", include_str!("mat_vec_plain.wgsl"))
                .reductions(if call.limits.software { 16 } else { 64 })
                .number("count", n * b2 * b3)
                .number("n", n)
                .number("steps", k / step);
            let shader = operands(shader)
                .define("COLS", m.max(1))
                .define("STEP", step)
                .define("LOAD_W", load)
                .define("PRODUCT", product);
            return Ok(vec![shader.groups(if m == 0 { 0 } else { n * b2 * b3 })?]);
        }
        many::shader(call, None)
    }

    fn reference(&self, inputs: &[RefTensor], output: &Desc) -> RefTensor {
        let (w, x) = (&inputs[0], &inputs[1]);
        let mut out = RefTensor::zeros(output.ne);
        let [n, m, b2, b3] = output.ne;
        for i3 in 0..b3 {
            for i2 in 0..b2 {
                let (j2, j3) = (i2 / (b2 / w.ne[2]), i3 / (b3 / w.ne[3]));
                for c in 0..m {
                    let column = x.row(c + m * (i2 + b2 * i3));
                    for r in 0..n {
                        let row = w.row(r + n * (j2 + w.ne[2] * j3));
                        let at = out.index([r, c, i2, i3]);
                        out.data[at] = row.iter().zip(column).map(|(a, b)| a * b).sum();
                    }
                }
            }
        }
        out
    }
}

/// Columns of a panel: their quantized activations stay in a core's second cache while tiles meet them.
pub(super) fn panel_columns(isa: Isa, k: usize) -> usize {
    let together = simd::columns_together(isa);
    (PANEL_BYTES / simd::act_row_bytes(k).max(64) / together * together)
        .clamp(together, 128 / together * together)
}

/// How a product is handed out: an item is a tile of rows times a panel of columns; tiles change fastest.
pub(super) struct Pieces {
    /// Tiles (or what is made together of several).
    pub tiles: usize,
    /// Multiply-adds of a tile and a column.
    pub per_tile: usize,
    /// How many tiles of 16 rows it has.
    pub height: usize,
    /// Columns of a panel, and in all.
    pub panel: usize,
    pub cols: usize,
    /// Products of this shape.
    pub batches: usize,
}

impl Pieces {
    /// Items that a thread takes at once: few enough pieces to keep the counter quiet, enough of them that all threads end
    /// together.
    fn grain(&self, isa: Isa, threads: usize, items: usize) -> usize {
        let grain = PIECE / (self.per_tile * self.panel.min(self.cols)).max(1);
        if self.cols <= 2 {
            return grain.min(items / (threads * 3)).max(1);
        }
        // Several tiles side by side make longer stretches of the result's rows, which otherwise, a power of two apart,
        // would fall on the same few places of the caches.
        let grain = grain.max(NEIGHBOURS / self.height).min(items / (threads * 3)).max(1);
        let fewest = simd::fewest_tiles(isa).div_ceil(self.height).min((items / threads.max(1)).max(1));
        if grain >= self.tiles {
            return grain / self.tiles.max(1) * self.tiles.max(1);
        }
        // Equal parts of a row of tiles, with an even number of tiles: kernels take them in pairs.
        let parts = self.tiles.div_ceil(grain).min((self.tiles / fewest).max(1));
        self.tiles.div_ceil(parts).next_multiple_of(2usize.div_ceil(self.height))
    }

    /// The kernel that calls `run` with a batch, tiles and columns.
    pub fn kernel(
        self,
        isa: Isa,
        threads: usize,
        run: impl Fn(&mut Worker, usize, Range<usize>, Range<usize>) -> Result<()> + Send + Sync + 'static,
    ) -> Kernel {
        let panels = self.cols.div_ceil(self.panel);
        let items = self.tiles * panels * self.batches;
        let grain = self.grain(isa, threads, items);
        Kernel::new(items, grain, move |range, worker| {
            let mut at = range.start;
            while at < range.end {
                // Items up to the end of this row of tiles belong to one panel.
                let (strip, first) = (at / self.tiles, at % self.tiles);
                let last = self.tiles.min(first + range.end - at);
                let (batch, panel) = (strip / panels, strip % panels);
                let cols = panel * self.panel..((panel + 1) * self.panel).min(self.cols);
                run(worker, batch, first..last, cols)?;
                at += last - first;
            }
            Ok(())
        })
    }
}

/// How the weights lie.
#[derive(Clone, Copy)]
enum Kind {
    /// One by one, multiplied in f32.
    Float(BlockType),
    /// In tiles, multiplied as integers.
    Packed(BlockType),
    /// As in a file; packed tile by tile on the way.
    Blocks(BlockType),
    /// In planes; made into blocks on the way.
    Planar(BlockType),
}

/// The operands of a product, x and the result as `cols` columns per batch.
#[derive(Clone, Copy)]
struct Product {
    kind: Kind,
    w: Input,
    x: Input,
    out: Output,
    cols: usize,
    /// Batches in dimensions 2 and 3, and how many of x share one of the weights.
    batches: [usize; 2],
    share: [usize; 2],
}

impl Product {
    fn new(kind: Kind, w: Input, x: Input, out: Output) -> Product {
        let (dw, dx) = (&w.desc, &x.desc);
        let [_, m, b2, b3] = dx.ne;
        // One matrix for all batches: they are more columns, where the strides allow it.
        let even = |d: &Desc| d.nb[2] == d.nb[1] * d.ne[1] && d.nb[3] == d.nb[2] * d.ne[2];
        if dw.ne[2] * dw.ne[3] == 1 && even(dx) && even(&out.desc) {
            return Product { kind, w, x, out, cols: m * b2 * b3, batches: [1, 1], share: [1, 1] };
        }
        Product { kind, w, x, out, cols: m, batches: [b2, b3], share: [b2 / dw.ne[2], b3 / dw.ne[3]] }
    }

    /// The product as a kernel.
    fn kernel(self, isa: Isa, threads: usize) -> Kernel {
        let [k, n, ..] = self.w.desc.ne;
        let panel = match self.kind {
            Kind::Float(_) => (PANEL_BYTES / (4 * k.max(1))).clamp(8, 512),
            _ => panel_columns(isa, k),
        };
        let pieces = Pieces {
            tiles: n.div_ceil(TILE),
            per_tile: TILE * k,
            height: 1,
            panel,
            cols: self.cols,
            batches: self.batches[0] * self.batches[1],
        };
        pieces.kernel(isa, threads, move |worker, batch, tiles, cols| {
            let batch = [batch % self.batches[0], batch / self.batches[0]];
            self.run(worker, batch, tiles, cols)
        })
    }

    fn run(
        &self,
        worker: &mut Worker,
        [i2, i3]: [usize; 2],
        tiles: Range<usize>,
        cols: Range<usize>,
    ) -> Result<()> {
        let (w, x, out) = (&self.w.desc, &self.x.desc, &self.out.desc);
        let [k, n, ..] = w.ne;
        let rows = tiles.start * TILE..(tiles.end * TILE).min(n);
        let isa = worker.isa;
        // SAFETY: the indices lie inside the operands' dimensions, so the offsets lie inside their spans, which
        // `Input::new` and `Output::new` were promised to be valid; rows and columns of different items differ.
        let done = unsafe {
            let w_at = self.w.ptr().add(i2 / self.share[0] * w.nb[2] + i3 / self.share[1] * w.nb[3]);
            let x_at = self.x.ptr().add(cols.start * x.nb[1] + i2 * x.nb[2] + i3 * x.nb[3]);
            let o_at =
                self.out.ptr().add(cols.start * out.nb[1] + i2 * out.nb[2] + i3 * out.nb[3]).cast::<f32>();
            let (stride, count) = (out.nb[1] / 4, cols.len());
            match self.kind {
                Kind::Float(ty) => {
                    let w_at = w_at.add(rows.start * w.nb[1]);
                    let (x_at, o_at) = (x_at.cast::<f32>(), o_at.add(rows.start));
                    simd::gemm_float(
                        isa,
                        ty,
                        k,
                        w_at,
                        w.nb[1],
                        rows.len(),
                        x_at,
                        x.nb[1] / 4,
                        count,
                        o_at,
                        stride,
                    )
                }
                Kind::Packed(ty) => {
                    let w_at = w_at.add(tiles.start * simd::tile_bytes(ty, k));
                    let o_at = o_at.add(rows.start);
                    simd::gemm_packed(
                        isa,
                        ty,
                        k,
                        w_at,
                        tiles.len(),
                        rows.len(),
                        x_at,
                        x.nb[1],
                        count,
                        o_at,
                        stride,
                    )
                }
                Kind::Blocks(ty) | Kind::Planar(ty) => {
                    let (bytes, row) = (simd::tile_bytes(ty, k), ty.row_bytes(k));
                    let (tile, blocks) = worker.bytes(bytes + TILE * row).split_at_mut(bytes);
                    for first in rows.clone().step_by(TILE) {
                        let valid = TILE.min(n - first);
                        let from = w_at.add(first * w.nb[1]);
                        let len = (valid - 1) * w.nb[1] + w.dtype.row_bytes(k);
                        let from = std::slice::from_raw_parts(from, len);
                        let packed = if let Kind::Planar(_) = self.kind {
                            for (from, to) in from.chunks(w.nb[1]).zip(blocks.chunks_exact_mut(row)) {
                                planar::decode_row(ty, k, &from[..w.dtype.row_bytes(k)], to)
                                    .map_err(|e| Error::Kernel(e.to_string()))?;
                            }
                            simd::pack_tile(ty, k, &blocks[..valid * row], row, valid, tile)
                        } else {
                            simd::pack_tile(ty, k, from, w.nb[1], valid, tile)
                        };
                        packed.map_err(|e| Error::Kernel(e.to_string()))?;
                        let o_at = o_at.add(first);
                        if !simd::gemm_packed(
                            isa,
                            ty,
                            k,
                            tile.as_ptr(),
                            1,
                            valid,
                            x_at,
                            x.nb[1],
                            count,
                            o_at,
                            stride,
                        ) {
                            return Err(unsupported(w));
                        }
                    }
                    true
                }
            }
        };
        if done { Ok(()) } else { Err(unsupported(w)) }
    }
}

fn unsupported(w: &Desc) -> Error {
    Error::Kernel(format!("no product kernel for {w}"))
}

pub(super) fn cases() -> Vec<Case> {
    // f32 sums of up to 2048 terms.
    let float = Tolerance::Nmse(1e-9);
    // Activations are rounded to 1/127 of their block's largest: about 2e-5 of the energy of normal numbers.
    let integer = Tolerance::Nmse(1e-4);
    let f32 = |ne: &[usize]| Operand::normal(DType::F32, ne);
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (k, n, m) in
            [(1, 1, 1), (7, 3, 2), (64, 17, 1), (129, 33, 5), (576, 50, 13), (64, 0, 3), (64, 3, 0)]
        {
            let mut operands =
                Case::new(MatMul, dtype, vec![Operand::normal(dtype, &[k, n]), f32(&[k, m])], float);
            if dtype == DType::F16 && m > FEW_COLUMNS {
                // GPUs round x to f16 as well, by less than 2^-10 of each number.
                operands.tolerance = Tolerance::Nmse(1e-6);
            }
            cases.push(operands);
        }
        let mut case = |w: Operand, x: Operand| cases.push(Case::new(MatMul, dtype, vec![w, x], float));
        case(Operand::normal(dtype, &[0, 3]), f32(&[0, 2]));
        case(Operand::normal(dtype, &[32, 9, 2, 3]), f32(&[32, 4, 6, 3]));
        case(
            Operand::normal(dtype, &[32, 2, 9]).permuted([0, 2, 1, 3]),
            f32(&[32, 4, 3]).permuted([0, 2, 1, 3]),
        );
        case(Operand::normal(dtype, &[64, 20]).slice(1, 3, 11), f32(&[96, 5]).slice(0, 16, 64));
    }
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (k, n, m) in [(8, 1, 1), (264, 33, 1), (1000, 40, 3), (576, 50, 8), (64, 3, 0)] {
            let operands = vec![Operand::normal(dtype, &[k, n]).aligned(), f32(&[k, m]).aligned()];
            cases.push(Case::new(MatMul, dtype, operands, float));
        }
    }
    cases.push(Case::new(MatMul, DType::F32, vec![f32(&[1024, 700]), f32(&[1024, 70])], float));
    for (k, n, m) in [(32, 16, 16), (64, 64, 64), (96, 33, 17), (576, 300, 70), (256, 1000, 2000)] {
        let half = |ne: &[usize]| Operand::normal(DType::F16, ne);
        cases.push(Case::new(MatMul, DType::F16, vec![half(&[k, n]), half(&[k, m])], float));
    }
    for block in BlockType::ALL.into_iter().filter(|b| !b.is_float()) {
        let natural = DType::of(block);
        let unit = natural.block_len();
        for dtype in [natural, DType::Packed(block), DType::Planar(block)] {
            let mut case = |w: Operand, x: Operand| cases.push(Case::new(MatMul, dtype, vec![w, x], integer));
            // One number alone: of one sign, so that nothing cancels.
            let positive = |dtype, ne: &[usize]| Operand::normal(dtype, ne).fill(Fill::Uniform(0.5, 1.5));
            case(positive(dtype, &[unit, 1]), positive(DType::F32, &[unit, 1]));
            for (blocks, n, m) in [(2, 16, 1), (3, 17, 2), (1, 40, 7), (4, 33, 13), (2, 100, 25), (2, 5, 0)] {
                case(Operand::normal(dtype, &[blocks * unit, n]), f32(&[blocks * unit, m]));
            }
            case(Operand::normal(dtype, &[unit, 20]), f32(&[unit, 3, 2, 2]));
            case(
                Operand::normal(dtype, &[unit, 48]).slice(1, 16, 21),
                f32(&[2 * unit, 5]).slice(0, unit, unit),
            );
        }
        cases.push(Case::new(
            MatMul,
            natural,
            vec![Operand::normal(natural, &[unit, 9, 2]), f32(&[unit, 3, 4])],
            integer,
        ));
        for dtype in [DType::Packed(block), DType::Planar(block)] {
            let large = Operand::normal(dtype, &[1024, 1000]);
            cases.push(Case::new(MatMul, dtype, vec![large, f32(&[1024, 40])], integer));
        }
        // GPUs: both sides quantized.
        let planar = DType::Planar(block);
        for (blocks, n, m) in [(1, 1, 1), (2, 17, 1), (3, 40, 3), (9, 33, 8), (2, 5, 0), (18, 1000, 1)] {
            let operands = vec![
                Operand::normal(planar, &[blocks * unit, n]),
                Operand::normal(DType::Q8P, &[blocks * unit, m]),
            ];
            cases.push(Case::new(MatMul, planar, operands, Tolerance::Nmse(1e-9)));
        }
        // GPUs with matrices: weights are rounded to f16.
        for (blocks, n, m) in
            [(1, 16, 16), (2, 64, 64), (3, 40, 13), (5, 300, 70), (2, 1000, 2000), (2, 0, 5)]
        {
            let operands = vec![
                Operand::normal(planar, &[blocks * unit, n]),
                Operand::normal(DType::F16, &[blocks * unit, m]),
            ];
            cases.push(Case::new(MatMul, planar, operands, integer));
        }
    }
    cases
}
