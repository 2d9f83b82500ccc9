// Heads of any size: a workgroup for each query row and each $THREADS elements of its result, one an invocation. Scores of
// $THREADS cells at a time, one an invocation.
var<workgroup> weights: array<f32, $THREADS>;
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32,
        @builtin(subgroup_id) sg: u32, @builtin(num_subgroups) nsg: u32, @builtin(subgroup_invocation_id) lane: u32) {
  let group = group_of(wg);
  if group >= p.rows * p.blocks { return; }
  let row = group / p.blocks;
  let d = group % p.blocks * $THREADSu + li;
  let at = split4(row, p.heads, p.tokens, p.batches);
  let head = at.x; let token = at.y; let batch = at.z;
  let k_at = p.k + (head / p.group) * p.k2 + (batch / p.share) * p.k3;
  let v_at = p.v + (head / p.group) * p.v2 + (batch / p.share) * p.v3;
  let q_at = p.q + token * p.q1 + head * p.q2 + batch * p.q3;
  var first = 0u;
  var last = p.cells;
  $RANGE
  var top = -1e30;
  var total = 0.0;
  var sum = 0.0;
  for (var c0 = first; c0 < last; c0 += $THREADSu) {
    let cell = c0 + li;
    var score = -1e30;
    if cell < last {
      let k_row = k_at + cell * p.k1;
      score = 0.0;
      $KEYS
      score *= p.scale;
      $CAP
      $MASK
    }
    let higher = max(top, max_all(score, sg, nsg, lane));
    // A hidden cell's weight is zero, also where all are hidden.
    let weight = select(exp_f(score - higher), 0.0, score <= -1e30);
    let old = exp_f(top - higher);
    top = higher;
    weights[li] = weight;
    total = total * old + sum_all(weight, sg, nsg, lane);
    sum *= old;
    let count = select(0u, min($THREADSu, last - c0), d < p.values);
    for (var j = 0u; j < count; j++) {
      let w = weights[j];
      let v_row = v_at + (c0 + j) * p.v1;
      if w != 0.0 { sum += w * $VALUE; }
    }
    workgroupBarrier();
  }
  if d < p.values {
    y[p.y + head * p.y1 + token * p.y2 + batch * p.y3 + d] = sum * select(1.0 / total, 0.0, total == 0.0);
  }
}
