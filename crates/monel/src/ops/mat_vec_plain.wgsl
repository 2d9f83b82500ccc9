// Few columns: one workgroup a row of the weights, which is decoded once for all columns.
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32,
        @builtin(subgroup_id) sg: u32, @builtin(num_subgroups) nsg: u32, @builtin(subgroup_invocation_id) lane: u32) {
  let g = group_of(wg);
  if g >= p.count { return; }
  let at = split4(g, p.n, p.b2, p.b3);
  let row = p.w + at.x * p.w1 + (at.y / p.share2) * p.w2 + (at.z / p.share3) * p.w3;
  let start = p.x + at.y * p.x2 + at.z * p.x3;
  var sum: array<f32, $COLS>;
  for (var c = 0u; c < $COLSu; c++) { sum[c] = 0.0; }
  for (var q = li; q < p.steps; q += $THREADSu) {
    let v = $LOAD_W;
    for (var c = 0u; c < $COLSu; c++) {
      let i = start + c * p.x1 + q * $STEPu;
      sum[c] += $PRODUCT;
    }
  }
  let to = p.y + at.x * p.y0 + at.y * p.y2 + at.z * p.y3;
  for (var c = 0u; c < $COLSu; c++) {
    let s = sum_all(sum[c], sg, nsg, lane);
    if li == 0u { y[to + c * p.y1] = s; }
  }
}
