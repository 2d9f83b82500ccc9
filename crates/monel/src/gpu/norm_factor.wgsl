// A workgroup has a row in registers: an invocation holds every THREADS-th quad of it, from quad q0 on. One over the root
// mean square of the row.
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
