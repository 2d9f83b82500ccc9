// Eight bits for a block of 32 values that eight neighbouring invocations of a subgroup hold, four each.
struct Quantized { code: u32, d: f32, sum: f32 }
fn quantize_block(v: vec4<f32>) -> Quantized {
  let a = abs(v);
  var top = max(max(a.x, a.y), max(a.z, a.w));
  top = max(top, subgroupShuffleXor(top, 1u));
  top = max(top, subgroupShuffleXor(top, 2u));
  top = max(top, subgroupShuffleXor(top, 4u));
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
