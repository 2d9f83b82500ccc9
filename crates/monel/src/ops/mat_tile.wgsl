// Many columns with cooperative matrices: a workgroup makes $BM columns by $BN rows of the result, in steps of 64 along k.
// Tiles lie in workgroup memory as f16, eight values to a word of sixteen bytes, rows nine words apart so that neighbours
// do not meet in one bank. While a step is multiplied, the next one is on its way into registers.
alias MA = coop_mat16x16<f16, A>;
alias MB = coop_mat16x16<f16, B>;
alias MC = coop_mat16x16<f32, C>;
var<workgroup> xs: array<vec4<u32>, $XS>;
var<workgroup> ws: array<vec4<u32>, $WS>;
var<workgroup> edge: array<f32, $EDGE>;
// What an invocation copies of a matrix that was stored to workgroup memory.
fn copy_edge(mine: u32, lane: u32, size: u32, col0: u32, row0: u32) {
  for (var e = lane; e < 256u; e += size) {
    let col = col0 + e / 16u;
    let r = row0 + e % 16u;
    if col < p.m && r < p.n { y[p.y + col * p.n + r] = edge[mine + e]; }
  }
}
@compute @workgroup_size($THREADS)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(subgroup_id) sg: u32, @builtin(subgroup_size) size: u32,
        @builtin(subgroup_invocation_id) lane: u32) {
  let li = sg * size + lane;
  let tile = wg.x + wg.y * 32768u;
  // Workgroups behind the last tile repeat its loads and store nothing.
  // Tiles of the same weights follow each other, so that the cache serves all but one of them.
  let m0 = (tile % p.tiles_m) * $BMu;
  let n0 = (tile / p.tiles_m) * $BNu;
  let wm = (sg % $ACROSSu) * $WMu;
  let wn = (sg / $ACROSSu) * $WNu;
  // Loading: an invocation takes 32 weights and four words of x in each step.
  let x_row = li / 8u;
  let x_word = li % 8u;
  let x_words = p.k / 8u;
  $FIND_W
  var fetched: array<vec4<u32>, 4>;
  $SUMS
  let steps = (p.k + 63u) / 64u;
  var word = min(x_word, x_words - 1u);
  var group = min(li % 2u, p.k / 32u - 1u);
  $FETCH_W
  for (var i = 0u; i < 4u; i++) {
    fetched[i] = x4[p.x4 + min(m0 + x_row + i * $XROWSu, p.m - 1u) * x_words + word];
  }
  for (var s = 0u; s < steps; s++) {
    // Behind the end of k there are zeros on one side; behind the last row and column is what nobody stores.
    let inside = s * 64u + x_word * 8u < p.k;
    for (var i = 0u; i < 4u; i++) {
      xs[(x_row + i * $XROWSu) * 9u + x_word] = select(vec4<u32>(0u), fetched[i], inside);
    }
    $STORE_W
    workgroupBarrier();
    if s + 1u < steps {
      word = min((s + 1u) * 8u + x_word, x_words - 1u);
      group = min((s + 1u) * 2u + li % 2u, p.k / 32u - 1u);
      $FETCH_W
      for (var i = 0u; i < 4u; i++) {
        fetched[i] = x4[p.x4 + min(m0 + x_row + i * $XROWSu, p.m - 1u) * x_words + word];
      }
    }
    for (var k = 0u; k < 4u; k++) {
      $LOAD_A
      $MULTIPLY
    }
    workgroupBarrier();
  }
  let stride = p.n;
  if m0 + $BMu <= p.m && n0 + $BNu <= p.n {
    $STORE_WHOLE
  } else {
    // At the edges by way of workgroup memory, as a matrix is stored whole.
    let mine = sg * 256u;
    let sixteen = 16u;
    $STORE_EDGE
  }
}
