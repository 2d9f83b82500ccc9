// Draws a token, after `order`: one workgroup.
//
// Candidates are ordered by their order number, then by index. What a step keeps is a beginning of that order, so it is
// told by the last candidate kept: (order, index). Beginnings are found by search over the bits of both: how many
// candidates, or how much weight, lies before. Sums of weights have 64 bits.
var<workgroup> words: array<u32, 256>;
var<workgroup> total: atomic<u32>;
fn sum_words(x: u32, li: u32) -> u32 {
  words[li] = x;
  workgroupBarrier();
  for (var step = 128u; step > 0u; step /= 2u) {
    if li < step { words[li] += words[li + step]; }
    workgroupBarrier();
  }
  let s = words[0];
  workgroupBarrier();
  return s;
}
fn sum_weights(x: u64, li: u32) -> u64 {
  // 20 bits and the rest: neither overflows over 256 invocations.
  let low = sum_words(u32(x) & 0xfffffu, li);
  return (u64(sum_words(u32(x >> 20u), li)) << 20u) + u64(low);
}
// 2^30 e^((x - largest) inverse), cut off to a whole number.
fn weight(order: u32, largest: f32, inverse: f32) -> u64 {
  let v = value_of(order);
  if v == largest { return u64(1073741824u); }
  return u64(u32(exp_f((v - largest) * inverse) * 1073741824.0));
}
// Candidate i of the list: its index.
fn listed(i: u32, full: bool) -> u32 {
  if full { return i; }
  return bitcast<u32>(scratch[p.scratch + p.n + i]);
}
fn order_at(i: u32) -> u32 { return bitcast<u32>(scratch[p.scratch + i]); }
// What lies before (order, index): how much weight (or how many, with `count`).
fn before(order: u32, index: u32, length: u32, full: bool, count: bool, largest: f32, inverse: f32, li: u32) -> u64 {
  var s = u64(0u);
  for (var i = li; i < length; i += 256u) {
    let j = listed(i, full);
    let o = order_at(j);
    if o > order || (o == order && j < index) {
      if count { s += u64(1u); } else { s += weight(o, largest, inverse); }
    }
  }
  return sum_weights(s, li);
}
// The last candidate before which less than `enough` lies: the order is found from its highest bit on, then the index.
// `enough` is at least 1.
fn find(enough: u64, length: u32, full: bool, count: bool, largest: f32, inverse: f32, li: u32) -> vec2<u32> {
  // The smallest order with less than `enough` before it.
  var order = 0u;
  if before(0u, 0u, length, full, count, largest, inverse, li) >= enough {
    var low = 0u;
    var high = 0xffffffffu;
    while high - low > 1u {
      let middle = low + (high - low) / 2u;
      if before(middle, 0u, length, full, count, largest, inverse, li) < enough { high = middle; } else { low = middle; }
    }
    order = high;
  }
  // Among the orders at or above it, the smallest that a candidate has.
  var least = 0xffffffffu;
  for (var i = li; i < length; i += 256u) {
    let o = order_at(listed(i, full));
    if o >= order { least = min(least, o); }
  }
  words[li] = least;
  workgroupBarrier();
  for (var step = 128u; step > 0u; step /= 2u) {
    if li < step { words[li] = min(words[li], words[li + step]); }
    workgroupBarrier();
  }
  order = words[0];
  workgroupBarrier();
  // Among its equals the largest index with less than `enough` before it; then the candidate there or before.
  var low = 0u;
  var high = p.n;
  while high - low > 1u {
    let middle = low + (high - low) / 2u;
    if before(order, middle, length, full, count, largest, inverse, li) < enough { low = middle; } else { high = middle; }
  }
  var place = 0u;
  for (var i = li; i < length; i += 256u) {
    let j = listed(i, full);
    if order_at(j) == order && j <= low { place = max(place, j + 1u); }
  }
  words[li] = place;
  workgroupBarrier();
  for (var step = 128u; step > 0u; step /= 2u) {
    if li < step { words[li] = max(words[li], words[li + step]); }
    workgroupBarrier();
  }
  place = words[0];
  workgroupBarrier();
  return vec2<u32>(order, place - 1u);
}
fn mul64(a: u32, b: u32) -> u64 { return u64(a) * u64(b); }
// The first word of Philox4x32-10 with the position as counter and the seed as key.
fn random(position: u32, seed_low: u32, seed_high: u32) -> u32 {
  var c = vec4<u32>(position, 0u, 0u, 0u);
  var key = vec2<u32>(seed_low, seed_high);
  for (var i = 0u; i < 10u; i++) {
    let a = mul64(c.x, 0xd2511f53u);
    let b = mul64(c.z, 0xcd9e8d57u);
    c = vec4<u32>(u32(b >> 32u) ^ c.y ^ key.x, u32(b), u32(a >> 32u) ^ c.w ^ key.y, u32(a));
    key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
  }
  return c.x;
}
@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) li: u32) {
  let temperature = params[p.params];
  let top_k = bitcast<u32>(params[p.params + 1u]);
  let top_p = params[p.params + 2u];
  let min_p = params[p.params + 3u];
  let inverse = params[p.params + 10u];
  let position = positions[p.positions];
  // The first candidate.
  var best = 0u;
  var nan = 0u;
  for (var i = li; i < p.n; i += 256u) {
    let o = order_at(i);
    best = max(best, o);
    if o == 0u { nan += 1u; }
  }
  nan = sum_words(nan, li);
  if nan > 0u {
    if li == 0u { fault(nan); y[p.y] = 0; }
    return;
  }
  words[li] = best;
  workgroupBarrier();
  for (var step = 128u; step > 0u; step /= 2u) {
    if li < step { words[li] = max(words[li], words[li + step]); }
    workgroupBarrier();
  }
  best = words[0];
  workgroupBarrier();
  var at = 0xffffffffu;
  for (var i = li; i < p.n; i += 256u) { if order_at(i) == best { at = min(at, i); } }
  words[li] = at;
  workgroupBarrier();
  for (var step = 128u; step > 0u; step /= 2u) {
    if li < step { words[li] = min(words[li], words[li + step]); }
    workgroupBarrier();
  }
  at = words[0];
  workgroupBarrier();
  let first = at;
  let kept_k = select(min(top_k, p.n), p.n, top_k == 0u);
  if !(temperature > 0.0) || kept_k == 1u {
    if li == 0u { y[p.y] = i32(first); }
    return;
  }
  let largest = value_of(best);
  var length = p.n;
  var full = true;
  if kept_k < p.n {
    let last = find(u64(kept_k), p.n, true, true, largest, 1.0, li);
    // The candidates kept, in a list: what follows looks at these alone.
    if li == 0u { atomicStore(&total, 0u); }
    workgroupBarrier();
    for (var i = li; i < p.n; i += 256u) {
      let o = order_at(i);
      if o > last.x || (o == last.x && i <= last.y) {
        scratch[p.scratch + p.n + atomicAdd(&total, 1u)] = bitcast<i32>(i);
      }
    }
    storageBarrier();
    workgroupBarrier();
    length = kept_k;
    full = false;
  }
  // The last candidate that is kept.
  var end = vec2<u32>(0u, 0xffffffffu);
  if top_p < 1.0 {
    let share = u64(u32(max(top_p, 0.0) * 16777216.0));
    let all = before(0u, 0u, length, full, false, largest, 1.0, li);
    // ceil(all share / 2^24), at least 1: the first stays
    let enough = (all >> 24u) * share + (((all & u64(0xffffffu)) * share + u64(0xffffffu)) >> 24u);
    end = find(max(enough, u64(1u)), length, full, false, largest, 1.0, li);
  }
  var least = u64(0u);
  if min_p > 0.0 { least = u64(u32(min(min_p * 1073741824.0, 4294967040.0))); }
  // The sum of what is left, and the draw.
  var sum = u64(0u);
  for (var i = li; i < length; i += 256u) {
    let j = listed(i, full);
    let o = order_at(j);
    let inside = o > end.x || (o == end.x && j <= end.y);
    if inside && (j == first || weight(o, largest, 1.0) >= least) { sum += weight(o, largest, inverse); }
  }
  sum = sum_weights(sum, li);
  let r = random(bitcast<u32>(position), bitcast<u32>(params[p.params + 8u]), bitcast<u32>(params[p.params + 9u]));
  let left = (u64(r) * (sum >> 16u) + ((u64(r) * (sum & u64(0xffffu))) >> 16u)) >> 16u;
  // What is kept is a beginning, and everything in it counts, so the candidate is found among all listed ones.
  let drawn = find(left + u64(1u), length, full, false, largest, inverse, li);
  if li == 0u { y[p.y] = i32(drawn.y); }
}
