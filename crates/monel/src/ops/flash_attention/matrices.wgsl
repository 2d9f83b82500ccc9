// Many tokens with cooperative matrices: a workgroup takes $BLOCK rows through the cells, $CELLS at a time, a subgroup
// sixteen of them. Keys and then values lie in workgroup memory as f16, rows $LINE vectors apart; while a tile is used,
// the next one is on its way. Scores, in units of log2(e), pass through workgroup memory, where every element can be
// looked at: $SHARE_ROW neighbours share a row, its highest score and its sum (Milakov and Gimelshein, arXiv 1805.02867).
// Weights are 64 exp2(score - highest). The highest score may lag behind by eight powers of two, so that the results, which
// are matrices, hardly ever have to be rescaled.
alias Rows = coop_mat16x16<f16, A>;
alias Cols = coop_mat16x16<f16, B>;
alias Sums = coop_mat16x16<f32, C>;
var<workgroup> kv: array<vec4<u32>, $KV>;
var<workgroup> scores: array<f32, $SCORES>;
var<workgroup> weights: array<vec4<u32>, $WEIGHTS>;
var<workgroup> bounds: array<vec2<u32>, $BLOCK>;
var<workgroup> factors: array<f32, $BLOCK>;
// Cells of the tile whose values are not all finite.
var<workgroup> broken: array<u32, $CELLS>;
var<workgroup> grown: u32;
fn not_finite(x: vec4<u32>) -> bool {
  let top = ((x & vec4<u32>(0x7c007c00u)) + vec4<u32>(0x04000400u)) & vec4<u32>(0x80008000u);
  return (top.x | top.y | top.z | top.w) != 0u;
}
fn rescale(at: u32, row: u32, lane: u32) {
  for (var e = lane; e < 256u; e += $SIZEu) { scores[at + e] *= factors[row + e / 16u]; }
}
fn write(at: u32, row0: u32, row: u32, lane: u32, to: u32, head0: u32) {
  for (var e = lane; e < 256u; e += $SIZEu) {
    let flat = row0 + e / 16u;
    if flat < p.rows {
      y[to + (head0 + flat % $GROUPu) * p.y1 + (flat / $GROUPu) * p.y2 + e % 16u] = scores[at + e] * factors[row + e / 16u];
    }
  }
}
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(subgroup_id) sg: u32,
        @builtin(subgroup_invocation_id) lane: u32) {
  let li = sg * $SIZEu + lane;
  // Workgroups behind the last one repeat it. KV heads change fastest; the last rows, which see the most cells, come first.
  let g = min(group_of(wg), p.blocks * p.kv_heads * p.batches - 1u);
  let at = split4(g, p.kv_heads, p.blocks, p.batches);
  let row0 = (p.blocks - 1u - at.y) * $BLOCKu;
  let batch = at.z;
  let head0 = at.x * $GROUPu;
  let k_at = p.k + at.x * p.k2 + (batch / p.share) * p.k3;
  let v_at = p.v + at.x * p.v2 + (batch / p.share) * p.v3;
  let y_at = p.y + batch * p.y3;
  for (var i = li; i < $BLOCKu * $HEAD8u; i += $THREADSu) {
    let r = i / $HEAD8u;
    let u = i % $HEAD8u;
    let flat = min(row0 + r, p.rows - 1u);
    let begins = p.q + (flat / $GROUPu) * p.q1 + (head0 + flat % $GROUPu) * p.q2 + batch * p.q3 + 8u * u;
    // What would be infinite in f16 is as large as it can be.
    let most = vec4<f32>(65504.0);
    let low = clamp(vec4<f32>(q[begins], q[begins + 1u], q[begins + 2u], q[begins + 3u]) * p.scale, -most, most);
    let high = clamp(vec4<f32>(q[begins + 4u], q[begins + 5u], q[begins + 6u], q[begins + 7u]) * p.scale, -most, most);
    kv[r * $LINEu + u] = vec4<u32>(pack2x16float(low.xy), pack2x16float(low.zw),
                                   pack2x16float(high.xy), pack2x16float(high.zw));
  }
  for (var r = li; r < $BLOCKu; r += $THREADSu) {
    let token = min(row0 + r, p.rows - 1u) / $GROUPu;
    var first = 0u;
    var last = p.cells;
    $RANGE
    bounds[r] = vec2<u32>(first, last);
  }
  workgroupBarrier();
  $QUERIES
  var begin = 0xffffffffu;
  var end = 0u;
  for (var r = 0u; r < $BLOCKu; r++) {
    begin = min(begin, bounds[r].x);
    end = max(end, bounds[r].y);
  }
  let row = lane / $SHARE_ROWu;
  let part = lane % $SHARE_ROWu;
  let sees = bounds[sg * 16u + row];
  let pitch = $PITCHu;
  let sixteen = 16u;
  let mine = sg * 16u * $PITCHu;
  let my_scores = mine + row * $PITCHu;
  let my_weights = (sg * 16u + row) * $WEIGHT_LINEu;
  var highest = -1e30;
  var total = 0.0;
  $RESULTS
  $NEXT
  if begin < end {
    let c0 = begin;
    $LOAD_K
  }
  for (var c0 = begin; c0 < end; c0 += $CELLSu) {
    workgroupBarrier();
    $STORE_K
    for (var i = li; i < $CELLSu; i += $THREADSu) { broken[i] = 0u; }
    if li == 0u { grown = 0u; }
    workgroupBarrier();
    $LOAD_V
    $MAKE_SCORES
    $LOOK_V
    workgroupBarrier();
    var top = -1e30;
    for (var c = part; c < $CHUNKSu; c += $SHARE_ROWu) {
      for (var e = 0u; e < 8u; e++) {
        let cell = c0 + 8u * c + e;
        var v = scores[my_scores + 8u * c + e];
        $CAP
        if cell >= sees.x && cell < sees.y { top = max(top, v); }
      }
    }
    for (var o = 1u; o < $SHARE_ROWu; o *= 2u) { top = max(top, subgroupShuffleXor(top, o)); }
    if highest < -1e29 { highest = top; } else if top > highest + 8.0 { grown = 1u; }
    workgroupBarrier();
    let rescales = grown != 0u;
    if rescales {
      let next = max(highest, top);
      let factor = exp2(highest - next);
      if part == 0u { factors[sg * 16u + row] = factor; }
      total *= factor;
      highest = next;
    }
    $STORE_V
    for (var c = part; c < $CHUNKSu; c += $SHARE_ROWu) {
      var eight: array<f32, 8>;
      for (var e = 0u; e < 8u; e++) {
        let cell = c0 + 8u * c + e;
        var v = scores[my_scores + 8u * c + e];
        $CAP
        let seen = cell >= sees.x && cell < sees.y;
        eight[e] = select(0.0, exp2(v - highest + 6.0), seen);
        if seen && broken[8u * c + e] != 0u { total = bitcast<f32>(0x7f800000u | broken[8u * c + e]); }
      }
      let w = vec4<u32>(pack2x16float(vec2<f32>(eight[0], eight[1])), pack2x16float(vec2<f32>(eight[2], eight[3])),
                        pack2x16float(vec2<f32>(eight[4], eight[5])), pack2x16float(vec2<f32>(eight[6], eight[7])));
      weights[my_weights + c] = w;
      // Rounded weights are divided by the sum of rounded weights.
      let sum = unpack2x16float(w.x) + unpack2x16float(w.y) + unpack2x16float(w.z) + unpack2x16float(w.w);
      total += sum.x + sum.y;
    }
    workgroupBarrier();
    if rescales {
      $RESCALE
    }
    if c0 + $CELLSu < end {
      $AHEAD_K
    }
    for (var e = 0u; e < $STEPSu; e++) {
      $VALUES
    }
  }
  for (var o = 1u; o < $SHARE_ROWu; o *= 2u) { total += subgroupShuffleXor(total, o); }
  workgroupBarrier();
  if part == 0u { factors[sg * 16u + row] = select(1.0 / total, 0.0, total == 0.0); }
  workgroupBarrier();
  $WRITE
}
