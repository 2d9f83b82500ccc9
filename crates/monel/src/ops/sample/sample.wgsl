// Draws a token, after `order` and `collect`: one workgroup.
//
// Candidates are ordered by their order number, then by index. Where few of them count, `collect` has listed them, and
// they are sorted. Else: what a step keeps is a beginning of that order, so it is told by the last candidate kept,
// (order, index). It is found digit by digit: how many candidates, or how much weight, have each value of a digit. Sums
// of weights have 64 bits.
var<workgroup> words: array<u32, 256>;
var<workgroup> pairs: array<vec2<u32>, 256>;
var<workgroup> total: atomic<u32>;
var<workgroup> low_sums: array<atomic<u32>, 256>;
var<workgroup> high_sums: array<atomic<u32>, 256>;
var<workgroup> chosen: vec3<u32>;
var<workgroup> orders: array<u32, $FEW>;
var<workgroup> places: array<u32, $FEW>;
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
fn max_words(x: u32, li: u32) -> u32 {
  words[li] = x;
  workgroupBarrier();
  for (var step = 128u; step > 0u; step /= 2u) {
    if li < step { words[li] = max(words[li], words[li + step]); }
    workgroupBarrier();
  }
  let s = words[0];
  workgroupBarrier();
  return s;
}
fn min_words(x: u32, li: u32) -> u32 { return ~max_words(~x, li); }
fn sum_pairs(x: vec2<u32>, li: u32) -> vec2<u32> {
  pairs[li] = x;
  workgroupBarrier();
  for (var step = 128u; step > 0u; step /= 2u) {
    if li < step { pairs[li] = add64(pairs[li], pairs[li + step]); }
    workgroupBarrier();
  }
  let s = pairs[0];
  workgroupBarrier();
  return s;
}
// 2^30 e^((x - largest) inverse), cut off to a whole number.
fn weight(order: u32, largest: f32, inverse: f32) -> u32 {
  let v = value_of(order);
  if v == largest { return 1073741824u; }
  return u32(exp_f((v - largest) * inverse) * 1073741824.0);
}
// Candidate i of the list: its index.
fn listed(i: u32, full: bool) -> u32 {
  if full { return i; }
  return u32(atomicLoad(&scratch[p.scratch + p.n + i]));
}
fn order_at(i: u32) -> u32 { return u32(atomicLoad(&scratch[p.scratch + i])); }
fn head(i: u32) -> u32 { return u32(atomicLoad(&scratch[p.scratch + p.heads + i])); }
// What all listed candidates weigh.
fn weigh(length: u32, full: bool, largest: f32, inverse: f32, li: u32) -> vec2<u32> {
  var s = vec2<u32>(0u, 0u);
  for (var i = li; i < length; i += 256u) {
    s = add64(s, vec2<u32>(weight(order_at(listed(i, full)), largest, inverse), 0u));
  }
  return sum_pairs(s, li);
}
// The first candidate with which `enough` is reached, counting candidates or adding their weights: its order is found
// eight bits at a time, then its index. `enough` is at least 1 and not more than there is.
fn find(enough: vec2<u32>, length: u32, full: bool, count: bool, largest: f32, inverse: f32, li: u32) -> vec2<u32> {
  var known = vec2<u32>(0u, 0u);
  var mask = vec2<u32>(0u, 0u);
  var left = enough;
  for (var digit = 0u; digit < 8u; digit++) {
    atomicStore(&low_sums[li], 0u);
    atomicStore(&high_sums[li], 0u);
    workgroupBarrier();
    let second = digit >= 4u;
    let shift = 24u - 8u * (digit & 3u);
    for (var i = li; i < length; i += 256u) {
      let j = listed(i, full);
      // Larger keys come first.
      let key = vec2<u32>(order_at(j), ~j);
      if (key.x & mask.x) == known.x && (key.y & mask.y) == known.y {
        let bin = (select(key.x, key.y, second) >> shift) & 255u;
        var w = 1u;
        if !count { w = weight(key.x, largest, inverse); }
        let before = atomicAdd(&low_sums[bin], w);
        if before + w < before { atomicAdd(&high_sums[bin], 1u); }
      }
    }
    workgroupBarrier();
    if li == 0u {
      var bin = 255u;
      var rest = left;
      loop {
        let here = vec2<u32>(atomicLoad(&low_sums[bin]), atomicLoad(&high_sums[bin]));
        if !less64(here, rest) || bin == 0u { break; }
        rest = add64(rest, vec2<u32>(~here.x, ~here.y));
        rest = add64(rest, vec2<u32>(1u, 0u));
        bin -= 1u;
      }
      chosen = vec3<u32>(bin, rest);
    }
    workgroupBarrier();
    let found = chosen;
    workgroupBarrier();
    left = found.yz;
    if second {
      known.y |= found.x << shift;
      mask.y |= 255u << shift;
    } else {
      known.x |= found.x << shift;
      mask.x |= 255u << shift;
    }
  }
  return vec2<u32>(known.x, ~known.y);
}
// ceil(all share / 2^24), at least 1: the first candidate stays.
fn part_of(all: vec2<u32>, share: u32) -> vec2<u32> {
  let high = mul32((all.x >> 24u) | (all.y << 8u), share);
  let low = add64(mul32(all.x & 0xffffffu, share), vec2<u32>(0xffffffu, 0u));
  let sum = add64(high, vec2<u32>((low.x >> 24u) | (low.y << 8u), low.y >> 24u));
  return select(sum, vec2<u32>(1u, 0u), all_zero(sum));
}
fn all_zero(v: vec2<u32>) -> bool { return (v.x | v.y) == 0u; }
// Puts the candidate that comes first at `a`. Places from `count` on stand for what comes last.
fn settle(a: u32, b: u32, count: u32) {
  if b >= count { return; }
  let oa = orders[a];
  let ob = orders[b];
  if ob > oa || (ob == oa && places[b] < places[a]) {
    orders[a] = ob;
    orders[b] = oa;
    let place = places[a];
    places[a] = places[b];
    places[b] = place;
  }
}
// (r sum) / 2^32: what lies before the candidate to draw.
fn drawn_at(r: u32, sum: vec2<u32>) -> vec2<u32> {
  return add64(mul32(r, sum.y), vec2<u32>(mul32(r, sum.x).y, 0u));
}
// The first word of Philox4x32-10 with the position as counter and the seed as key.
fn random(position: u32, seed_low: u32, seed_high: u32) -> u32 {
  var c = vec4<u32>(position, 0u, 0u, 0u);
  var key = vec2<u32>(seed_low, seed_high);
  for (var i = 0u; i < 10u; i++) {
    let a = mul32(c.x, 0xd2511f53u);
    let b = mul32(c.z, 0xcd9e8d57u);
    c = vec4<u32>(b.y ^ c.y ^ key.x, b.x, a.y ^ c.w ^ key.y, a.x);
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
  // NaN, and the first candidate: the pieces' heads say where to look.
  let filled = li < p.pieces;
  var most = 0u;
  var nan = 0u;
  if filled {
    most = head(2u * li);
    nan = head(2u * li + 1u);
  }
  nan = sum_words(nan, li);
  if nan > 0u {
    if li == 0u { fault(nan); y[p.y] = 0; }
    return;
  }
  let best = max_words(most, li);
  let piece = min_words(select(0xffffffffu, li, filled && most == best), li);
  var at = 0xffffffffu;
  for (var i = piece * p.piece + li; i < min((piece + 1u) * p.piece, p.n); i += 256u) {
    if order_at(i) == best { at = min(at, i); }
  }
  let first = min_words(at, li);
  let kept_k = select(min(top_k, p.n), p.n, top_k == 0u);
  if !(temperature > 0.0) || kept_k == 1u {
    if li == 0u { y[p.y] = i32(first); }
    return;
  }
  let largest = value_of(best);
  let share = u32(max(top_p, 0.0) * 16777216.0);
  var least = 0u;
  if min_p > 0.0 { least = u32(min(min_p * 1073741824.0, 4294967040.0)); }
  let r = random(bitcast<u32>(position), bitcast<u32>(params[p.params + 8u]), bitcast<u32>(params[p.params + 9u]));
  let count = head(512u);
  if kept_k <= $FEWu && count <= $FEWu {
    // The listed ones in order.
    for (var i = li; i < count; i += 256u) {
      let j = listed(i, false);
      places[i] = j;
      orders[i] = order_at(j);
    }
    workgroupBarrier();
    for (var size = 2u; size < 2u * count; size *= 2u) {
      let middle = size / 2u;
      for (var i = li; i < $FEWu / 2u; i += 256u) {
        let start = i / middle * size;
        settle(start + i % middle, start + size - 1u - i % middle, count);
      }
      workgroupBarrier();
      for (var d = middle / 2u; d > 0u; d /= 2u) {
        for (var i = li; i < $FEWu / 2u; i += 256u) {
          let a = i / d * 2u * d + i % d;
          settle(a, a + d, count);
        }
        workgroupBarrier();
      }
    }
    if li != 0u { return; }
    var kept = kept_k;
    if top_p < 1.0 {
      var all = vec2<u32>(0u, 0u);
      for (var i = 0u; i < kept_k; i++) { all = add64(all, vec2<u32>(weight(orders[i], largest, 1.0), 0u)); }
      let enough = part_of(all, share);
      var sum = vec2<u32>(0u, 0u);
      kept = 0u;
      while kept < kept_k && less64(sum, enough) {
        sum = add64(sum, vec2<u32>(weight(orders[kept], largest, 1.0), 0u));
        kept += 1u;
      }
    }
    if least > 0u {
      var n = 1u;
      while n < kept && weight(orders[n], largest, 1.0) >= least { n += 1u; }
      kept = n;
    }
    var sum = vec2<u32>(0u, 0u);
    for (var i = 0u; i < kept; i++) { sum = add64(sum, vec2<u32>(weight(orders[i], largest, inverse), 0u)); }
    let left = drawn_at(r, sum);
    sum = vec2<u32>(weight(orders[0], largest, inverse), 0u);
    var drawn = 0u;
    while drawn + 1u < kept && !less64(left, sum) {
      drawn += 1u;
      sum = add64(sum, vec2<u32>(weight(orders[drawn], largest, inverse), 0u));
    }
    y[p.y] = i32(places[drawn]);
    return;
  }
  var length = p.n;
  var full = true;
  if kept_k < p.n {
    let last = find(vec2<u32>(kept_k, 0u), p.n, true, true, largest, 1.0, li);
    // The candidates kept, in a list: what follows looks at these alone.
    if li == 0u { atomicStore(&total, 0u); }
    workgroupBarrier();
    for (var i = li; i < p.n; i += 256u) {
      let o = order_at(i);
      if o > last.x || (o == last.x && i <= last.y) {
        atomicStore(&scratch[p.scratch + p.n + atomicAdd(&total, 1u)], i32(i));
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
    let all = weigh(length, full, largest, 1.0, li);
    end = find(part_of(all, share), length, full, false, largest, 1.0, li);
  }
  // The sum of what is left, and the draw.
  var sum = vec2<u32>(0u, 0u);
  for (var i = li; i < length; i += 256u) {
    let j = listed(i, full);
    let o = order_at(j);
    let inside = o > end.x || (o == end.x && j <= end.y);
    if inside && (j == first || weight(o, largest, 1.0) >= least) {
      sum = add64(sum, vec2<u32>(weight(o, largest, inverse), 0u));
    }
  }
  sum = sum_pairs(sum, li);
  // What is kept is a beginning, and everything in it counts, so the candidate is found among all listed ones.
  let left = add64(drawn_at(r, sum), vec2<u32>(1u, 0u));
  let drawn = find(left, length, full, false, largest, inverse, li);
  if li == 0u { y[p.y] = i32(drawn.y); }
}
