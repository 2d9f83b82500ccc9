fn quantize_NAME(start: u32, to: u32) {
  var e = nothing();
  for (var i = 0u; i < 32u; i++) { e = extend(e, source_NAME(start, i)); }
  let d = scale_bits(quotient(abs(e.extreme), 127.0));
  let inverse = inverse_of(f16_value(d));
  NAME[to] = u16(d);
  for (var w = 0u; w < 16u; w++) {
    let a = code_of(source_NAME(start, 2u * w), inverse, 128.0, 255.0);
    let b = code_of(source_NAME(start, 2u * w + 1u), inverse, 128.0, 255.0);
    // signed bytes
    NAME[to + 1u + w] = u16((a | (b << 8u)) ^ 0x8080u);
  }
}
