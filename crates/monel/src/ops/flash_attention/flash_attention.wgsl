// One workgroup a query row: scores of $THREADS cells at a time, one an invocation, then their values are added up, four
// dimensions an invocation. The largest score so far scales what was summed before (Milakov and Gimelshein, arXiv
// 1805.02867).
var<workgroup> query: array<vec4<f32>, $HEAD4>;
var<workgroup> weights: array<f32, $THREADS>;
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32,
        @builtin(subgroup_id) sg: u32, @builtin(num_subgroups) nsg: u32, @builtin(subgroup_invocation_id) lane: u32) {
  let row = group_of(wg);
  if row >= p.rows { return; }
  // heads change fastest, as in the result
  let at = split4(row, p.heads, p.tokens, p.batches);
  let head = at.x; let token = at.y; let batch = at.z;
  let k_at = p.k + (head / p.group) * p.k2 + (batch / p.share) * p.k3;
  let v_at = p.v + (head / p.group) * p.v2 + (batch / p.share) * p.v3;
  let q_at = p.q + token * p.q1 + head * p.q2 + batch * p.q3;
  for (var i = li; i < $HEAD4u; i += $THREADSu) {
    query[i] = vec4<f32>(q[q_at + 4u * i], q[q_at + 4u * i + 1u], q[q_at + 4u * i + 2u], q[q_at + 4u * i + 3u]) * p.scale;
  }
  workgroupBarrier();
  var first = 0u;
  var last = p.cells;
  $RANGE
  var top = -1e30;
  var total = 0.0;
  var sum: array<vec4<f32>, $PARTS>;
  for (var i = 0u; i < $PARTSu; i++) { sum[i] = vec4<f32>(0.0); }
  for (var c0 = first; c0 < last; c0 += $THREADSu) {
    let cell = c0 + li;
    var score = -1e30;
    if cell < last {
      let k_row = k_at + cell * p.k1;
      var dots = vec4<f32>(0.0);
      for (var i = 0u; i < $HEAD4u; i++) { dots += query[i] * quad_k(k_row, i); }
      score = dots.x + dots.y + dots.z + dots.w;
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
    let count = min($THREADSu, last - c0);
    for (var i = 0u; i < $PARTSu; i++) {
      let d = li + i * $THREADSu;
      if d < $VALUE4u {
        var s = sum[i] * old;
        for (var j = 0u; j < count; j++) {
          let w = weights[j];
          if w != 0.0 { s += w * quad_v(v_at + (c0 + j) * p.v1, d); }
        }
        sum[i] = s;
      }
    }
    workgroupBarrier();
  }
  let factor = select(1.0 / total, 0.0, total == 0.0);
  let to = p.y + head * p.y1 + token * p.y2 + batch * p.y3;
  for (var i = 0u; i < $PARTSu; i++) {
    let d = li + i * $THREADSu;
    if d < $VALUE4u {
      let s = sum[i] * factor;
      y[to + 4u * d] = s.x;
      y[to + 4u * d + 1u] = s.y;
      y[to + 4u * d + 2u] = s.z;
      y[to + 4u * d + 3u] = s.w;
    }
  }
}
