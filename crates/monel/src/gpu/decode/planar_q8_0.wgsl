fn quad_NAME(row: u32, nth: u32) -> vec4<f32> {
  return half_NAME(row + 8u * p.NAME_groups, nth / 8u) * vec4<f32>(unpack4xI8(NAME[row + nth]));
}
