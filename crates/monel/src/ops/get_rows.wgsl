// $STEP elements of a row an invocation: y[row] = table[ids[row]].
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32) {
  let item = item_of(wg, li, $THREADSu);
  if item >= p.count { return; }
  let at = split4(item, p.steps, p.m1, p.m2);
  let id = ids[p.ids + at.y * p.ids0 + at.z * p.ids1 + at.w * p.ids2];
  // A negative number is a large one.
  if u32(id) >= p.rows { fault(u32(id)); return; }
  // Rows before and behind what this dispatch sees are for others.
  let seen = u32(id) - p.first;
  if seen >= p.seen { return; }
  let row = p.table + seen * p.table1 + at.z * p.table2 + at.w * p.table3;
  let to = p.y + at.x * $STEPu + at.y * p.y1 + at.z * p.y2 + at.w * p.y3;
  $WRITE
}
