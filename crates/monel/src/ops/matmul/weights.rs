//! How weights get into a tile of f16: text for `halves.wgsl`, by the type and layout of the weights.
//!
//! Each invocation takes the same place in several rows of the tile. What it reads stays in registers until the tile is
//! free, and only then becomes f16.

use super::many::Spread;
use crate::gpu::{Operand, Shader};
use crate::quant::BlockType;
use crate::tensor::DType;
use std::fmt::Write;

/// Text that brings a tile in: before the loop, when it is stored, and when the next one is asked for.
#[derive(Default)]
pub(super) struct Loader {
    pub begin: String,
    pub store: String,
    pub next: String,
}

/// How the weights are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weights {
    /// F16, eight at a time.
    Halves,
    /// Planes, a group of 32 at a time, calculated in f16.
    Planes(BlockType),
    /// Anything, four values at a time through the accessors of the type.
    Quads,
}

impl Weights {
    /// The best way for these weights.
    pub fn of(w: &Operand, f16: bool) -> Weights {
        let whole = w.in_vectors();
        match w.desc.dtype {
            DType::F16 if whole && w.desc.ne[0].is_multiple_of(8) => Weights::Halves,
            DType::Planar(block) if whole && f16 => Weights::Planes(block),
            _ => Weights::Quads,
        }
    }

    /// Values that an invocation reads together.
    pub fn unit(self) -> usize {
        match self {
            Weights::Planes(_) => 32,
            _ => 8,
        }
    }

    /// Declares the weights, `w`, with their strides.
    pub fn declare(self, shader: Shader, w: &Operand) -> Shader {
        if self == Weights::Quads {
            return shader
                .input("w", w)
                .strides("w", w, true)
                .number("last", w.desc.ne[0] / 4 - 1)
                .part(include_str!("quads.wgsl"));
        }
        let last = w.desc.ne[0] / self.unit() - 1;
        let shader = shader.raw("w", "read", "vec4<u32>", w).number("last", last).vector_strides("w", w);
        match self {
            Weights::Planes(block) => {
                let planes = Planes::of(block);
                shader
                    .enable("f16")
                    .part(include_str!("planes.wgsl"))
                    .number("groups", w.desc.ne[0] / 32)
                    .define("FIELDS", format!("c: vec4<u32>, {}", planes.fields))
                    .define("READS", planes.reads)
                    .define("CODES", planes.codes)
                    .define("SCALES", planes.scales)
                    .define("OFFSET", format!("{}.0", planes.offset))
                    .define("VALUE", if planes.least { "fma(v, d, least)" } else { "v * d" })
            }
            _ => shader,
        }
    }

    /// The text for a tile with rows `line` vectors apart.
    pub fn loader(self, spread: &Spread, line: usize) -> Loader {
        let Spread { units, rows_apart, count, .. } = *spread;
        // What is read past a row's end meets zeros of x; it only has to be a number, so the last of the row is read again.
        let place = |step: &str| match self {
            Weights::Quads => format!("{step} + wu"),
            _ => format!("min({step} + wu, p.last)"),
        };
        let read = |i: usize| match self {
            Weights::Halves => format!("w[wa{i} + wg_at]"),
            Weights::Planes(_) => format!("group_at(wa{i}, wg_at)"),
            Weights::Quads => format!("eight_of(wa{i}, wg_at)"),
        };
        let mut text = Loader {
            begin: format!("let wu = li % {units}u; let wr = li / {units}u; var wg_at = {};", place("0u")),
            next: format!("wg_at = {};", place(&format!("next * {units}u"))),
            store: String::new(),
        };
        for i in 0..count {
            let row = format!("wr + {}u", i * rows_apart);
            let _ = write!(
                text.begin,
                "\n  let wa{i} = w_at + min(row0 + {row}, p.n - 1u) * p.w1; var wv{i} = {};",
                read(i)
            );
            let _ = write!(text.next, "\n      wv{i} = {};", read(i));
            let to = format!("({row}) * {line}u");
            let store = match self {
                Weights::Planes(_) => {
                    let mut store = format!("let s{i} = scales_in(wv{i}, wg_at);");
                    for j in 0..4 {
                        let _ = write!(store, "\n      let e{j} = eight(wv{i}, s{i}, wg_at, {j}u);");
                    }
                    for (v, (a, part)) in [(0, "xy"), (2, "xy"), (0, "zw"), (2, "zw")].into_iter().enumerate()
                    {
                        let _ = write!(
                            store,
                            "\n      ws[{to} + 4u * wu + {v}u] = vec4<u32>(in_order(e{a}.{part}), in_order(e{}.{part}));",
                            a + 1
                        );
                    }
                    store
                }
                _ => format!("ws[{to} + wu] = wv{i};"),
            };
            let _ = write!(text.store, "\n    {}{{ {store} }}", spread.guard(i));
        }
        text
    }
}

