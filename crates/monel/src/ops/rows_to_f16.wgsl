// A value an invocation, rounded to f16; what f16 cannot hold becomes its largest number.
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32) {
  let i = item_of(wg, li, $THREADSu);
  if i >= p.count { return; }
  y[p.y + i] = u16(f16_bits(clamp(x[p.x + i], -65504.0, 65504.0)));
}
