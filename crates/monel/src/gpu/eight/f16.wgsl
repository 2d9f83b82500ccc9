struct Raw_NAME { w: vec4<u32> }
fn load_NAME(row: u32, g: u32) -> Raw_NAME { return Raw_NAME(NAME4[row + g]); }
fn group_NAME(r: Raw_NAME, g: u32) -> Group {
  let w = r.w;
  return Group(vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y)), vec4<f32>(unpack2x16float(w.z), unpack2x16float(w.w)));
}
