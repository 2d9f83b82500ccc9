fn quad_NAME(row: u32, nth: u32) -> vec4<f32> {
  let g = nth / 8u;
  let nibbles = (NAME[row + 4u * g + nth % 4u] >> (nth & 4u)) & 0x0f0f0f0fu;
  let fifth = ((((NAME[row + 4u * p.NAME_groups + g] >> (4u * (nth % 8u))) & 15u) * 0x00204081u) & 0x01010101u) << 4u;
  return half_NAME(row + 5u * p.NAME_groups, g) * (vec4<f32>(unpack4xU8(nibbles | fifth)) - 16.0);
}
