// Thirty-two weights as signed bytes: value i is d0 (or d1 from value 16 on) times byte i, plus m.
struct Group { low: vec4<u32>, high: vec4<u32>, d0: f32, d1: f32, m: f32 }
fn dot16(a: vec4<u32>, b: vec4<u32>) -> i32 {
  return dot_bytes(a.x, b.x) + dot_bytes(a.y, b.y) + dot_bytes(a.z, b.z) + dot_bytes(a.w, b.w);
}
// As many activations: codes c0, c1, the scale s.x, and s.y = s.x times the sum of the codes.
struct Acts { c0: vec4<u32>, c1: vec4<u32>, s: vec2<f32> }
fn acts_of(c: u32, g: u32) -> Acts {
  $ACTS
}
fn dot_group(w: Group, x: Acts) -> f32 {
  if !$TWO_SCALES { return x.s.x * (w.d0 * f32(dot16(w.low, x.c0) + dot16(w.high, x.c1))) + w.m * x.s.y; }
  return x.s.x * (w.d0 * f32(dot16(w.low, x.c0)) + w.d1 * f32(dot16(w.high, x.c1))) + w.m * x.s.y;
}
fn nibbles_low(q: vec4<u32>) -> vec4<u32> { return q & vec4<u32>(0x0f0f0f0fu); }
fn nibbles_high(q: vec4<u32>) -> vec4<u32> { return (q >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu); }
// Bits 0 to 3 (4 to 7, 8 to 11, 12 to 15) as bit 4 of the bytes of a word each.
fn fifth_bits(h: u32) -> vec4<u32> {
  let four = (vec4<u32>(h) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u);
  return ((four * 0x00204081u) & vec4<u32>(0x01010101u)) << vec4<u32>(4u);
}
