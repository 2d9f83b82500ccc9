fn group_NAME(row: u32, g: u32) -> Group {
  let q = NAME4[row + g];
  let at = 4u * row + 4u * p.groups;
  let h = vec2<u32>(NAME1[at + 2u * g], NAME1[at + 2u * g + 1u]);
  let scales = at + 2u * p.groups;
  let s = NAME1[scales + g / 2u] >> (16u * (g & 1u));
  let d = unpack2x16float(NAME1[scales + p.groups / 2u + g / 16u])[(g / 8u) & 1u];
  let shift = vec4<u32>(0u, 2u, 4u, 6u);
  let top0 = ((vec4<u32>(h.x) >> shift) & vec4<u32>(0x03030303u)) << vec4<u32>(4u);
  let top1 = ((vec4<u32>(h.y) >> shift) & vec4<u32>(0x03030303u)) << vec4<u32>(4u);
  // Code - 32 in each byte: 96 more, then the top bit turned.
  let low = ((nibbles_low(q) | top0) + vec4<u32>(0x60606060u)) ^ vec4<u32>(0x80808080u);
  let high = ((nibbles_high(q) | top1) + vec4<u32>(0x60606060u)) ^ vec4<u32>(0x80808080u);
  return Group(low, high, d * f32(bitcast<i32>(s << 24u) >> 24u), d * f32(bitcast<i32>(s << 16u) >> 24u), 0.0);
}
