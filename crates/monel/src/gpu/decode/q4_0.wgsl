fn word_NAME(i: u32) -> u32 { return u32(NAME[i]) | (u32(NAME[i + 1u]) << 16u); }
fn quad_NAME(row: u32, q: u32) -> vec4<f32> {
  let b = row + (q / 8u) * 9u;
  let k = q % 8u;
  let nibbles = (word_NAME(b + 1u + 2u * (k % 4u)) >> (k & 4u)) & 0x0f0f0f0fu;
  return f16_value(u32(NAME[b])) * (vec4<f32>(unpack4xU8(nibbles)) - 8.0);
}
