// Bytes from place to place, $UNIT at a time.
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32) {
  let i = item_of(wg, li, $THREADSu);
  if i < p.count { y[p.y + i] = x[p.x + i]; }
}
