// Functions that lose digits or overflow in their plain form. Built-in exponentials may be off by some units in the
// last place more than a software one, in proportion to |x|; the reduction keeps them good to 1e-6.
fn exp_f(v: f32) -> f32 {
  // Comparisons in this form let NaN through.
  let w = select(v, -104.0, v < -104.0);
  let x = select(w, 89.0, w > 89.0);
  let n = round(x * 1.44269504);
  let r = (x - n * 0.693359375) + n * 2.12194440e-4;
  let s = 1.0 + r * (1.0 + r * (0.5 + r * (0.166666667 + r * (0.0416666667 + r * (0.00833333333 + r * 0.00138888889)))));
  // Two factors, so that neither leaves the range on the way to a finite result.
  let c = i32(n);
  let h = c / 2;
  return s * bitcast<f32>(u32(h + 127) << 23u) * bitcast<f32>(u32(c - h + 127) << 23u);
}
fn sigmoid_f(x: f32) -> f32 { return 1.0 / (1.0 + exp_f(-x)); }
fn tanh_f(x: f32) -> f32 {
  let s = x * x;
  if s < 0.09 {
    return x * (1.0 + s * (-0.333333333 + s * (0.133333333 + s * (-0.0539682540 + s * 0.0218694885))));
  }
  return 1.0 - 2.0 / (exp_f(2.0 * x) + 1.0);
}
// e^x - 1 for x <= 0.
fn expm1_f(x: f32) -> f32 {
  if x > -0.3 {
    return x * (1.0 + x * (0.5 + x * (0.166666667 + x * (0.0416666667 + x * (0.00833333333 + x * (0.00138888889 + x * 0.000198412698))))));
  }
  return exp_f(x) - 1.0;
}
// ln(1 + x) for x >= 0: 2 atanh(x / (2 + x)) where that series is short.
fn log1p_f(x: f32) -> f32 {
  if x < 0.5 {
    let z = x / (2.0 + x);
    let s = z * z;
    return 2.0 * z * (1.0 + s * (0.333333333 + s * (0.2 + s * (0.142857143 + s * (0.111111111 + s * 0.0909090909)))));
  }
  return log(1.0 + x);
}
// Abramowitz and Stegun, formula 7.1.26: within 2e-7.
fn erf_f(x: f32) -> f32 {
  let a = abs(x);
  let t = 1.0 / (1.0 + 0.3275911 * a);
  let q = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  let r = 1.0 - q * exp_f(-a * a);
  return select(r, -r, x < 0.0);
}
// Sine of pi/2 times (q + f), q a whole number and |f| <= 1/2.
fn sin_quarter(q: i32, f: f32) -> f32 {
  let r = f * 1.57079633;
  let s = r * r;
  let sine = r * (1.0 + s * (-0.166666667 + s * (0.00833333333 + s * (-0.000198412698 + s * 2.75573192e-6))));
  let cosine = 1.0 + s * (-0.5 + s * (0.0416666667 + s * (-0.00138888889 + s * (2.48015873e-5 - s * 2.75573192e-7))));
  let v = select(sine, cosine, (q & 1) == 1);
  return select(v, -v, (q & 2) == 2);
}
// Sine of x + quarter * pi/2, for |x| up to some thousands.
fn sin_f(x: f32, quarter: i32) -> f32 {
  let n = round(x * 0.636619772);
  // pi/2 in three parts of few digits
  let r = ((x - n * 1.5703125) - n * 4.837512969970703125e-4) - n * 7.54978995489188216e-8;
  return sin_quarter(i32(n) + quarter, r * 0.636619772);
}
