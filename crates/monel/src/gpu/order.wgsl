// A whole number that is larger for larger floats; the two zeros are equal, NaN is 0. The bits are looked at because
// compilers may assume that there is no NaN.
fn order_of(x: f32) -> u32 {
  let b = bitcast<u32>(x);
  if (b & 0x7fffffffu) > 0x7f800000u { return 0u; }
  if b == 0x80000000u { return 0x80000000u; }
  return select(~b, b | 0x80000000u, (b >> 31u) == 0u);
}
fn value_of(order: u32) -> f32 {
  return bitcast<f32>(select(~order, order & 0x7fffffffu, (order >> 31u) == 1u));
}
