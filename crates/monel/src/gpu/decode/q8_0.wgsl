fn word_NAME(index: u32) -> u32 { return u32(NAME[index]) | (u32(NAME[index + 1u]) << 16u); }
fn quad_NAME(row: u32, nth: u32) -> vec4<f32> {
  let base = row + (nth / 8u) * 17u;
  return f16_value(u32(NAME[base])) * vec4<f32>(unpack4xI8(word_NAME(base + 1u + 2u * (nth % 8u))));
}
