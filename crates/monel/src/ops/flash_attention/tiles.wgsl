// Many tokens: a workgroup takes $BQ queries of one head through the cells, $BK at a time. Keys and then values lie in
// workgroup memory; eight neighbouring invocations share a query, its running maximum and sum (Milakov and Gimelshein,
// arXiv 1805.02867), each a quarter of an eighth of its result.
const PITCH: u32 = $PITCHu;
var<workgroup> queries: array<vec4<f32>, $QUERIES>;
var<workgroup> rows: array<vec4<f32>, $ROWS>;
var<workgroup> weights: array<f32, $WEIGHTS>;
var<workgroup> firsts: array<u32, $BQ>;
var<workgroup> lasts: array<u32, $BQ>;
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(subgroup_id) sg: u32, @builtin(subgroup_size) size: u32,
        @builtin(subgroup_invocation_id) lane: u32) {
  let li = sg * size + lane;
  let g = group_of(wg);
  if g >= p.count { return; }
  // Heads change fastest: those of a group read the same keys.
  let at = split4(g, p.heads, p.blocks, p.batches);
  let head = at.x; let batch = at.z;
  let token0 = at.y * $BQu;
  let k_at = p.k + (head / p.group) * p.k2 + (batch / p.share) * p.k3;
  let v_at = p.v + (head / p.group) * p.v2 + (batch / p.share) * p.v3;
  for (var i = li; i < $BQu * $HEAD4u; i += 128u) {
    let r = i / $HEAD4u;
    let d = i % $HEAD4u;
    let start = p.q + min(token0 + r, p.tokens - 1u) * p.q1 + head * p.q2 + batch * p.q3 + 4u * d;
    queries[r * PITCH + d] = vec4<f32>(q[start], q[start + 1u], q[start + 2u], q[start + 3u]) * p.scale;
  }
  for (var r = li; r < $BQu; r += 128u) {
    let token = min(token0 + r, p.tokens - 1u);
    var first = 0u;
    var last = p.cells;
    $RANGE
    firsts[r] = first;
    lasts[r] = last;
  }
  workgroupBarrier();
  var begin = 0xffffffffu;
  var end = 0u;
  for (var r = 0u; r < $BQu; r++) {
    begin = min(begin, firsts[r]);
    end = max(end, lasts[r]);
  }
  let part = li % 8u;
  let mine = (li / 8u) * $PERu;
  var top: array<f32, $PER>;
  var total: array<f32, $PER>;
  var sum: array<vec4<f32>, $SUMS>;
  for (var a = 0u; a < $PERu; a++) { top[a] = -1e30; total[a] = 0.0; }
  for (var i = 0u; i < $SUMSu; i++) { sum[i] = vec4<f32>(0.0); }
  for (var c0 = begin; c0 < end; c0 += $BKu) {
    for (var i = li; i < $BKu * $HEAD4u; i += 128u) {
      let r = i / $HEAD4u;
      rows[r * PITCH + i % $HEAD4u] = quad_k(k_at + min(c0 + r, end - 1u) * p.k1, i % $HEAD4u);
    }
    workgroupBarrier();
    var score: array<f32, $SCORES>;
    for (var i = 0u; i < $SCORESu; i++) { score[i] = 0.0; }
    for (var d = 0u; d < $HEAD4u; d++) {
      for (var b = 0u; b < $KEYSu; b++) {
        let key = rows[(part + 8u * b) * PITCH + d];
        for (var a = 0u; a < $PERu; a++) { score[a * $KEYSu + b] += dot(queries[(mine + a) * PITCH + d], key); }
      }
    }
    for (var a = 0u; a < $PERu; a++) {
      var higher = top[a];
      for (var b = 0u; b < $KEYSu; b++) {
        let cell = c0 + part + 8u * b;
        var v = score[a * $KEYSu + b];
        $CAP
        if cell < firsts[mine + a] || cell >= lasts[mine + a] { v = -1e30; }
        score[a * $KEYSu + b] = v;
        higher = max(higher, v);
      }
      higher = max(higher, subgroupShuffleXor(higher, 1u));
      higher = max(higher, subgroupShuffleXor(higher, 2u));
      higher = max(higher, subgroupShuffleXor(higher, 4u));
      let old = exp_f(top[a] - higher);
      top[a] = higher;
      var added = 0.0;
      for (var b = 0u; b < $KEYSu; b++) {
        let v = score[a * $KEYSu + b];
        // A hidden cell's weight is zero, also where all are hidden.
        let w = select(exp_f(v - higher), 0.0, v <= -1e30);
        added += w;
        weights[(mine + a) * $BKu + part + 8u * b] = w;
      }
      total[a] = total[a] * old + added;
      for (var i = 0u; i < $PARTSu; i++) { sum[a * $PARTSu + i] *= old; }
    }
    workgroupBarrier();
    for (var i = li; i < $BKu * $VALUE4u; i += 128u) {
      let r = i / $VALUE4u;
      rows[r * PITCH + i % $VALUE4u] = quad_v(v_at + min(c0 + r, end - 1u) * p.v1, i % $VALUE4u);
    }
    workgroupBarrier();
    for (var j = 0u; j < $BKu; j++) {
      for (var i = 0u; i < $PARTSu; i++) {
        let d = part + 8u * i;
        if d < $VALUE4u {
          let value = rows[j * PITCH + d];
          for (var a = 0u; a < $PERu; a++) {
            let w = weights[(mine + a) * $BKu + j];
            // What a hidden cell holds has no influence, NaN included.
            if w != 0.0 { sum[a * $PARTSu + i] += w * value; }
          }
        }
      }
    }
    workgroupBarrier();
  }
  for (var a = 0u; a < $PERu; a++) {
    var all = total[a];
    all += subgroupShuffleXor(all, 1u);
    all += subgroupShuffleXor(all, 2u);
    all += subgroupShuffleXor(all, 4u);
    let factor = select(1.0 / all, 0.0, all == 0.0);
    let token = token0 + mine + a;
    if token < p.tokens {
      let to = p.y + head * p.y1 + token * p.y2 + batch * p.y3;
      for (var i = 0u; i < $PARTSu; i++) {
        let d = part + 8u * i;
        if d < $VALUE4u {
          let s = sum[a * $PARTSu + i] * factor;
          y[to + 4u * d] = s.x;
          y[to + 4u * d + 1u] = s.y;
          y[to + 4u * d + 2u] = s.z;
          y[to + 4u * d + 3u] = s.w;
        }
      }
    }
  }
}
