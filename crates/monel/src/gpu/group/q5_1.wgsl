struct Raw_NAME { q: vec4<u32>, h: u32, s: u32 }
fn load_NAME(row: u32, g: u32) -> Raw_NAME {
  let at = 4u * row + 4u * p.groups;
  return Raw_NAME(NAME4[row + g], NAME1[at + g], NAME1[at + p.groups + g]);
}
fn group_NAME(r: Raw_NAME, g: u32) -> Group {
  let s = unpack2x16float(r.s);
  return Group(nibbles_low(r.q) | fifth_bits(r.h), nibbles_high(r.q) | fifth_bits(r.h >> 16u), s.x, s.x, s.y);
}
