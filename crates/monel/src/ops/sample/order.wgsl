// One logit an invocation: its order number after the penalties, for `sample`.
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32) {
  let i = item_of(wg, li, $THREADSu);
  if i >= p.n { return; }
  var v = logits[p.logits + i];
  let repeat = params[p.params + 4u];
  let presence = params[p.params + 5u];
  let frequency = params[p.params + 6u];
  if repeat != 1.0 || presence != 0.0 || frequency != 0.0 {
    // The last so many of the tokens at positions 0 to p.
    let position = positions[p.positions];
    let end = min(select(u32(position) + 1u, 0u, position < 0), p.past);
    let last_n = min(bitcast<u32>(params[p.params + 7u]), end);
    var count = 0u;
    for (var j = end - last_n; j < end; j++) { if history[p.history + j] == i32(i) { count += 1u; } }
    if count > 0u {
      if v > 0.0 { v = v / repeat; } else { v = v * repeat; }
      v = v - f32(count) * frequency;
      v = v - presence;
    }
  }
  scratch[p.scratch + i] = bitcast<i32>(order_of(v));
}
