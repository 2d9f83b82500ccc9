// Four values an invocation, a block of 32 by eight neighbours: they share its largest value through the subgroup.
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(subgroup_id) sg: u32, @builtin(subgroup_size) size: u32,
        @builtin(subgroup_invocation_id) lane: u32) {
  let item = group_of(wg) * $THREADSu + sg * size + lane;
  let block = item / 8u;
  let part = item % 8u;
  // Everybody takes part in the shuffles; those behind the end look at the last block again.
  let at = split4(min(block, p.count - 1u), p.blocks, p.n1, p.n2);
  let i = p.x + at.x * 32u + part * 4u + at.y * p.x1 + at.z * p.x2 + at.w * p.x3;
  let v = vec4<f32>(x[i], x[i + 1u], x[i + 2u], x[i + 3u]);
  let q = quantize_block(v);
  if block >= p.count { return; }
  let row = p.y + at.y * p.y1 + at.z * p.y2 + at.w * p.y3;
  y[row + at.x * 8u + part] = q.code;
  let to = row + p.blocks * 8u + at.x * 2u;
  if part == 0u {
    y[to] = bitcast<u32>(q.d);
    y[to + 1u] = bitcast<u32>(q.sum);
  }
  // What fills the row up to sixteen bytes.
  if part == 1u && (p.blocks & 1u) == 1u && at.x + 1u == p.blocks { y[to + 2u] = 0u; y[to + 3u] = 0u; }
}
