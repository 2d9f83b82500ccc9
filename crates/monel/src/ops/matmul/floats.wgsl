// Many columns: a workgroup makes a tile of 64 rows by 64 columns, an invocation 4 by 4 of them, in steps of 16 along k.
var<workgroup> ws: array<f32, 1088>;
var<workgroup> xs: array<f32, 1088>;
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) li: u32) {
  let g = group_of(wg);
  let tile = split4(g, p.tiles_n, p.tiles_m, p.b2);
  let row0 = tile.x * 64u;
  let col0 = tile.y * 64u;
  let w_at = p.w + (tile.z / p.share2) * p.w2 + (tile.w / p.share3) * p.w3;
  let x_at = p.x + tile.z * p.x2 + tile.w * p.x3;
  let tx = li % 16u;
  let ty = li / 16u;
  var acc: array<vec4<f32>, 4>;
  for (var i = 0u; i < 4u; i++) { acc[i] = vec4<f32>(0.0); }
  // Loading: each invocation four elements of one row (of the weights, and of x), k fastest. Rows of the tiles are 68
  // apart so that neighbours do not meet in one bank.
  let lr = li / 4u;
  let lk = (li % 4u) * 4u;
  for (var k = 0u; k < p.k; k += 16u) {
    var wv = vec4<f32>(0.0);
    var xv = vec4<f32>(0.0);
    let kk = k + lk;
    if row0 + lr < p.n {
      let row = w_at + (row0 + lr) * p.w1;
      $LOAD_W
    }
    if col0 + lr < p.m {
      let c = x_at + (col0 + lr) * p.x1 + kk;
      if kk < p.k { xv.x = get_x(c); }
      if kk + 1u < p.k { xv.y = get_x(c + 1u); }
      if kk + 2u < p.k { xv.z = get_x(c + 2u); }
      if kk + 3u < p.k { xv.w = get_x(c + 3u); }
    }
    workgroupBarrier();
    for (var j = 0u; j < 4u; j++) {
      ws[(lk + j) * 68u + lr] = wv[j];
      xs[(lk + j) * 68u + lr] = xv[j];
    }
    workgroupBarrier();
    for (var j = 0u; j < 16u; j++) {
      let o = j * 68u;
      let a = vec4<f32>(ws[o + tx * 4u], ws[o + tx * 4u + 1u], ws[o + tx * 4u + 2u], ws[o + tx * 4u + 3u]);
      for (var i = 0u; i < 4u; i++) { acc[i] += a * xs[o + ty * 4u + i]; }
    }
  }
  for (var i = 0u; i < 4u; i++) {
    let col = col0 + ty * 4u + i;
    if col < p.m {
      let to = p.y + col * p.y1 + tile.z * p.y2 + tile.w * p.y3;
      for (var j = 0u; j < 4u; j++) {
        let row = row0 + tx * 4u + j;
        if row < p.n { y[to + row * p.y0] = acc[i][j]; }
      }
    }
  }
}
