// Steps of a bitonic sort of rows of k indices: larger elements first, lower indices first among equals, NaN last. The
// first step of a round is mirrored, so that all comparisons point the same way. Places from k on stand for what comes
// last.
//
// With `size` 0 a workgroup sorts $CHUNK places by itself; with `inner` it ends a round within its places; else an
// invocation does one comparison of a step between places `distance` apart, or mirrored within `size`.
fn order_at(i: u32) -> u32 { return order_of(x[i]); }
fn settle(start: u32, to: u32, a: u32, b: u32) {
  if b >= p.k { return; }
  let ia = atomicLoad(&y[to + a]);
  let ib = atomicLoad(&y[to + b]);
  let oa = order_at(start + u32(ia));
  let ob = order_at(start + u32(ib));
  if ob > oa || (ob == oa && ib < ia) {
    atomicStore(&y[to + a], ib);
    atomicStore(&y[to + b], ia);
  }
}
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32) {
  let group = group_of(wg);
  if group >= p.groups { return; }
  let r = group / p.parts;
  let part = group % p.parts;
  let at = split4(r, p.n1, p.n2, p.n3);
  let start = p.x + at.x * p.x1 + at.y * p.x2 + at.z * p.x3;
  let to = p.y + at.x * p.y1 + at.y * p.y2 + at.z * p.y3;
  if p.size != 0u {
    let i = part * 256u + li;
    if p.distance == 0u {
      let middle = p.size / 2u;
      let first = i / middle * p.size;
      settle(start, to, first + i % middle, first + p.size - 1u - i % middle);
    } else {
      let a = i / p.distance * 2u * p.distance + i % p.distance;
      settle(start, to, a, a + p.distance);
    }
    return;
  }
  let own = part * $CHUNKu;
  var size = select(2u, $CHUNKu * 2u, p.inner == 1u);
  loop {
    let middle = min(size / 2u, $CHUNKu);
    if size <= $CHUNKu {
      for (var i = li; i < $CHUNKu / 2u; i += 256u) {
        let first = own + i / middle * size;
        settle(start, to, first + i % middle, first + size - 1u - i % middle);
      }
      storageBarrier();
      workgroupBarrier();
    }
    for (var d = middle / 2u; d > 0u; d /= 2u) {
      for (var i = li; i < $CHUNKu / 2u; i += 256u) {
        let a = own + i / d * 2u * d + i % d;
        settle(start, to, a, a + d);
      }
      storageBarrier();
      workgroupBarrier();
    }
    size *= 2u;
    if size > $CHUNKu || size / 2u >= p.k { break; }
  }
}
