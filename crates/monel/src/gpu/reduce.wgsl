// Sums and maxima over the invocations of a workgroup, whatever the size of a subgroup. Every invocation calls them
// and gets the result.
var<workgroup> partial: array<f32, 256>;
fn sum_all(x: f32, sg: u32, nsg: u32, lane: u32) -> f32 {
  let s = subgroupAdd(x);
  workgroupBarrier();
  if lane == 0u { partial[sg] = s; }
  workgroupBarrier();
  var t = 0.0;
  for (var i = 0u; i < nsg; i++) { t += partial[i]; }
  return t;
}
fn max_all(x: f32, sg: u32, nsg: u32, lane: u32) -> f32 {
  let s = subgroupMax(x);
  workgroupBarrier();
  if lane == 0u { partial[sg] = s; }
  workgroupBarrier();
  var t = partial[0];
  for (var i = 1u; i < nsg; i++) { t = max(t, partial[i]); }
  return t;
}
