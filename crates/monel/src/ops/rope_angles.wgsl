// The sine and cosine of a pair of one token an invocation.
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32) {
  let item = item_of(wg, li, $THREADSu);
  if item >= p.count { return; }
  let pair = item % p.pairs;
  let token = item / p.pairs;
  let turn = sin_cos_of(pair, positions[p.positions + token * p.positions0]);
  let to = p.y + token * p.y1 + pair;
  y[to] = turn.x;
  y[to + p.pairs] = turn.y;
}
