// The row in registers, its norm, and what products read into the workgroup's memory.
fn norm_column(thread: u32, sg: u32, nsg: u32, lane: u32) {
  var v: array<vec4<f32>, $PARTS>;
  // Weights are asked for together with the row: behind the sum they would be waited for once more.
  $WEIGHTS
  for (var i = 0u; i < PARTS; i++) {
    let q = thread + i * THREADS;
    v[i] = vec4<f32>(0.0);
    if q < p.quads { v[i] = x[p.x + q]; $ASK }
  }
  let f = norm_factor(v, thread, p.eps, sg, nsg, lane);
  for (var i = 0u; i < PARTS; i++) {
    let q = thread + i * THREADS;
    if q < p.quads { v[i] = v[i] * f $WEIGHT; }
    $KEEP
  }
  workgroupBarrier();
}
