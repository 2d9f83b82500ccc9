fn word_NAME(index: u32) -> u32 { return u32(NAME[index]) | (u32(NAME[index + 1u]) << 16u); }
// Four bits, one to each byte, as its fifth.
fn fifth_NAME(bits: u32) -> u32 {
  return ((bits & 1u) << 4u) | ((bits & 2u) << 11u) | ((bits & 4u) << 18u) | ((bits & 8u) << 25u);
}
fn quad_NAME(row: u32, nth: u32) -> vec4<f32> {
  let base = row + (nth / 8u) * 11u;
  let part = nth % 8u;
  let nibbles = (word_NAME(base + 3u + 2u * (part % 4u)) >> (part & 4u)) & 0x0f0f0f0fu;
  let codes = nibbles | fifth_NAME(word_NAME(base + 1u) >> (4u * part));
  return f16_value(u32(NAME[base])) * (vec4<f32>(unpack4xU8(codes)) - 16.0);
}
