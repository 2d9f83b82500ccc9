// Numbers of other types. Conversions to 16 bits round to nearest even, which no built-in function promises.
fn f16_value(bits: u32) -> f32 { return unpack2x16float(bits).x; }
fn bf16_value(bits: u32) -> f32 { return bitcast<f32>(bits << 16u); }
fn f16_bits(x: f32) -> u32 {
  let b = bitcast<u32>(x);
  let sign = (b >> 16u) & 0x8000u;
  let a = b & 0x7fffffffu;
  if a > 0x7f800000u { return sign | 0x7e00u; }
  if a >= 0x477ff000u { return sign | 0x7c00u; }
  // Below 2^-14: a whole number of 2^-24.
  if a < 0x38800000u { return sign | u32(round(bitcast<f32>(a) * 16777216.0)); }
  return sign | ((a + 0xfffu + ((a >> 13u) & 1u) - 0x38000000u) >> 13u);
}
fn bf16_bits(x: f32) -> u32 {
  let b = bitcast<u32>(x);
  if (b & 0x7fffffffu) > 0x7f800000u { return (b >> 16u) | 0x40u; }
  return (b + 0x7fffu + ((b >> 16u) & 1u)) >> 16u;
}
// Workgroups beyond what x holds go along y.
fn group_of(wg: vec3<u32>) -> u32 { return wg.x + wg.y * 32768u; }
fn item_of(wg: vec3<u32>, li: u32, threads: u32) -> u32 { return group_of(wg) * threads + li; }
// Index i along dimensions of sizes n0, n1, n2 and the rest.
fn split4(i: u32, n0: u32, n1: u32, n2: u32) -> vec4<u32> {
  let r = i / n0;
  let s = r / n1;
  return vec4<u32>(i - r * n0, r - s * n1, s % n2, s / n2);
}
