// Blocks to planes: a group of 32 values an invocation, as whole words.
fn word(byte: u32) -> u32 { return u32(x[byte / 2u]) | (u32(x[byte / 2u + 1u]) << 16u); }
fn nibbles(byte: u32, shift: u32) -> u32 {
  return ((word(byte) >> shift) & 0x0f0f0f0fu) | (((word(byte + 16u) >> shift) & 0x0f0f0f0fu) << 4u);
}
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32) {
  let item = item_of(wg, li, $THREADSu);
  if item >= p.count { return; }
  let at = split4(item, p.groups, p.n1, p.n2);
  let g = at.x;
  let row = p.x + at.y * p.x1 + at.z * p.x2 + at.w * p.x3;
  let to = p.y + at.y * p.y1 + at.z * p.y2 + at.w * p.y3;
  // The group's block in sixteen-bit words, its bytes, and its number in the block.
  let block = row + (g / $PERu) * $UNITSu;
  let b = 2u * block;
  let s = g % $PERu;
  for (var w = 0u; w < $CODESu; w++) { y[to + g * $CODESu + w] = $CODE; }
  let high = to + p.groups * $CODESu;
  $HIGH
  let scales = high + p.groups * $HIGHSu;
  $SCALES
  // What fills the row up to sixteen bytes.
  if g == 0u { for (var i = to + p.used; i < to + p.row; i++) { y[i] = 0u; } }
}
