// One element an invocation: y = act(gate) * up.
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32) {
  let i = item_of(wg, li, $THREADSu);
  if i >= p.count { return; }
  let at = split4(i, p.n0, p.n1, p.n2);
  let v = gate[p.gate + at.x + at.y * p.gate1 + at.z * p.gate2 + at.w * p.gate3];
  let u = up[p.up + at.x + at.y * p.up1 + at.z * p.up2 + at.w * p.up3];
  y[p.y + at.x + at.y * p.y1 + at.z * p.y2 + at.w * p.y3] = ($F) * u;
}
