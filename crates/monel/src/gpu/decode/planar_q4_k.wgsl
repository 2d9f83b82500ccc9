fn quad_NAME(row: u32, nth: u32) -> vec4<f32> {
  let g = nth / 8u;
  let nibbles = (NAME[row + 4u * g + nth % 4u] >> (nth & 4u)) & 0x0f0f0f0fu;
  let scales = scales_NAME(row + 4u * p.NAME_groups, g);
  return scales.x * vec4<f32>(unpack4xU8(nibbles)) - scales.y;
}
