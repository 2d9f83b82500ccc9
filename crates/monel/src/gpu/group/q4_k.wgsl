// The head: d, dmin, and twelve bytes of six-bit scales and minima.
struct Raw_NAME { q: vec4<u32>, head: vec4<u32> }
fn load_NAME(row: u32, g: u32) -> Raw_NAME {
  return Raw_NAME(NAME4[row + g], NAME4[row + p.groups + g / 8u]);
}
fn group_NAME(r: Raw_NAME, g: u32) -> Group {
  let abc = r.head.yzw >> vec3<u32>(8u * (g % 4u));
  let low = abc.xy & vec2<u32>(63u);
  let high = ((vec2<u32>(abc.z, abc.z >> 4u)) & vec2<u32>(15u)) | ((abc.xy >> vec2<u32>(2u)) & vec2<u32>(48u));
  let s = unpack2x16float(r.head.x) * vec2<f32>(select(high, low, (g & 4u) == 0u));
  return Group(nibbles_low(r.q), nibbles_high(r.q), s.x, s.x, -s.y);
}
