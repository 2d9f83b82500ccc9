fn get_NAME(index: u32) -> f32 { return NAME[index]; }
fn quad_NAME(row: u32, nth: u32) -> vec4<f32> {
  let index = row + 4u * nth;
  return vec4<f32>(NAME[index], NAME[index + 1u], NAME[index + 2u], NAME[index + 3u]);
}
