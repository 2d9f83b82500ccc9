fn group_NAME(row: u32, g: u32) -> Group {
  let d = unpack2x16float(NAME1[4u * row + 8u * p.groups + g / 2u])[g & 1u];
  return Group(NAME4[row + 2u * g], NAME4[row + 2u * g + 1u], d, d, 0.0);
}
