fn group_NAME(row: u32, g: u32) -> Group {
  let q = NAME4[row + g];
  // d, dmin, and twelve bytes of six-bit scales and minima.
  let head = NAME4[row + p.groups + g / 8u];
  let abc = head.yzw >> vec3<u32>(8u * (g % 4u));
  let low = abc.xy & vec2<u32>(63u);
  let high = ((vec2<u32>(abc.z, abc.z >> 4u)) & vec2<u32>(15u)) | ((abc.xy >> vec2<u32>(2u)) & vec2<u32>(48u));
  let s = unpack2x16float(head.x) * vec2<f32>(select(high, low, (g & 4u) == 0u));
  return Group(nibbles_low(q), nibbles_high(q), s.x, s.x, -s.y);
}
