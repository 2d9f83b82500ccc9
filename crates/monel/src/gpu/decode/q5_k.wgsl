fn word_NAME(i: u32) -> u32 { return u32(NAME[i]) | (u32(NAME[i + 1u]) << 16u); }
fn byte_NAME(b: u32, i: u32) -> u32 { return (u32(NAME[b + i / 2u]) >> (8u * (i & 1u))) & 0xffu; }
// Scale and minimum of segment g: six bits each, squeezed into twelve bytes from byte 4 of the block.
fn scales_NAME(b: u32, g: u32) -> vec2<f32> {
  let low = vec2<u32>(byte_NAME(b, 4u + g % 4u), byte_NAME(b, 8u + g % 4u));
  if g < 4u { return vec2<f32>(low & vec2<u32>(63u)); }
  let high = byte_NAME(b, 8u + g);
  return vec2<f32>(vec2<u32>(high & 15u, high >> 4u) | ((low >> vec2<u32>(6u)) << vec2<u32>(4u)));
}
fn quad_NAME(row: u32, q: u32) -> vec4<f32> {
  let b = row + (q / 64u) * 88u;
  let g = (q / 8u) % 8u;
  let nibbles = (word_NAME(b + 24u + 16u * (g / 2u) + 2u * (q % 8u)) >> (4u * (g & 1u))) & 0x0f0f0f0fu;
  let fifth = ((word_NAME(b + 8u + 2u * (q % 8u)) >> g) & 0x01010101u) << 4u;
  let s = scales_NAME(b, g) * vec2<f32>(f16_value(u32(NAME[b])), f16_value(u32(NAME[b + 1u])));
  return s.x * vec4<f32>(unpack4xU8(nibbles | fifth)) - s.y;
}
