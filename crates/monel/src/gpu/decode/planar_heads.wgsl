// From the plane of heads at word `heads`: d times the scale and dmin times the minimum of a group: six bits each,
// squeezed into twelve bytes.
fn scales_NAME(heads: u32, g: u32) -> vec2<f32> {
  let head = heads + 4u * (g / 8u);
  let shift = 8u * (g % 4u);
  let a = NAME[head + 1u] >> shift;
  let b = NAME[head + 2u] >> shift;
  let c = NAME[head + 3u] >> shift;
  let low = vec2<u32>(a & 63u, b & 63u);
  let high = vec2<u32>((c & 15u) | ((a >> 2u) & 48u), ((c >> 4u) & 15u) | ((b >> 2u) & 48u));
  return unpack2x16float(NAME[head]) * vec2<f32>(select(high, low, (g & 4u) == 0u));
}
