// One workgroup a row: the indices of the k largest elements, in any order; `top_k_sort` puts them in order.
//
// The key of an element is its order number, then the complement of its index: no two are equal. The k-th largest key
// is found digit by digit, eight bits at a time; what is not below it goes into the result.
var<workgroup> bins: array<atomic<u32>, 256>;
var<workgroup> total: atomic<u32>;
var<workgroup> chosen: vec2<u32>;
fn order_at(i: u32) -> u32 { return order_of(x[i]); }
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32) {
  let r = group_of(wg);
  if r >= p.rows { return; }
  let at = split4(r, p.n1, p.n2, p.n3);
  let start = p.x + at.x * p.x1 + at.y * p.x2 + at.z * p.x3;
  let to = p.y + at.x * p.y1 + at.y * p.y2 + at.z * p.y3;
  // What is known of the k-th largest key, and how many are still to be counted off among those that begin with it.
  var known = vec2<u32>(0u, 0u);
  var mask = vec2<u32>(0u, 0u);
  var left = p.k;
  for (var digit = 0u; digit < 8u; digit++) {
    atomicStore(&bins[li], 0u);
    workgroupBarrier();
    let low = digit >= 4u;
    let shift = 24u - 8u * (digit & 3u);
    for (var i = li; i < p.n0; i += 256u) {
      let key = vec2<u32>(order_at(start + i), ~i);
      if (key.x & mask.x) == known.x && (key.y & mask.y) == known.y {
        atomicAdd(&bins[(select(key.x, key.y, low) >> shift) & 255u], 1u);
      }
    }
    workgroupBarrier();
    if li == 0u {
      var b = 255u;
      var above = 0u;
      loop {
        let here = atomicLoad(&bins[b]);
        if above + here >= left || b == 0u { break; }
        above += here;
        b -= 1u;
      }
      chosen = vec2<u32>(b, above);
    }
    workgroupBarrier();
    let found = chosen;
    left -= found.y;
    if low {
      known.y |= found.x << shift;
      mask.y |= 255u << shift;
    } else {
      known.x |= found.x << shift;
      mask.x |= 255u << shift;
    }
  }
  if li == 0u { atomicStore(&total, 0u); }
  workgroupBarrier();
  for (var i = li; i < p.n0; i += 256u) {
    let o = order_at(start + i);
    if o > known.x || (o == known.x && ~i >= known.y) {
      atomicStore(&y[to + atomicAdd(&total, 1u)], i32(i));
    }
  }
}
