fn eight_NAME(first: u32, i: u32) -> Eight {
  let w = NAME4[first + i];
  let even = bitcast<vec4<f32>>(w << vec4<u32>(16u));
  let odd = bitcast<vec4<f32>>(w & vec4<u32>(0xffff0000u));
  return Eight(vec4<f32>(even.x, odd.x, even.y, odd.y), vec4<f32>(even.z, odd.z, even.w, odd.w));
}
