// One workgroup a row: the index of the largest element, the first of equals, NaN only where there is nothing else.
var<workgroup> values: array<u32, $THREADS>;
var<workgroup> places: array<u32, $THREADS>;
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32) {
  let r = group_of(wg);
  if r >= p.rows { return; }
  let at = split4(r, p.n1, p.n2, p.n3);
  let start = p.x + at.x * p.x1 + at.y * p.x2 + at.z * p.x3;
  var best = 0u;
  var place = 0xffffffffu;
  for (var i = li; i < p.n0; i += $THREADSu) {
    let o = order_of(x[start + i]);
    if o > best || place == 0xffffffffu { best = o; place = i; }
  }
  values[li] = best;
  places[li] = place;
  workgroupBarrier();
  for (var step = $THREADSu / 2u; step > 0u; step /= 2u) {
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
  if li == 0u { y[p.y + at.x * p.y0 + at.y * p.y1 + at.z * p.y2] = i32(places[0]); }
}
