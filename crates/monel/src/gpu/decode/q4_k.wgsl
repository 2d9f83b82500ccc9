fn word_NAME(index: u32) -> u32 { return u32(NAME[index]) | (u32(NAME[index + 1u]) << 16u); }
fn byte_NAME(base: u32, index: u32) -> u32 { return (u32(NAME[base + index / 2u]) >> (8u * (index & 1u))) & 0xffu; }
// Scale and minimum of a segment: six bits each, squeezed into twelve bytes from byte 4 of the block.
fn scales_NAME(base: u32, segment: u32) -> vec2<f32> {
  let low = vec2<u32>(byte_NAME(base, 4u + segment % 4u), byte_NAME(base, 8u + segment % 4u));
  if segment < 4u { return vec2<f32>(low & vec2<u32>(63u)); }
  let high = byte_NAME(base, 8u + segment);
  return vec2<f32>(vec2<u32>(high & 15u, high >> 4u) | ((low >> vec2<u32>(6u)) << vec2<u32>(4u)));
}
fn quad_NAME(row: u32, nth: u32) -> vec4<f32> {
  let base = row + (nth / 64u) * 72u;
  let segment = (nth / 8u) % 8u;
  let nibbles = (word_NAME(base + 8u + 16u * (segment / 2u) + 2u * (nth % 8u)) >> (4u * (segment & 1u))) & 0x0f0f0f0fu;
  let scale_min = scales_NAME(base, segment) * vec2<f32>(f16_value(u32(NAME[base])), f16_value(u32(NAME[base + 1u])));
  return scale_min.x * vec4<f32>(unpack4xU8(nibbles)) - scale_min.y;
}
