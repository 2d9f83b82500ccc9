// Parts of the cells that workgroups leave for the last of them. What they leave is `@coherent`, and a workgroup counts
// itself between two storage barriers, so that whoever counts all of them sees all of it.
var<workgroup> arrived: u32;
fn is_last(counter: u32, used: u32, li: u32) -> bool {
  storageBarrier();
  if li == 0u { arrived = atomicAdd(&counters[counter], 1u) + 1u; }
  if workgroupUniformLoad(&arrived) != used { return false; }
  storageBarrier();
  // For whoever uses it next.
  if li == 0u { atomicStore(&counters[counter], 0u); }
  return true;
}
// Elements 4d .. 4d + 3 of a head's result from its parts at `at`: $SIDE invocations take every $SIDE-th part each, and the
// one with `nth` zero gets the result. A part without cells has a total of zero.
fn combined(at: u32, head: u32, d: u32, nth: u32, used: u32, li: u32) -> vec4<f32> {
  var top = -1e30;
  var total = 0.0;
  var sum = vec4<f32>(0.0);
  for (var part = nth; part < used; part += $STRIDEu) {
    // All of a round are asked for before any is used.
    $COLLECT
  }
  if $SIDEu > 1u {
    if nth < $SIDEu {
      sums[li] = sum;
      if d == 0u {
        tops[nth * $HEADSu + head] = top;
        totals[nth * $HEADSu + head] = total;
      }
    }
    workgroupBarrier();
    if nth == 0u {
      var highest = top;
      for (var s = 1u; s < $SIDEu; s++) { highest = max(highest, tops[s * $HEADSu + head]); }
      let weight = exp2(top - highest);
      sum *= weight;
      total *= weight;
      for (var s = 1u; s < $SIDEu; s++) {
        let weight = exp2(tops[s * $HEADSu + head] - highest);
        sum += weight * sums[s * $ACROSSu + li];
        total += weight * totals[s * $HEADSu + head];
      }
    }
  }
  return sum * select(1.0 / total, 0.0, total == 0.0);
}
