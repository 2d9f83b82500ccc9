// Q4_K and Q5_K: BITS, and where the codes begin, in 16-bit words.
fn quantize_NAME(start: u32, to: u32) {
  var scales: array<f32, 8>;
  var mins: array<f32, 8>;
  var largest = vec2<f32>(0.0, 0.0);
  for (var s = 0u; s < 8u; s++) {
    var e = nothing();
    for (var i = 0u; i < 32u; i++) { e = extend(e, source_NAME(start, 32u * s + i)); }
    let low = clamp(e.low, -4126752.0, 0.0);
    scales[s] = quotient(max(e.high, low) - low, TOP);
    mins[s] = -low;
    largest = max(largest, vec2<f32>(scales[s], mins[s]));
  }
  let d = scale_bits(quotient(largest.x, 63.0));
  let m = scale_bits(quotient(largest.y, 63.0));
  NAME[to] = u16(d);
  NAME[to + 1u] = u16(m);
  let scale_inverse = inverse_of(f16_value(d));
  let min_inverse = inverse_of(f16_value(m));
  // Six bits of each, then what the codes are made with.
  var sc: array<u32, 8>;
  var mn: array<u32, 8>;
  for (var s = 0u; s < 8u; s++) {
    sc[s] = u32(clamp(round_away(scales[s] * scale_inverse), 0.0, 63.0));
    mn[s] = u32(clamp(round_away(mins[s] * min_inverse), 0.0, 63.0));
    scales[s] = inverse_of(f16_value(d) * f32(sc[s]));
    mins[s] = f16_value(m) * f32(mn[s]);
  }
  for (var w = 0u; w < 2u; w++) {
    var words = vec3<u32>(0u, 0u, 0u);
    for (var j = 0u; j < 2u; j++) {
      let g = 2u * w + j;
      let first = sc[g] | ((sc[g + 4u] >> 4u) << 6u);
      let second = mn[g] | ((mn[g + 4u] >> 4u) << 6u);
      let third = (sc[g + 4u] & 15u) | ((mn[g + 4u] & 15u) << 4u);
      words |= vec3<u32>(first, second, third) << vec3<u32>(8u * j);
    }
    NAME[to + 2u + w] = u16(words.x);
    NAME[to + 4u + w] = u16(words.y);
    NAME[to + 6u + w] = u16(words.z);
  }
  var high: array<u32, 8>;
  for (var k = 0u; k < 8u; k++) { high[k] = 0u; }
  for (var two = 0u; two < 4u; two++) {
    for (var w = 0u; w < 16u; w++) {
      var word = 0u;
      for (var j = 0u; j < 2u; j++) {
        let l = 2u * w + j;
        let s = 2u * two;
        let a = code_of(source_NAME(start, 32u * s + l) + mins[s], scales[s], 0.0, TOP);
        let b = code_of(source_NAME(start, 32u * s + 32u + l) + mins[s + 1u], scales[s + 1u], 0.0, TOP);
        word |= ((a & 15u) | ((b & 15u) << 4u)) << (8u * j);
        high[l / 4u] |= (((a >> 4u) << s) | ((b >> 4u) << (s + 1u))) << (8u * (l % 4u));
      }
      NAME[to + LOW_AT + 16u * two + w] = u16(word);
    }
  }
  if BITS == 5u {
    for (var k = 0u; k < 8u; k++) {
      NAME[to + 8u + 2u * k] = u16(high[k] & 0xffffu);
      NAME[to + 9u + 2u * k] = u16(high[k] >> 16u);
    }
  }
}
