// Rows that are made on the way: even vectors of four first, then odd ones, so that neighbours read neighbours.
var<workgroup> turned: array<vec4<f32>, $TURNED>;
fn put_turned(row: u32, i: u32, x: f32) {
  turned[row * $KEY4u + ((i >> 2u) & 1u) * $KEY8u + (i >> 3u)][i & 3u] = x;
}
fn as_f16(x: f32) -> f32 { return f16_value(f16_bits(x)); }
fn as_cell(x: f32, rounds: bool) -> f32 { return select(x, as_f16(x), rounds); }
fn eight_f16(a: vec4<f32>, b: vec4<f32>) -> vec4<u32> {
  return vec4<u32>(f16_bits(a.x) | (f16_bits(a.y) << 16u), f16_bits(a.z) | (f16_bits(a.w) << 16u),
                   f16_bits(b.x) | (f16_bits(b.y) << 16u), f16_bits(b.z) | (f16_bits(b.w) << 16u));
}
