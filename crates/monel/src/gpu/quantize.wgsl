// Eight bits for a block of 32 values that eight neighbouring invocations of a subgroup hold, four each.
struct Quantized { code: u32, d: f32, sum: f32 }
fn quantize_block(v: vec4<f32>) -> Quantized {
  // Compared as integers: in their order a NaN is above all numbers, where `max` of floats may lose it.
  let a = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
  var most = max(max(a.x, a.y), max(a.z, a.w));
  most = max(most, subgroupShuffleXor(most, 1u));
  most = max(most, subgroupShuffleXor(most, 2u));
  most = max(most, subgroupShuffleXor(most, 4u));
  let top = bitcast<f32>(most);
  // 127 / a subnormal overflows: such a block is all zeros at this precision.
  let inverse = select(0.0, 127.0 / top, top > 1e-36);
  let steps = round(v * inverse);
  var sum = steps.x + steps.y + steps.z + steps.w;
  sum += subgroupShuffleXor(sum, 1u);
  sum += subgroupShuffleXor(sum, 2u);
  sum += subgroupShuffleXor(sum, 4u);
  let d = top / 127.0;
  let c = bitcast<vec4<u32>>(vec4<i32>(steps)) & vec4<u32>(255u);
  return Quantized(c.x | (c.y << 8u) | (c.z << 16u) | (c.w << 24u), d, d * sum);
}
