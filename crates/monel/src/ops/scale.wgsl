// One element an invocation: y = x * scale + bias.
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32) {
  let i = item_of(wg, li, $THREADSu);
  if i >= p.count { return; }
  let at = split4(i, p.n0, p.n1, p.n2);
  let v = x[p.x + at.x + at.y * p.x1 + at.z * p.x2 + at.w * p.x3];
  y[p.y + at.x + at.y * p.y1 + at.z * p.y2 + at.w * p.y3] = v * p.scale + p.bias;
}
