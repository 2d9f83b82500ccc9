// Q4_0, Q4_1, Q5_0, Q5_1: HAS_MIN, BITS, and where the fifth bits and the codes begin, in 16-bit words.
fn quantize_NAME(start: u32, to: u32) {
  var e = nothing();
  for (var i = 0u; i < 32u; i++) { e = extend(e, source_NAME(start, i)); }
  var d = 0u;
  var m = 0u;
  var shift = 0.0;
  if HAS_MIN {
    let low = select(e.low, 0.0, is_infinite(e.low));
    m = scale_bits(low);
    d = scale_bits(quotient(max(e.high - low, 0.0), TOP));
    shift = -f16_value(m);
    NAME[to + 1u] = u16(m);
  } else {
    d = scale_bits(-e.extreme / CENTRE);
  }
  NAME[to] = u16(d);
  let inverse = inverse_of(f16_value(d));
  let centre = select(CENTRE, 0.0, HAS_MIN);
  var fifth = 0u;
  for (var w = 0u; w < 8u; w++) {
    var word = 0u;
    for (var j = 0u; j < 2u; j++) {
      let i = 2u * w + j;
      let a = code_of(source_NAME(start, i) + shift, inverse, centre, TOP);
      let b = code_of(source_NAME(start, i + 16u) + shift, inverse, centre, TOP);
      word |= ((a & 15u) | ((b & 15u) << 4u)) << (8u * j);
      fifth |= ((a >> 4u) << i) | ((b >> 4u) << (i + 16u));
    }
    NAME[to + LOW_AT + w] = u16(word);
  }
  if BITS == 5u {
    NAME[to + HIGH_AT] = u16(fifth & 0xffffu);
    NAME[to + HIGH_AT + 1u] = u16(fifth >> 16u);
  }
}
