// Eight weights as floats, and as many activations.
struct Group { a: vec4<f32>, b: vec4<f32> }
struct Acts { a: vec4<f32>, b: vec4<f32> }
fn acts_of(c: u32, g: u32) -> Acts {
  $ACTS
}
fn dot_group(w: Group, x: Acts) -> f32 { return dot(w.a, x.a) + dot(w.b, x.b); }
