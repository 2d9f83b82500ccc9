// Conversions between floats, I32 and I64 (two words, the low one first). Toward zero, NaN to 0, too large to the largest.
fn f32_to_i32(x: f32) -> i32 {
  if !(abs(x) <= 3.4028234e38) && (bitcast<u32>(x) & 0x7fffffu) != 0u { return 0; }
  if x >= 2147483648.0 { return 2147483647; }
  if x <= -2147483648.0 { return bitcast<i32>(0x80000000u); }
  return i32(x);
}
fn negate64(v: vec2<u32>) -> vec2<u32> { return vec2<u32>(0u - v.x, ~v.y + select(0u, 1u, v.x == 0u)); }
fn f32_to_i64(x: f32) -> vec2<u32> {
  let bits = bitcast<u32>(x) & 0x7fffffffu;
  if bits > 0x7f800000u { return vec2<u32>(0u, 0u); }
  let negative = x < 0.0;
  if bits >= 0x5f000000u {
    return select(vec2<u32>(0xffffffffu, 0x7fffffffu), vec2<u32>(0u, 0x80000000u), negative);
  }
  // 24 digits and where they stand
  let digits = (bits & 0x7fffffu) | 0x800000u;
  let up = i32(bits >> 23u) - 150;
  var v = vec2<u32>(0u, 0u);
  if up <= 0 {
    v.x = select(0u, digits >> u32(min(-up, 31)), up > -24);
  } else if up < 32 {
    v = vec2<u32>(digits << u32(up), digits >> u32(32 - up));
    if up < 8 { v.y = 0u; }
  } else {
    v.y = digits << u32(up - 32);
  }
  if negative { v = negate64(v); }
  return v;
}
fn i32_to_i64(x: i32) -> vec2<u32> { return vec2<u32>(bitcast<u32>(x), select(0u, 0xffffffffu, x < 0)); }
fn i64_to_i32(v: vec2<u32>) -> i32 {
  if i32_to_i64(bitcast<i32>(v.x)).y == v.y { return bitcast<i32>(v.x); }
  return select(2147483647, bitcast<i32>(0x80000000u), (v.y >> 31u) == 1u);
}
// Rounded once: the upper 32 digits with a last one that remembers whether any followed.
fn i64_to_f32(x: vec2<u32>) -> f32 {
  let negative = (x.y >> 31u) == 1u;
  var v = x;
  if negative { v = negate64(x); }
  var f = f32(v.x);
  if v.y != 0u {
    let up = countLeadingZeros(v.y);
    var high = v.y;
    var low = v.x;
    if up > 0u {
      high = (v.y << up) | (v.x >> (32u - up));
      low = v.x << up;
    }
    f = f32(high | select(0u, 1u, low != 0u)) * bitcast<f32>((159u - up) << 23u);
  }
  return select(f, -f, negative);
}
