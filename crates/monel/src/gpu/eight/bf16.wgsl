struct Raw_NAME { w: vec4<u32> }
fn load_NAME(row: u32, g: u32) -> Raw_NAME { return Raw_NAME(NAME4[row + g]); }
fn group_NAME(r: Raw_NAME, g: u32) -> Group {
  let even = bitcast<vec4<f32>>(r.w << vec4<u32>(16u));
  let odd = bitcast<vec4<f32>>(r.w & vec4<u32>(0xffff0000u));
  return Group(vec4<f32>(even.x, odd.x, even.y, odd.y), vec4<f32>(even.z, odd.z, even.w, odd.w));
}
