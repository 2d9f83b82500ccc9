fn get_NAME(i: u32) -> f32 { return NAME[i]; }
fn quad_NAME(row: u32, q: u32) -> vec4<f32> {
  let i = row + 4u * q;
  return vec4<f32>(NAME[i], NAME[i + 1u], NAME[i + 2u], NAME[i + 3u]);
}
