// A workgroup takes the query heads of one KV head over one of at most $SPLITS equal parts of the cells that a token sees. A
// cell's row lies across $LANES neighbouring invocations, eight elements and every $LANES-th eight after them each, so a
// subgroup reads $AT_ONCE rows together, and $UNROLL times as many before it uses them. Every subgroup goes its own way with
// its own softmax; they meet once, at the end. Scores are in units of log2(e).
//
// Where one part is all, its workgroup writes the result. Otherwise each leaves its part in memory and counts itself, and
// the last one puts all of them together, in their order. Nobody waits for anybody.
var<workgroup> tops: array<f32, $SLOTS>;
var<workgroup> totals: array<f32, $SLOTS>;
var<workgroup> sums: array<vec4<f32>, $SUMS>;
fn top_of(head: u32) -> f32 {
  var top = tops[head];
  for (var s = 1u; s < $SUBGROUPSu; s++) { top = max(top, tops[s * $HEADSu + head]); }
  return top;
}
fn total_of(head: u32, top: f32) -> f32 {
  var total = 0.0;
  for (var s = 0u; s < $SUBGROUPSu; s++) { total += totals[s * $HEADSu + head] * exp2(tops[s * $HEADSu + head] - top); }
  return total;
}
fn even_f16(x: vec4<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(x.x), unpack2x16float(x.y)); }
fn odd_f16(x: vec4<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(x.z), unpack2x16float(x.w)); }
fn pair_bf16(x: u32) -> vec2<f32> { return vec2<f32>(bitcast<f32>(x << 16u), bitcast<f32>(x & 0xffff0000u)); }
fn even_bf16(x: vec4<u32>) -> vec4<f32> { return vec4<f32>(pair_bf16(x.x), pair_bf16(x.y)); }
fn odd_bf16(x: vec4<u32>) -> vec4<f32> { return vec4<f32>(pair_bf16(x.z), pair_bf16(x.w)); }
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(subgroup_id) sg: u32,
        @builtin(subgroup_invocation_id) lane: u32) {
  // Subgroups are full, so this numbers the invocations, whatever order the device gives them.
  let li = sg * $SUBGROUPu + lane;
  let split = wg.x;
  let kv_head = wg.y / $PARTSu;
  let head0 = wg.y * $HEADSu;
  let token = wg.z % p.tokens;
  let batch = wg.z / p.tokens;
  let row0 = wg.z * p.heads + head0;
  let piece = lane % $LANESu;
  let place = lane / $LANESu;
  let k_at = p.k + kv_head * p.k2 + (batch / p.share) * p.k3;
  let v_at = p.v + kv_head * p.v2 + (batch / p.share) * p.v3;
  // Asked for first: everything but a new row depends on it.
  $POSITION
  $ROWS
  var first = 0u;
  var end = p.cells;
  $RANGE
  let seen = end - first;
  let even = (seen + $EVENu - 1u) / $EVENu * $GRANULEu;
  let length = select(max(even, $PARTu), $ALONEu, seen <= $ALONEu);
  let used = max((seen + length - 1u) / length, 1u);
  $LEAVE
  let begin = first + split * length;
  end = min(end, begin + length);
  $FRESH
  $QUERY
  $ZERO
  // the row of a step whose scores this invocation ends up with
  let slot = $SLOT;
  for (var tile = begin + sg * $STEPu; tile < end; tile += $TILEu) {
    let mine = tile + slot * $AT_ONCEu + place;
    $LOADS
    $SCORES
    // The largest score may lag behind by a few powers of two before anything is rescaled.
    if subgroupAny($HIGHER) {
      $RESCALE
    }
    $WEIGHTS
    $VALUES
  }
  $GATHER
  $NEWEST
  if lane == 0u {
    $POST
  }
  workgroupBarrier();
  for (var round = 0u; round < $HEADSu; round += $PER_PASSu) {
    $SPREAD
    workgroupBarrier();
    for (var i = li; i < $PASS_VALUESu; i += $THREADSu) {
      var sum = sums[i];
      for (var s = 1u; s < $SUBGROUPSu; s++) { sum += sums[s * $PASS_VALUESu + i]; }
      let head = round + i / $VALUE4u;
      let d = i % $VALUE4u;
      $STORE
    }
    workgroupBarrier();
  }
  $COMBINE
}
