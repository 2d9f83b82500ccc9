// One workgroup a piece of a row: the largest element and its index, the first of equals. The first kernel looks at
// values and keeps (order, index) in pairs; the second looks at the pairs of a row. NaN wins only where there is nothing
// else.
var<workgroup> values: array<u32, 256>;
var<workgroup> places: array<u32, 256>;
fn reduce(best: u32, place: u32, li: u32) {
  values[li] = best;
  places[li] = place;
  workgroupBarrier();
  for (var step = 128u; step > 0u; step /= 2u) {
    if li < step {
      let a = values[li];
      let b = values[li + step];
      if b > a || (b == a && places[li + step] < places[li]) {
        values[li] = b;
        places[li] = places[li + step];
      }
    }
    workgroupBarrier();
  }
}
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32) {
  let group = group_of(wg);
  if group >= p.groups { return; }
  let r = group / p.parts;
  let part = group % p.parts;
  let at = split4(r, p.n1, p.n2, p.n3);
  var best = 0u;
  var place = 0xffffffffu;
  $LOOK
  reduce(best, place, li);
  if li == 0u { $KEEP }
}
