// One workgroup a piece: the candidates that may be among the k first, where k is small, go into the list behind the
// orders. The k-th largest of the pieces' largest is a bound: at least k candidates are not below it.
var<workgroup> heads: array<u32, 256>;
var<workgroup> bound: u32;
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32) {
  let piece = group_of(wg);
  let top_k = bitcast<u32>(params[p.params + 1u]);
  let k = select(min(top_k, p.n), p.n, top_k == 0u);
  if !(params[p.params] > 0.0) || k == 1u || k > $FEWu { return; }
  heads[li] = 0u;
  if li < p.pieces { heads[li] = u32(atomicLoad(&scratch[p.scratch + p.heads + 2u * li])); }
  if li == 0u { bound = 0u; }
  workgroupBarrier();
  let mine = heads[li];
  var before = 0u;
  for (var i = 0u; i < p.pieces; i++) {
    if heads[i] > mine || (heads[i] == mine && i < li) { before += 1u; }
  }
  if before + 1u == k && li < p.pieces { bound = mine; }
  workgroupBarrier();
  let least = bound;
  if heads[piece] < least { return; }
  for (var i = piece * p.piece + li; i < min((piece + 1u) * p.piece, p.n); i += 256u) {
    if u32(atomicLoad(&scratch[p.scratch + i])) >= least {
      let place = u32(atomicAdd(&scratch[p.scratch + p.heads + 512u], 1));
      if place < min($FEWu, p.n) { atomicStore(&scratch[p.scratch + p.n + place], i32(i)); }
    }
  }
}
