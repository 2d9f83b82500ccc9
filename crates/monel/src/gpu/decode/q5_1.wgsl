fn word_NAME(i: u32) -> u32 { return u32(NAME[i]) | (u32(NAME[i + 1u]) << 16u); }
// Four bits, one to each byte, as its fifth.
fn fifth_NAME(bits: u32) -> u32 {
  return ((bits & 1u) << 4u) | ((bits & 2u) << 11u) | ((bits & 4u) << 18u) | ((bits & 8u) << 25u);
}
fn quad_NAME(row: u32, q: u32) -> vec4<f32> {
  let b = row + (q / 8u) * 12u;
  let k = q % 8u;
  let nibbles = (word_NAME(b + 4u + 2u * (k % 4u)) >> (k & 4u)) & 0x0f0f0f0fu;
  let codes = nibbles | fifth_NAME(word_NAME(b + 2u) >> (4u * k));
  return f16_value(u32(NAME[b])) * vec4<f32>(unpack4xU8(codes)) + f16_value(u32(NAME[b + 1u]));
}
