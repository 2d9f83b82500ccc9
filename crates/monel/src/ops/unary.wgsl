// One element an invocation: y = f(x).
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32) {
  let i = item_of(wg, li, $THREADSu);
  if i >= p.count { return; }
  let at = split4(i, p.n0, p.n1, p.n2);
  let v = get_x(p.x + dot(at, vec4<u32>(p.x0, p.x1, p.x2, p.x3)));
  put_y(p.y + dot(at, vec4<u32>(p.y0, p.y1, p.y2, p.y3)), $F);
}
