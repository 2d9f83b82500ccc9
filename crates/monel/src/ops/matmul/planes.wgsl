// Weights in planes (quant/planar.rs) become f16 with few instructions: a code q in the low bits of 0x6400 is 1024 + q as
// f16. Masks find values 0, 2 and 1, 3 of four; `in_order` puts them right.
// What is read of a group.
struct Group { $FIELDS }
struct Scales { low: vec2<f16>, high: vec2<f16>, least: vec2<f16> }
fn word_w(row: u32, i: u32) -> u32 { return w[row + i / 4u][i % 4u]; }
fn half_of(word: u32, i: u32) -> f32 { return unpack2x16float(word)[i & 1u]; }
fn scales_of(low: f32, high: f32, least: f32) -> Scales {
  return Scales(vec2<f16>(f16(low)), vec2<f16>(f16(high)), vec2<f16>(f16(least)));
}
// Eight-bit scales of the two halves of a group.
fn two_scales(d: f32, bits: u32) -> Scales {
  let s = d * vec4<f32>(unpack4xI8(bits));
  return scales_of(s.x, s.y, 0.0);
}
// d times the scale and minus dmin times the minimum of group g: six bits each, squeezed into twelve bytes.
fn squeezed(v: vec4<u32>, g: u32) -> Scales {
  let shift = 8u * (g % 4u);
  let a = v.y >> shift;
  let b = v.z >> shift;
  let c = v.w >> shift;
  let low = vec2<u32>(a & 63u, b & 63u);
  let high = vec2<u32>((c & 15u) | ((a >> 2u) & 48u), ((c >> 4u) & 15u) | ((b >> 2u) & 48u));
  let s = unpack2x16float(v.x) * vec2<f32>(select(high, low, (g & 4u) == 0u));
  return scales_of(s.x, s.x, -s.y);
}
fn nibbles(c: u32) -> vec4<u32> { return vec4<u32>(c, c >> 8u, c >> 4u, c >> 12u) & vec4<u32>(0x000f000fu); }
// The fifth bits of values 0, 2 and 1, 3 from the lowest four bits.
fn fifth(t: u32) -> vec2<u32> {
  return vec2<u32>(((t & 1u) << 4u) | ((t & 4u) << 18u), ((t & 2u) << 3u) | ((t & 8u) << 17u));
}
fn fifths(high: u32, j: u32) -> vec4<u32> {
  return vec4<u32>(fifth(high >> (4u * j)), fifth(high >> (16u + 4u * j)));
}
fn sixths(high: vec2<u32>, j: u32) -> vec4<u32> {
  let h = high >> vec2<u32>(2u * j);
  return (vec4<u32>(h.x, h.x >> 8u, h.y, h.y >> 8u) & vec4<u32>(0x00030003u)) << vec4<u32>(4u);
}
fn bytes(c: u32, d: u32) -> vec4<u32> {
  return (vec4<u32>(c, c >> 8u, d, d >> 8u) & vec4<u32>(0x00ff00ffu)) ^ vec4<u32>(0x00800080u);
}
// The same bits: the compiler's passes leave no conversion.
fn of_bits(bits: u32) -> vec2<f16> { return vec2<f16>(unpack2x16float(bits)); }
fn to_bits(v: vec2<f16>) -> u32 { return pack2x16float(vec2<f32>(v)); }
fn value(q: u32, d: vec2<f16>, least: vec2<f16>) -> u32 {
  let v = of_bits(q | 0x64006400u) - vec2<f16>($OFFSETh);
  return to_bits($VALUE);
}
fn group_at(row: u32, g: u32) -> Group { return Group($READS); }
fn scales_in(v: Group, g: u32) -> Scales { return $SCALES; }
// Values 4j to 4j + 3 of a group, and 4j + 16 to 4j + 19.
fn eight(v: Group, s: Scales, g: u32, j: u32) -> vec4<u32> {
  let q = $CODES;
  return vec4<u32>(value(q.x, s.low, s.least), value(q.y, s.low, s.least),
                   value(q.z, s.high, s.least), value(q.w, s.high, s.least));
}
fn in_order(a: vec2<u32>) -> vec2<u32> {
  return vec2<u32>((a.x & 0xffffu) | (a.y << 16u), (a.x >> 16u) | (a.y & 0xffff0000u));
}
