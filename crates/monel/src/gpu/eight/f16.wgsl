fn eight_NAME(first: u32, i: u32) -> Eight {
  let w = NAME4[first + i];
  return Eight(vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y)), vec4<f32>(unpack2x16float(w.z), unpack2x16float(w.w)));
}
