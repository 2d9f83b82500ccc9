// Products of four signed bytes each, added up.
fn dot_bytes(a: u32, b: u32) -> i32 {
  let x = bitcast<i32>(a);
  let y = bitcast<i32>(b);
  return (x >> 24u) * (y >> 24u) + ((x << 8u) >> 24u) * ((y << 8u) >> 24u) + ((x << 16u) >> 24u) * ((y << 16u) >> 24u)
    + ((x << 24u) >> 24u) * ((y << 24u) >> 24u);
}
