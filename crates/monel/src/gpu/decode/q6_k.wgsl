fn word_NAME(i: u32) -> u32 { return u32(NAME[i]) | (u32(NAME[i + 1u]) << 16u); }
fn quad_NAME(row: u32, q: u32) -> vec4<f32> {
  let b = row + (q / 64u) * 105u;
  let k = q % 64u;
  // Halves of 128 values, quarters of 32 within them.
  let half = k / 32u;
  let quarter = (k / 8u) % 4u;
  let l = 2u * (k % 8u);
  let low = word_NAME(b + 32u * half + 16u * (quarter & 1u) + l) >> (2u * (quarter & 2u));
  let high = (word_NAME(b + 64u + 16u * half + l) >> (2u * quarter)) & 0x03030303u;
  let codes = (low & 0x0f0f0f0fu) | (high << 4u);
  let scale = unpack4xI8(word_NAME(b + 96u + 2u * (k / 16u)))[(k / 4u) % 4u];
  return f16_value(u32(NAME[b + 104u])) * f32(scale) * (vec4<f32>(unpack4xU8(codes)) - 32.0);
}
