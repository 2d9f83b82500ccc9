// A few columns. $SETS times $LANES neighbouring invocations make $AT_ONCE rows of the result at a time, each a share of the
// sums.
$SHARED
$MET
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(subgroup_id) sg: u32, @builtin(num_subgroups) nsg: u32,
        @builtin(subgroup_size) size: u32, @builtin(subgroup_invocation_id) lane: u32) {
  let thread = sg * size + lane;
  $BEFORE
  let inner = thread % $LANESu;
  let part = thread / $LANESu % $SETSu;
  $ROUNDS
    let first = group_of(wg) * $ROWSu + r;
    $PRODUCT
    // Every lane of the first set has all sums now; each finishes some.
    for (var j = inner; part == 0u && j < $AT_ONCEu * $COLSu; j += $LANESu) {
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
