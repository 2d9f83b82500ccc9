// Many columns in tiles of f16: a workgroup makes $ROWS rows (of the weights) by $COLS columns of the result, in steps of
// $STEP along k. What the next step needs is on its way from memory while this one is multiplied. Both tiles hold vectors
// of eight f16; their rows are $LINE vectors apart, one more than they need, so that eight rows lie in different banks.
var<workgroup> ws: array<vec4<u32>, $WTILE>;
var<workgroup> xs: array<vec4<u32>, $XTILE>;
// Whether a column of this workgroup is scaled.
var<workgroup> scaled: u32;
// Element (row, col) of the result.
fn put(row: u32, col: u32, columns: u32, to: u32, sum: f32) {
  if row < p.n && col < p.m {
    var v = $SUM;
    $EPILOGUE
    y[to + row * p.y0 + col * p.y1] = v;
  }
}
$DECLARE
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32,
        @builtin(subgroup_id) sg: u32, @builtin(subgroup_invocation_id) lane: u32) {
  // Tiles of columns change fastest: those that run together share rows of the weights.
  let row0 = wg.y * $ROWSu;
  let col0 = wg.x * $COLSu;
  let batch = vec2<u32>(wg.z % p.b2, wg.z / p.b2);
  let w_at = p.w + (batch.x / p.share2) * p.w2 + (batch.y / p.share3) * p.w3;
  let columns = wg.z * p.m;
  let to = p.y + batch.x * p.y2 + batch.y * p.y3;
  if li == 0u { scaled = 0u; }
  $BEGIN
  for (var step = 0u; step < p.steps; step++) {
    $STORE
    workgroupBarrier();
    if step + 1u < p.steps {
      let next = step + 1u;
      $NEXT
    }
    $MULTIPLY
    workgroupBarrier();
  }
  $END
}
