// Sine and cosine of a pair's angle. Per position it is a fraction of a turn in units of 2^-64 (two words of the table
// `turns`), so the angle is an integer product that wraps.
fn mul64(a: u32, b: u32) -> vec2<u32> {
  let al = a & 0xffffu; let ah = a >> 16u; let bl = b & 0xffffu; let bh = b >> 16u;
  let low = al * bl;
  let m = ah * bl + (low >> 16u);
  let m2 = al * bh + (m & 0xffffu);
  return vec2<u32>((low & 0xffffu) | (m2 << 16u), ah * bh + (m >> 16u) + (m2 >> 16u));
}
// The turn divided by a factor: long division of 64 and 32 more bits by its 24 digits, eight at a time.
fn divide(turn: vec2<u32>, factor: f32) -> vec2<u32> {
  let bits = bitcast<u32>(factor);
  let digits = (bits & 0x7fffffu) | 0x800000u;
  let exponent = i32((bits >> 23u) & 0xffu) - 150;
  var words = array<u32, 3>(turn.y, turn.x, 0u);
  var rest = 0u;
  for (var k = 0u; k < 3u; k++) {
    var q = 0u;
    let w = words[k];
    for (var s = 0u; s < 4u; s++) {
      let part = (rest << 8u) | ((w >> (24u - 8u * s)) & 0xffu);
      q = (q << 8u) | (part / digits);
      rest = part % digits;
    }
    words[k] = q;
  }
  // The quotient is by digits alone; the factor is digits times 2^exponent, from -31 (2^-8) to 0 (2^24).
  let up = u32(clamp(-exponent, 0, 31));
  var q = vec2<u32>(words[1], words[0]);
  if up > 0u {
    q = vec2<u32>((words[1] << up) | (words[2] >> (32u - up)), (words[0] << up) | (words[1] >> (32u - up)));
  }
  // A negative factor turns the other way.
  if (bits >> 31u) == 1u { q = vec2<u32>(0u - q.x, ~q.y + select(0u, 1u, q.x == 0u)); }
  return q;
}
fn sin_cos_of(pair: u32, position: i32) -> vec2<f32> {
  var turn = vec2<u32>(turns[p.turns + 2u * pair], turns[p.turns + 2u * pair + 1u]);
  $FACTOR
  let steps = u32(abs(position));
  let low = mul64(turn.x, steps);
  var angle = low.y + turn.y * steps;
  if position < 0 { angle = 0u - angle; }
  // The nearest quarter and what is left of it, from -1/2 to 1/2.
  let quarter = (angle + 0x20000000u) >> 30u;
  let left = f32(bitcast<i32>(angle - (quarter << 30u))) * 9.31322575e-10;
  let q = bitcast<i32>(quarter);
  return vec2<f32>(sin_quarter(q, left), sin_quarter(q + 1, left)) * p.magnitude;
}
