// Scale of half h of a group.
fn scale_NAME(row: u32, g: u32, h: u32) -> f32 {
  let scales = row + 6u * p.NAME_groups;
  let s = unpack4xI8(NAME[scales + g / 2u])[2u * (g & 1u) + h];
  return unpack2x16float(NAME[scales + p.NAME_groups / 2u + g / 16u])[(g / 8u) & 1u] * f32(s);
}
fn quad_NAME(row: u32, nth: u32) -> vec4<f32> {
  let g = nth / 8u;
  let h = (nth / 4u) & 1u;
  let nibbles = (NAME[row + 4u * g + nth % 4u] >> (4u * h)) & 0x0f0f0f0fu;
  let high = ((NAME[row + 4u * p.NAME_groups + 2u * g + h] >> (2u * (nth % 4u))) & 0x03030303u) << 4u;
  return scale_NAME(row, g, h) * (vec4<f32>(unpack4xU8(nibbles | high)) - 32.0);
}
