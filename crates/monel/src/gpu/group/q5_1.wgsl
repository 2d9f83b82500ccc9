fn group_NAME(row: u32, g: u32) -> Group {
  let q = NAME4[row + g];
  let h = NAME1[4u * row + 4u * p.groups + g];
  let s = unpack2x16float(NAME1[4u * row + 5u * p.groups + g]);
  return Group(nibbles_low(q) | fifth_bits(h), nibbles_high(q) | fifth_bits(h >> 16u), s.x, s.x, s.y);
}
