fn get_NAME(i: u32) -> f32 { return f16_value(u32(NAME[i])); }
fn quad_NAME(row: u32, q: u32) -> vec4<f32> {
  let i = row + 4u * q;
  return vec4<f32>(get_NAME(i), get_NAME(i + 1u), get_NAME(i + 2u), get_NAME(i + 3u));
}
