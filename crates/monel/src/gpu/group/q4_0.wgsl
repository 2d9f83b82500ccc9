fn group_NAME(row: u32, g: u32) -> Group {
  let q = NAME4[row + g];
  let d = unpack2x16float(NAME1[4u * row + 4u * p.groups + g / 2u])[g & 1u];
  return Group(nibbles_low(q), nibbles_high(q), d, d, -8.0 * d);
}
