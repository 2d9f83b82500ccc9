// One workgroup a row: the root mean square norm, or with $CENTRED the layer norm.
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32,
        @builtin(subgroup_id) sg: u32, @builtin(num_subgroups) nsg: u32, @builtin(subgroup_invocation_id) lane: u32) {
  let r = group_of(wg);
  if r >= p.rows || p.n0 == 0u { return; }
  let at = split4(r, p.n1, p.n2, p.n3);
  let start = p.x + at.x * p.x1 + at.y * p.x2 + at.z * p.x3;
  let to = p.y + at.x * p.y1 + at.y * p.y2 + at.z * p.y3;
  var top = 0.0;
  for (var i = li; i < p.n0; i += $THREADSu) { top = max(top, abs(x[start + i])); }
  top = max_all(top, sg, nsg, lane);
  // Numbers whose squares overflow are made smaller by a power of two.
  let unit = select(1.0, 1.0842022e-19, top > 1e15);
  // The mean in two parts, as a large one has too few digits beside small differences. The differences to the first
  // part go through memory: compilers add the parts where they see both.
  var mean = 0.0;
  if $CENTRED {
    var sum = 0.0;
    for (var i = li; i < p.n0; i += $THREADSu) { sum += x[start + i] * unit; }
    let about = sum_all(sum, sg, nsg, lane) / f32(p.n0);
    sum = 0.0;
    for (var i = li; i < p.n0; i += $THREADSu) {
      y[to + i] = x[start + i] * unit - about;
      sum += y[to + i];
    }
    mean = sum_all(sum, sg, nsg, lane) / f32(p.n0);
  }
  var squares = 0.0;
  for (var i = li; i < p.n0; i += $THREADSu) { let v = $VALUE; squares += v * v; }
  squares = sum_all(squares, sg, nsg, lane) / f32(p.n0);
  let factor = 1.0 / sqrt(squares + p.eps * unit * unit);
  for (var i = li; i < p.n0; i += $THREADSu) {
    y[to + i] = ($VALUE) * factor$WEIGHT$BIAS;
  }
}
