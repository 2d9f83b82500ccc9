fn get_NAME(index: u32) -> f32 { return bf16_value(u32(NAME[index])); }
fn quad_NAME(row: u32, nth: u32) -> vec4<f32> {
  let index = row + 4u * nth;
  return vec4<f32>(get_NAME(index), get_NAME(index + 1u), get_NAME(index + 2u), get_NAME(index + 3u));
}
