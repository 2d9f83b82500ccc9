// Columns of x for products in tiles of f16: a workgroup a column. A column with numbers beyond what f16 holds well is
// multiplied by a power of two, whose inverse is kept. Columns are filled up with zeros.
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32,
        @builtin(subgroup_id) sg: u32, @builtin(num_subgroups) nsg: u32, @builtin(subgroup_invocation_id) lane: u32) {
  let column = group_of(wg);
  if column >= p.count { return; }
  let at = split4(column, p.m, p.b2, p.b3);
  let start = p.x + at.x * p.x1 + at.y * p.x2 + at.z * p.x3;
  var largest = 0.0;
  for (var q = li; q < p.quads; q += $THREADSu) {
    let v = abs($QUAD);
    largest = max(largest, max(max(v.x, v.y), max(v.z, v.w)));
  }
  largest = max_all(largest, sg, nsg, lane);
  // From 2^-6 to 2^15 f16 has its full precision for all that matters; zeros, infinities and NaN stay.
  let exponent = i32(bitcast<u32>(largest) >> 23u) - 127;
  var up = 0;
  if largest > 0.0 && exponent < 128 && (exponent < -6 || exponent > 14) { up = clamp(10 - exponent, -117, 100); }
  let scale = bitcast<f32>(u32(127 + up) << 23u);
  for (var u = li; u < p.line; u += $THREADSu) {
    var a = vec4<f32>(0.0);
    var b = vec4<f32>(0.0);
    var q = 2u * u;
    if q < p.quads { a = $QUAD * scale; }
    q += 1u;
    if q < p.quads { b = $QUAD * scale; }
    xh[p.xh + column * p.line + u] = vec4<u32>(pack2x16float(a.xy), pack2x16float(a.zw), pack2x16float(b.xy), pack2x16float(b.zw));
  }
  if li == 0u { scales[p.scales + column] = bitcast<f32>(u32(127 - up) << 23u); }
}
