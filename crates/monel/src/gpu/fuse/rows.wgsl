// A workgroup a row. An invocation holds every THREADS-th quad of it.
const THREADS: u32 = $THREADSu;
const PARTS: u32 = $PARTSu;
fn norm_factor(v: array<vec4<f32>, $PARTS>, q0: u32, eps: f32, sg: u32, nsg: u32, lane: u32) -> f32 {
  var w = v;
  var squares = 0.0;
  for (var i = 0u; i < PARTS; i++) { if q0 + i * THREADS < p.quads { squares += dot(w[i], w[i]); } }
  let total = sum_all(squares, sg, nsg, lane);
  if total < 3e38 { return 1.0 / sqrt(total / f32(4u * p.quads) + eps); }
  // Numbers whose squares overflow are made smaller by a power of two.
  let unit = 1.0842022e-19;
  squares = 0.0;
  for (var i = 0u; i < PARTS; i++) {
    if q0 + i * THREADS < p.quads { let u = w[i] * unit; squares += dot(u, u); }
  }
  let smaller = sum_all(squares, sg, nsg, lane);
  return unit / sqrt(smaller / f32(4u * p.quads) + eps * unit * unit);
}
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(subgroup_id) sg: u32, @builtin(num_subgroups) nsg: u32,
        @builtin(subgroup_size) size: u32, @builtin(subgroup_invocation_id) lane: u32) {
  let r = group_of(wg);
  if r >= p.rows { return; }
  let row = r * p.quads;
  let q0 = sg * size + lane;
  var v: array<vec4<f32>, $PARTS>;
  var f = 0.0;
  for (var i = 0u; i < PARTS; i++) { v[i] = vec4<f32>(0.0); }
$BODY}
