// A workgroup a row.
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
