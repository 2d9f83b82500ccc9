fn eight_NAME(first: u32, i: u32) -> Eight {
  return Eight(bitcast<vec4<f32>>(NAME4[first + 2u * i]), bitcast<vec4<f32>>(NAME4[first + 2u * i + 1u]));
}
