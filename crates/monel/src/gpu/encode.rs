//! Quantizing on a GPU: the kernels' side of `quant/encode.rs`, code for code the same result.

use super::Shader;
use crate::tensor::DType;

impl Shader {
    /// Lets the kernel call `quantize_NAME(start, to)`, which writes the block at index `to` (16-bit words) of the result
    /// `NAME` from the values `source_NAME(start, i)` for i below the block's length; the kernel defines `source_NAME`.
    /// Types that are not blocks are refused.
    pub fn quantizer(self, name: &'static str, dtype: DType) -> Shader {
        let nibbles = |bits: u32, min: bool| {
            let high = 1 + u32::from(min);
            include_str!("encode/nibbles.wgsl")
                .replace("HAS_MIN", if min { "true" } else { "false" })
                .replace("BITS", &format!("{bits}u"))
                .replace("TOP", &format!("{}.0", (1 << bits) - 1))
                .replace("CENTRE", &format!("{}.0", 1 << (bits - 1)))
                .replace("HIGH_AT", &format!("{high}u"))
                .replace("LOW_AT", &format!("{}u", high + if bits == 5 { 2 } else { 0 }))
        };
        let scaled_min = |bits: u32| {
            include_str!("encode/scaled_min.wgsl")
                .replace("BITS", &format!("{bits}u"))
                .replace("TOP", &format!("{}.0", (1 << bits) - 1))
                .replace("LOW_AT", if bits == 5 { "24u" } else { "8u" })
        };
        let text = match dtype {
            DType::Q4_0 => nibbles(4, false),
            DType::Q4_1 => nibbles(4, true),
            DType::Q5_0 => nibbles(5, false),
            DType::Q5_1 => nibbles(5, true),
            DType::Q8_0 => include_str!("encode/q8_0.wgsl").to_string(),
            DType::Q4_K => scaled_min(4),
            DType::Q5_K => scaled_min(5),
            DType::Q6_K => include_str!("encode/q6_k.wgsl").to_string(),
            other => return self.refuse(format!("no GPU kernel that writes {other}")),
        };
        self.part(include_str!("encode/common.wgsl")).text(&text.replace("NAME", name))
    }
}
