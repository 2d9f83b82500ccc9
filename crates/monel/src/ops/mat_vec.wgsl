// A few columns: $LANES neighbouring invocations make one row of the result at a time, each a share of the sum.
$SHARED
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(subgroup_id) sg: u32, @builtin(subgroup_size) size: u32,
        @builtin(subgroup_invocation_id) lane: u32) {
  let thread = sg * size + lane;
  let inner = thread % $LANESu;
  let first = group_of(wg) * $ROWSu + thread / $LANESu;
  for (var r = 0u; r < $ROWSu; r += $THREADSu / $LANESu) {
    let row = first + r;
    var sum: array<f32, $COLS>;
    for (var c = 0u; c < $COLSu; c++) { sum[c] = 0.0; }
    $SECOND_SUM
    if row < p.n {
      $PRODUCT
    }
    for (var o = $LANESu / 2u; o > 0u; o /= 2u) {
      for (var c = 0u; c < $COLSu; c++) { sum[c] += subgroupShuffleXor(sum[c], o); }
      $SECOND_REDUCE
    }
    if inner == 0u && row < p.n {
      for (var c = 0u; c < $COLSu; c++) {
        var v = sum[c];
        $EPILOGUE
        $STORE
      }
    }
  }
  $QUANTIZE
}
