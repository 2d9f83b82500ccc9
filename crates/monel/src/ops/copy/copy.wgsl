// $STEP elements an invocation: the same numbers as another type and with other strides.
$FUNCTIONS
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32) {
  let item = item_of(wg, li, $THREADSu);
  if item >= p.count { return; }
  let at = split4(item, p.steps, p.n1, p.n2);
  let row = p.x + at.y * p.x1 + at.z * p.x2 + at.w * p.x3;
  let to = p.y + at.x * $STEPu * p.y0 + at.y * p.y1 + at.z * p.y2 + at.w * p.y3;
  $WRITE
}
