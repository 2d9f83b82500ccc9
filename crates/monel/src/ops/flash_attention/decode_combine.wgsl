// Puts the parts of a row together: a workgroup a row, four elements an invocation, $GROUPS parts side by side.
var<workgroup> tops: array<f32, $GROUPS>;
var<workgroup> totals: array<f32, $GROUPS>;
var<workgroup> sums: array<vec4<f32>, $THREADS>;
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) index: u32, @builtin(subgroup_id) sg: u32,
        @builtin(subgroup_size) size: u32, @builtin(subgroup_invocation_id) lane: u32) {
  let row = group_of(wg);
  if row >= p.rows { return; }
  let li = $INDEX;
  let d = li % $VALUE4u;
  let nth = li / $VALUE4u;
  let at = p.parts + row * $ROWu;
  // All are asked for before any is used. A part without cells has nothing but a total of zero.
  $LOADS
  let top = $TOP;
  var total = 0.0;
  var sum = vec4<f32>(0.0);
  $ADD
  sums[li] = sum;
  if d == 0u && nth < $GROUPSu {
    tops[nth] = top;
    totals[nth] = total;
  }
  workgroupBarrier();
  if nth == 0u {
    var highest = top;
    for (var i = 1u; i < $GROUPSu; i++) { highest = max(highest, tops[i]); }
    sum = vec4<f32>(0.0);
    total = 0.0;
    for (var i = 0u; i < $GROUPSu; i++) {
      let weight = exp2(tops[i] - highest);
      sum += weight * sums[i * $VALUE4u + d];
      total += weight * totals[i];
    }
    let factor = select(1.0 / total, 0.0, total == 0.0);
    $TO
    $STORE
  }
}
