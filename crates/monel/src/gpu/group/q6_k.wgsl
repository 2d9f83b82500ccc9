struct Raw_NAME { q: vec4<u32>, h: vec2<u32>, s: u32, d: u32 }
fn load_NAME(row: u32, g: u32) -> Raw_NAME {
  let at = 4u * row + 4u * p.groups;
  let scales = at + 2u * p.groups;
  return Raw_NAME(NAME4[row + g], vec2<u32>(NAME1[at + 2u * g], NAME1[at + 2u * g + 1u]), NAME1[scales + g / 2u],
    NAME1[scales + p.groups / 2u + g / 16u]);
}
fn group_NAME(r: Raw_NAME, g: u32) -> Group {
  let s = r.s >> (16u * (g & 1u));
  let d = unpack2x16float(r.d >> (2u * (g & 8u))).x;
  let shift = vec4<u32>(0u, 2u, 4u, 6u);
  let top0 = ((vec4<u32>(r.h.x) >> shift) & vec4<u32>(0x03030303u)) << vec4<u32>(4u);
  let top1 = ((vec4<u32>(r.h.y) >> shift) & vec4<u32>(0x03030303u)) << vec4<u32>(4u);
  // Code - 32 in each byte: 96 more, then the top bit turned.
  let low = ((nibbles_low(r.q) | top0) + vec4<u32>(0x60606060u)) ^ vec4<u32>(0x80808080u);
  let high = ((nibbles_high(r.q) | top1) + vec4<u32>(0x60606060u)) ^ vec4<u32>(0x80808080u);
  return Group(low, high, d * f32(bitcast<i32>(s << 24u) >> 24u), d * f32(bitcast<i32>(s << 16u) >> 24u), 0.0);
}
