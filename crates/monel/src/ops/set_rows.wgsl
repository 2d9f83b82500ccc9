// One workgroup a row: place[ids[row]] = row. Of rows with one destination the last is written.
var<workgroup> later: atomic<u32>;
$LOAD_ID
$SOURCE
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32) {
  let r = group_of(wg);
  if r >= p.count { return; }
  let at = split4(r, p.m1, p.m2, p.m3);
  let ids_row = p.ids + (at.y % p.c2) * p.ids1 + (at.z % p.c3) * p.ids2;
  let id = load_id(ids_row + at.x * p.ids0);
  if li == 0u { atomicStore(&later, 0u); }
  workgroupBarrier();
  for (var j = at.x + 1u + li; j < p.m1; j += $THREADSu) {
    if load_id(ids_row + j * p.ids0) == id { atomicStore(&later, 1u); }
  }
  workgroupBarrier();
  if id >= p.rows {
    if li == 0u { fault(id); }
    return;
  }
  // Rows before and behind what this dispatch sees are for others.
  let seen = id - p.first;
  if atomicLoad(&later) != 0u || seen >= p.seen { return; }
  let start = p.x + at.x * p.x1 + at.y * p.x2 + at.z * p.x3;
  let to = p.y + seen * p.y1 + at.y * p.y2 + at.z * p.y3;
  for (var i = li; i < p.steps; i += $THREADSu) { $WRITE }
}
