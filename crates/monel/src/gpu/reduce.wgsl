// Sums and maxima over the invocations of a workgroup, whatever the size of a subgroup. Every invocation calls them
// and gets the result.
var<workgroup> partial: array<f32, 256>;
fn sum_all(x: f32, sg: u32, nsg: u32, lane: u32) -> f32 {
  let s = subgroupAdd(x);
  workgroupBarrier();
  if lane == 0u { partial[sg] = s; }
  workgroupBarrier();
  // Every subgroup adds up all parts, one or a few a lane.
  let size = subgroupMax(lane) + 1u;
  var t = 0.0;
  for (var i = lane; i < nsg; i += size) { t += partial[i]; }
  return subgroupAdd(t);
}
fn max_all(x: f32, sg: u32, nsg: u32, lane: u32) -> f32 {
  let s = subgroupMax(x);
  workgroupBarrier();
  if lane == 0u { partial[sg] = s; }
  workgroupBarrier();
  let size = subgroupMax(lane) + 1u;
  var t = partial[0];
  for (var i = lane; i < nsg; i += size) { t = max(t, partial[i]); }
  return subgroupMax(t);
}
