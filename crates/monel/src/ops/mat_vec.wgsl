// A few columns. $LANES neighbouring invocations make $AT_ONCE rows of the result at a time, each a share of the sums.
$SHARED
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(subgroup_id) sg: u32, @builtin(num_subgroups) nsg: u32,
        @builtin(subgroup_size) size: u32, @builtin(subgroup_invocation_id) lane: u32) {
  let thread = sg * size + lane;
  $BEFORE
  let inner = thread % $LANESu;
  for (var r = thread / $LANESu * $AT_ONCEu; r < $ROWSu; r += $THREADSu / $LANESu * $AT_ONCEu) {
    let first = group_of(wg) * $ROWSu + r;
    $PRODUCT
    // Every lane has all sums now; each finishes some.
    for (var j = inner; j < $AT_ONCEu * $COLSu; j += $LANESu) {
      let c = j / $AT_ONCEu;
      let row = first + j % $AT_ONCEu;
      if row < p.n {
        $SUM
        $EPILOGUE
        $STORE
      }
    }
  }
  $QUANTIZE
}
