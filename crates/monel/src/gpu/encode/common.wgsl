// Choosing scales and codes: the arithmetic of `quant/encode.rs`, rounded the same way. Built-in divisions may be off by
// some units in the last place, so quotients are made digit by digit.

// a / b to nearest even, b not zero; what is too small for a normal number is zero.
fn quotient(a: f32, b: f32) -> f32 {
  let x = bitcast<u32>(a);
  let y = bitcast<u32>(b);
  let sign = (x ^ y) & 0x80000000u;
  let above = (x >> 23u) & 255u;
  if above == 0u { return bitcast<f32>(sign); }
  if above == 255u { return bitcast<f32>(sign | 0x7f800000u); }
  var e = i32(above) - i32((y >> 23u) & 255u);
  var rest = (x & 0x7fffffu) | 0x800000u;
  let d = (y & 0x7fffffu) | 0x800000u;
  if rest < d { rest = rest << 1u; e -= 1; }
  // 24 digits and one to round by
  var q = 0u;
  for (var i = 0; i < 25; i++) {
    q = q << 1u;
    if rest >= d { rest -= d; q |= 1u; }
    rest = rest << 1u;
  }
  q = (q >> 1u) + select(0u, 1u, (q & 1u) == 1u && (rest != 0u || (q & 2u) == 2u));
  if q == 0x1000000u { q = 0x800000u; e += 1; }
  if e < -126 { return bitcast<f32>(sign); }
  if e > 127 { return bitcast<f32>(sign | 0x7f800000u); }
  return bitcast<f32>(sign | (u32(e + 127) << 23u) | (q & 0x7fffffu));
}
// 1 / x, or zero where that is no number to multiply with.
fn inverse_of(x: f32) -> f32 {
  if (bitcast<u32>(x) & 0x7f800000u) == 0u { return 0.0; }
  return quotient(1.0, x);
}
fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn is_infinite(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }
// As f16, limited to its finite range.
fn scale_bits(x: f32) -> u32 { return f16_bits(clamp(x, -65504.0, 65504.0)); }
// To the nearest whole number, halves away from zero.
fn round_away(x: f32) -> f32 {
  let a = abs(x);
  let f = floor(a);
  let r = f + select(0.0, 1.0, a - f >= 0.5);
  return select(r, -r, x < 0.0);
}
fn code_of(x: f32, inverse: f32, centre: f32, top: f32) -> u32 {
  var step = 0.0;
  if !is_nan(x) { step = round(x * inverse); }
  return u32(clamp(step + centre, 0.0, top));
}
// Smallest, largest, and the one of largest magnitude; NaN is passed over.
struct Extent { low: f32, high: f32, extreme: f32 }
fn extend(e: Extent, x: f32) -> Extent {
  if is_nan(x) { return e; }
  var r = e;
  if x < e.low { r.low = x; }
  if x > e.high { r.high = x; }
  if abs(x) > abs(e.extreme) { r.extreme = x; }
  return r;
}
fn nothing() -> Extent { return Extent(bitcast<f32>(0x7f800000u), bitcast<f32>(0xff800000u), 0.0); }
