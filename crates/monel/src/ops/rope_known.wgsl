// Sine and cosine of a pair as they lie in a row of angles.
fn known_sin_cos(pair: u32, token: u32) -> vec2<f32> {
  let at = p.angles + token * p.angles1 + pair;
  return vec2<f32>(angles[at], angles[at + $ANGLE_PAIRSu]);
}