/// What differs between types in planes: text for `planes.wgsl`, where `row` is the index of a row's first vector, `g` a
/// group, `j` a quarter of it, `v` what was read. Words are counted from the beginning of the row.
struct Planes {
    /// Fields of `v` beside its first 16 bytes of codes, and from where all are read.
    fields: &'static str,
    reads: &'static str,
    codes: &'static str,
    scales: &'static str,
    /// 1024 plus what is taken off a code.
    offset: u32,
    /// Whether something is added after scaling.
    least: bool,
}

impl Planes {
    fn of(block: BlockType) -> Planes {
        let one = "scales_of(half_of(v.s, g), half_of(v.s, g), 0.0)";
        let two = "scales_of(half_of(v.s, 0u), half_of(v.s, 0u), half_of(v.s, 1u))";
        let (nibbles, fifths) = ("nibbles(v.c[j])", "nibbles(v.c[j]) | fifths(v.h, j)");
        let (fields, reads, codes, scales, offset, least) = match block {
            BlockType::Q4_1 => {
                ("s: u32", "w[row + g], word_w(row, 4u * p.groups + g)", nibbles, two, 1024, true)
            }
            BlockType::Q5_0 => (
                "h: u32, s: u32",
                "w[row + g], word_w(row, 4u * p.groups + g), word_w(row, 5u * p.groups + g / 2u)",
                fifths,
                one,
                1040,
                false,
            ),
            BlockType::Q5_1 => (
                "h: u32, s: u32",
                "w[row + g], word_w(row, 4u * p.groups + g), word_w(row, 5u * p.groups + g)",
                fifths,
                two,
                1024,
                true,
            ),
            BlockType::Q8_0 => (
                "e: vec4<u32>, s: u32",
                "w[row + 2u * g], w[row + 2u * g + 1u], word_w(row, 8u * p.groups + g / 2u)",
                "bytes(v.c[j], v.e[j])",
                one,
                1152,
                false,
            ),
            BlockType::Q4_K => (
                "s: vec4<u32>",
                "w[row + g], w[row + p.groups + g / 8u]",
                nibbles,
                "squeezed(v.s, g)",
                1024,
                true,
            ),
            BlockType::Q5_K => (
                "h: u32, s: vec4<u32>",
                "w[row + g], word_w(row, 4u * p.groups + g), w[row + p.groups / 4u * 5u + g / 8u]",
                fifths,
                "squeezed(v.s, g)",
                1024,
                true,
            ),
            BlockType::Q6_K => (
                "h: vec4<u32>, s: u32, d: u32",
                "w[row + g], w[row + p.groups + g / 2u], word_w(row, 6u * p.groups + g / 2u), \
                 word_w(row, 6u * p.groups + p.groups / 2u + g / 16u)",
                "nibbles(v.c[j]) | sixths(select(v.h.zw, v.h.xy, (g & 1u) == 0u), j)",
                "two_scales(half_of(v.d, g / 8u), v.s >> (16u * (g & 1u)))",
                1056,
                false,
            ),
            // Q4_0; the float types have no planes.
            _ => ("s: u32", "w[row + g], word_w(row, 4u * p.groups + g / 2u)", nibbles, one, 1032, false),
        };
        Planes { fields, reads, codes, scales, offset, least }
    }
}
