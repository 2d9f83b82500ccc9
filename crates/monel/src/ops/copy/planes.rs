//! The GPU's side of copies into planes (see `quant::planar`): bits move, no number is computed.

use crate::gpu::{Dispatch, GpuCall, Shader};
use crate::quant::BlockType;

/// The kernel's words for a type.
struct Words {
    /// Words of codes and of high bits for a group.
    codes: usize,
    highs: usize,
    /// WGSL: word w of a group's codes, from byte b of the block and the group's number s in it.
    code: &'static str,
    high: &'static str,
    scales: &'static str,
}

/// `d` of a group in f16: the invocation of an even group writes a word with its own and its neighbour's.
const ONE_SCALE: &str = "if (g & 1u) == 0u {
    var both = u32(x[block]);
    if g + 1u < p.groups { both |= u32(x[block + $UNITSu]) << 16u; }
    y[scales + g / 2u] = both;
  }";
const TWO_SCALES: &str = "y[scales + g] = word(b);";
/// The head of a block of 256, copied by the first four of its groups.
const HEAD: &str = "if s < 4u { y[scales + 4u * (g / 8u) + s] = word(b + 4u * s); }";

fn words(ty: BlockType) -> Option<Words> {
    let (codes, highs, code, high, scales) = match ty {
        BlockType::Q4_0 => (4, 0, "word(b + 2u + 4u * w)", "", ONE_SCALE),
        BlockType::Q4_1 => (4, 0, "word(b + 4u + 4u * w)", "", TWO_SCALES),
        BlockType::Q5_0 => (4, 1, "word(b + 6u + 4u * w)", "y[high + g] = word(b + 2u);", ONE_SCALE),
        BlockType::Q5_1 => (4, 1, "word(b + 8u + 4u * w)", "y[high + g] = word(b + 4u);", TWO_SCALES),
        BlockType::Q8_0 => (8, 0, "word(b + 2u + 4u * w)", "", ONE_SCALE),
        BlockType::Q4_K => (4, 0, "nibbles(b + 16u + 32u * (s / 2u) + 4u * w, 4u * (s & 1u))", "", HEAD),
        BlockType::Q5_K => (
            4,
            1,
            "nibbles(b + 48u + 32u * (s / 2u) + 4u * w, 4u * (s & 1u))",
            "var bits = 0u;
  for (var i = 0u; i < 8u; i++) {
    let one = (word(b + 16u + 4u * i) >> s) & 0x01010101u;
    bits |= ((one | (one >> 7u) | (one >> 14u) | (one >> 21u)) & 15u) << (4u * i);
  }
  y[high + g] = bits;",
            HEAD,
        ),
        BlockType::Q6_K => (
            4,
            2,
            "nibbles(b + 64u * (s / 4u) + 32u * (s & 1u) + 4u * w, 4u * ((s / 2u) & 1u))",
            "for (var h = 0u; h < 2u; h++) {
    var bits = 0u;
    for (var w = 0u; w < 4u; w++) {
      let two = word(b + 128u + 32u * (s / 4u) + 16u * h + 4u * w) >> (2u * (s % 4u));
      bits |= (two & 0x03030303u) << (2u * w);
    }
    y[high + 2u * g + h] = bits;
  }",
            "if (s & 1u) == 0u { y[scales + g / 2u] = word(b + 192u + 2u * s); }
  if s == 0u && (g & 8u) == 0u {
    var both = u32(x[block + 104u]);
    if g + 8u < p.groups { both |= u32(x[block + 209u]) << 16u; }
    y[scales + p.groups / 2u + g / 16u] = both;
  }",
        ),
        _ => return None,
    };
    Some(Words { codes, highs, code, high, scales })
}

/// Blocks to planes.
pub(super) fn shader(call: &GpuCall<'_>, ty: BlockType) -> Result<Vec<Dispatch>, String> {
    let (x, y) = (&call.inputs[0], &call.output);
    let Some(words) = words(ty) else { return Err(format!("{ty:?} has no planes")) };
    let groups = y.desc.ne[0] / 32;
    let used = ty.row_bytes(y.desc.ne[0]).div_ceil(4);
    let shader = Shader::new("planes", include_str!("planes.wgsl"))
        .number("count", y.desc.rows() * groups)
        .number("groups", groups)
        .number("n1", y.desc.ne[1])
        .number("n2", y.desc.ne[2])
        .number("used", used)
        .number("row", y.desc.dtype.row_bytes(y.desc.ne[0]) / 4)
        .raw("x", "read", "u16", x)
        .strides("x", x, true)
        .raw("y", "read_write", "u32", y)
        .strides("y", y, true)
        .define("CODES", words.codes)
        .define("HIGHS", words.highs)
        .define("PER", ty.block_values() / 32)
        .define("CODE", words.code)
        .define("HIGH", words.high)
        .define("SCALES", words.scales.replace("$UNITS", &(ty.block_bytes() / 2).to_string()))
        .define("UNITS", ty.block_bytes() / 2);
    Ok(vec![shader.items(y.desc.rows() * groups, 64)?])
}
