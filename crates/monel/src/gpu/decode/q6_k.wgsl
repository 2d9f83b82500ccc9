fn word_NAME(index: u32) -> u32 { return u32(NAME[index]) | (u32(NAME[index + 1u]) << 16u); }
fn quad_NAME(row: u32, nth: u32) -> vec4<f32> {
  let base = row + (nth / 64u) * 105u;
  let part = nth % 64u;
  // Halves of 128 values, quarters of 32 within them.
  let half = part / 32u;
  let quarter = (part / 8u) % 4u;
  let lane = 2u * (part % 8u);
  let low = word_NAME(base + 32u * half + 16u * (quarter & 1u) + lane) >> (2u * (quarter & 2u));
  let high = (word_NAME(base + 64u + 16u * half + lane) >> (2u * quarter)) & 0x03030303u;
  let codes = (low & 0x0f0f0f0fu) | (high << 4u);
  let scale = unpack4xI8(word_NAME(base + 96u + 2u * (part / 16u)))[(part / 4u) % 4u];
  return f16_value(u32(NAME[base + 104u])) * f32(scale) * (vec4<f32>(unpack4xU8(codes)) - 32.0);
}
