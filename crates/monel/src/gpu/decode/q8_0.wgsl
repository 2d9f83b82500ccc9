fn word_NAME(i: u32) -> u32 { return u32(NAME[i]) | (u32(NAME[i + 1u]) << 16u); }
fn quad_NAME(row: u32, q: u32) -> vec4<f32> {
  let b = row + (q / 8u) * 17u;
  return f16_value(u32(NAME[b])) * vec4<f32>(unpack4xI8(word_NAME(b + 1u + 2u * (q % 8u))));
}
