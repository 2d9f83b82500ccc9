// One workgroup a row: y = e^(x scale + mask - largest) / sum; zeros where everything is hidden.
fn score(start: u32, mask: u32, i: u32) -> f32 { return x[start + i] * p.scale$MASK; }
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32,
        @builtin(subgroup_id) sg: u32, @builtin(num_subgroups) nsg: u32, @builtin(subgroup_invocation_id) lane: u32) {
  let r = group_of(wg);
  if r >= p.rows { return; }
  let at = split4(r, p.n1, p.n2, p.n3);
  let start = p.x + at.x * p.x1 + at.y * p.x2 + at.z * p.x3;
  let to = p.y + at.x * p.y1 + at.y * p.y2 + at.z * p.y3;
  let mask = $MASK_ROW;
  var top = -3.4028234e38;
  for (var i = li; i < p.n0; i += $THREADSu) { top = max(top, score(start, mask, i)); }
  top = max_all(top, sg, nsg, lane);
  var sum = 0.0;
  for (var i = li; i < p.n0; i += $THREADSu) {
    let e = exp_f(score(start, mask, i) - top);
    y[to + i] = e;
    sum += e;
  }
  sum = sum_all(sum, sg, nsg, lane);
  // The largest of hidden elements only is the number the search began with.
  let factor = select(1.0 / sum, 0.0, top == -3.4028234e38);
  for (var i = li; i < p.n0; i += $THREADSu) { y[to + i] = y[to + i] * factor; }
}
