fn group_NAME(row: u32, g: u32) -> Group {
  let q = NAME4[row + g];
  let s = unpack2x16float(NAME1[4u * row + 4u * p.groups + g]);
  return Group(nibbles_low(q), nibbles_high(q), s.x, s.x, s.y);
}
