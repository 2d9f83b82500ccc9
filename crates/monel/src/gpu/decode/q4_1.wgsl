fn word_NAME(index: u32) -> u32 { return u32(NAME[index]) | (u32(NAME[index + 1u]) << 16u); }
fn quad_NAME(row: u32, nth: u32) -> vec4<f32> {
  let base = row + (nth / 8u) * 10u;
  let part = nth % 8u;
  let nibbles = (word_NAME(base + 2u + 2u * (part % 4u)) >> (part & 4u)) & 0x0f0f0f0fu;
  return f16_value(u32(NAME[base])) * vec4<f32>(unpack4xU8(nibbles)) + f16_value(u32(NAME[base + 1u]));
}
