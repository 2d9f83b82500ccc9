// A workgroup takes one row of one token: a head of q or k through norm and rotation, or a head of v. Keys and values go
// to their cells; of tokens with one position the last is written.
const THREADS: u32 = $THREADSu;
const HEAD: u32 = $HEADu;
const PAIRS: u32 = $PAIRSu;
var<workgroup> later: atomic<u32>;
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32, @builtin(subgroup_id) sg: u32,
        @builtin(num_subgroups) nsg: u32, @builtin(subgroup_invocation_id) lane: u32) {
  let token = wg.y;
  let position = positions[p.positions + token * $STEPu];
  if wg.x < $HEADSu {
    let at = p.q + wg.x * p.q_head + token * p.q_token;
    let to = p.y + wg.x * p.y_head + token * p.y_token;
    $NORM_Q
    for (var pair = li; pair < PAIRS; pair += THREADS) {
      let turn = known_sin_cos(pair, token);
      let a = $FIRST; let b = $SECOND;
      var i = a; let x0 = $LOAD_Q;
      i = b; let x1 = $LOAD_Q;
      y[to + a] = x0 * turn.y - x1 * turn.x;
      y[to + b] = x0 * turn.x + x1 * turn.y;
    }
    for (var i = 2u * PAIRS + li; i < HEAD; i += THREADS) { y[to + i] = $LOAD_Q; }
    return;
  }
  let cell = u32(position);
  if li == 0u { atomicStore(&later, 0u); }
  workgroupBarrier();
  for (var j = token + 1u + li; j < p.tokens; j += THREADS) {
    if positions[p.positions + j * $STEPu] == position { atomicStore(&later, 1u); }
  }
  workgroupBarrier();
  if cell >= p.cells {
    if li == 0u { fault(cell); }
    return;
  }
  if atomicLoad(&later) != 0u { return; }
  if wg.x < $HEADSu + $KV_HEADSu {
    let head = wg.x - $HEADSu;
    let at = p.k + head * p.k_head + token * p.k_token;
    let to = p.keys + head * p.keys_head + cell * p.keys_token;
    $NORM_K
    for (var pair = li; pair < PAIRS; pair += THREADS) {
      let turn = known_sin_cos(pair, token);
      let a = $FIRST; let b = $SECOND;
      var i = a; let x0 = $LOAD_K;
      i = b; let x1 = $LOAD_K;
      keys[to + a] = u16(f16_bits(x0 * turn.y - x1 * turn.x));
      keys[to + b] = u16(f16_bits(x0 * turn.x + x1 * turn.y));
    }
    for (var i = 2u * PAIRS + li; i < HEAD; i += THREADS) { keys[to + i] = u16(f16_bits($LOAD_K)); }
    return;
  }
  let head = wg.x - $HEADSu - $KV_HEADSu;
  let at = p.v + head * p.v_head + token * p.v_token;
  let to = p.values + head * p.values_head + cell * p.values_token;
  for (var i = li; i < $VALUEu; i += THREADS) { values[to + i] = u16(f16_bits(v[at + i])); }
}
