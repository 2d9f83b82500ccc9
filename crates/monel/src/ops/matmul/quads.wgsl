// Eight weights in order; behind the end of a row its last ones, which meet zeros.
fn eight_of(row: u32, u: u32) -> vec4<u32> {
  let a = quad_w(row, min(2u * u, p.last));
  let b = quad_w(row, min(2u * u + 1u, p.last));
  return vec4<u32>(pack2x16float(a.xy), pack2x16float(a.zw), pack2x16float(b.xy), pack2x16float(b.zw));
}
