// One workgroup a piece: the order numbers of the logits after the penalties, the largest of them, and how many are NaN.
var<workgroup> best: array<u32, 256>;
var<workgroup> nan: array<u32, 256>;
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32) {
  let piece = group_of(wg);
  let repeat = params[p.params + 4u];
  let presence = params[p.params + 5u];
  let frequency = params[p.params + 6u];
  let penalised = repeat != 1.0 || presence != 0.0 || frequency != 0.0;
  // The last so many of the tokens at positions 0 to p.
  let position = positions[p.positions];
  let end = min(select(u32(position) + 1u, 0u, position < 0), p.past);
  let last_n = min(bitcast<u32>(params[p.params + 7u]), end);
  var most = 0u;
  var lost = 0u;
  for (var i = piece * p.piece + li; i < min((piece + 1u) * p.piece, p.n); i += 256u) {
    var v = logits[p.logits + i];
    if penalised {
      var count = 0u;
      for (var j = end - last_n; j < end; j++) { if history[p.history + j] == i32(i) { count += 1u; } }
      if count > 0u {
        if v > 0.0 { v = v / repeat; } else { v = v * repeat; }
        v = v - f32(count) * frequency;
        v = v - presence;
      }
    }
    let o = order_of(v);
    scratch[p.scratch + i] = bitcast<i32>(o);
    most = max(most, o);
    lost += select(0u, 1u, o == 0u);
  }
  best[li] = most;
  nan[li] = lost;
  workgroupBarrier();
  for (var step = 128u; step > 0u; step /= 2u) {
    if li < step {
      best[li] = max(best[li], best[li + step]);
      nan[li] += nan[li + step];
    }
    workgroupBarrier();
  }
  if li == 0u {
    scratch[p.scratch + p.heads + 2u * piece] = bitcast<i32>(best[0]);
    scratch[p.scratch + p.heads + 2u * piece + 1u] = bitcast<i32>(nan[0]);
    // how many `collect` finds
    if piece == 0u { scratch[p.scratch + p.heads + 512u] = 0; }
  }
}
