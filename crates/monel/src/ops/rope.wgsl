// A pair of elements of one head an invocation, and the elements behind the turned part.
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32) {
  let item = item_of(wg, li, $THREADSu);
  if item >= p.count { return; }
  let at = split4(item, p.steps, p.n1, p.n2);
  let start = p.x + at.y * p.x1 + at.z * p.x2 + at.w * p.x3;
  let to = p.y + at.y * p.y1 + at.z * p.y2 + at.w * p.y3;
  if at.x >= p.pairs {
    let i = p.pairs + at.x;
    y[to + i] = x[start + i];
    return;
  }
  let turn = $TURN;
  let a = $FIRST;
  let b = $SECOND;
  let x0 = x[start + a];
  let x1 = x[start + b];
  y[to + a] = x0 * turn.y - x1 * turn.x;
  y[to + b] = x0 * turn.x + x1 * turn.y;
}
