// Two values an invocation, rounded to f16; what f16 cannot hold becomes its largest number.
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32) {
  let i = item_of(wg, li, $THREADSu);
  if i >= p.count { return; }
  let a = clamp(x[p.x + 2u * i], -65504.0, 65504.0);
  let b = clamp(x[p.x + 2u * i + 1u], -65504.0, 65504.0);
  y[p.y + i] = f16_bits(a) | (f16_bits(b) << 16u);
}
