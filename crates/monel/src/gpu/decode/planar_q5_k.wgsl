// d times the scale and dmin times the minimum of a group: six bits each, squeezed into twelve bytes.
fn scales_NAME(row: u32, g: u32) -> vec2<f32> {
  let head = row + 5u * p.NAME_groups + 4u * (g / 8u);
  let shift = 8u * (g % 4u);
  let a = NAME[head + 1u] >> shift;
  let b = NAME[head + 2u] >> shift;
  let c = NAME[head + 3u] >> shift;
  let low = vec2<u32>(a & 63u, b & 63u);
  let high = vec2<u32>((c & 15u) | ((a >> 2u) & 48u), ((c >> 4u) & 15u) | ((b >> 2u) & 48u));
  return unpack2x16float(NAME[head]) * vec2<f32>(select(high, low, (g & 4u) == 0u));
}
fn quad_NAME(row: u32, nth: u32) -> vec4<f32> {
  let g = nth / 8u;
  let nibbles = (NAME[row + 4u * g + nth % 4u] >> (nth & 4u)) & 0x0f0f0f0fu;
  let fifth = ((((NAME[row + 4u * p.NAME_groups + g] >> (4u * (nth % 8u))) & 15u) * 0x00204081u) & 0x01010101u) << 4u;
  let scales = scales_NAME(row, g);
  return scales.x * vec4<f32>(unpack4xU8(nibbles | fifth)) - scales.y;
}
