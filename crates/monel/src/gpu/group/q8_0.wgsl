struct Raw_NAME { low: vec4<u32>, high: vec4<u32>, d: u32 }
fn load_NAME(row: u32, g: u32) -> Raw_NAME {
  return Raw_NAME(NAME4[row + 2u * g], NAME4[row + 2u * g + 1u], NAME1[4u * row + 8u * p.groups + g / 2u]);
}
fn group_NAME(r: Raw_NAME, g: u32) -> Group {
  let d = unpack2x16float(r.d >> (16u * (g & 1u))).x;
  return Group(r.low, r.high, d, d, 0.0);
}
