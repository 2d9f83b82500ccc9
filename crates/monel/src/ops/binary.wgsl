// One element an invocation: y = a op b, b repeated to a's shape.
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32) {
  let i = item_of(wg, li, $THREADSu);
  if i >= p.count { return; }
  let at = split4(i, p.n0, p.n1, p.n2);
  let bt = at % vec4<u32>(p.m0, p.m1, p.m2, p.m3);
  let x = $GET_A(p.a + dot(at, vec4<u32>(p.a0, p.a1, p.a2, p.a3)));
  let z = $GET_B(p.b + dot(bt, vec4<u32>(p.b0, p.b1, p.b2, p.b3)));
  let to = p.y + dot(at, vec4<u32>(p.y0, p.y1, p.y2, p.y3));
  $PUT(to, x $OP z);
}
