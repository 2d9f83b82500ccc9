//! The vector functions, at lengths around every vector width.

use super::*;
use half::f16;

const LENGTHS: [usize; 12] = [0, 1, 3, 4, 7, 8, 15, 16, 17, 63, 64, 100];

fn halves(x: &[f32]) -> Vec<u16> {
    x.iter().map(|&x| f16::from_f32(x).to_bits()).collect()
}

fn widen(x: &[u16]) -> Vec<f32> {
    x.iter().map(|&x| f16::from_bits(x).to_f32()).collect()
}

fn dot(a: &[f32], b: &[f32]) -> (f64, f64) {
    let terms = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b));
    terms.fold((0.0, 0.0), |(sum, size), term: f64| (sum + term, size + term.abs()))
}

fn each(mut f: impl FnMut(Isa, usize, &mut Random)) {
    let mut random = Random(31);
    for isa in Isa::available() {
        for n in LENGTHS {
            f(isa, n, &mut random);
        }
    }
}

#[test]
fn dot_products() {
    each(|isa, n, random| {
        let (a, b) = (random.values(n), random.values(n));
        let (sum, size) = dot(&a, &b);
        assert!((f64::from(dot_f32(isa, &a, &b)) - sum).abs() <= 1e-6 * size, "{isa:?} {n}");
        let k = halves(&a);
        let (sum, size) = dot(&widen(&k), &b);
        assert!((f64::from(dot_f16_f32(isa, &k, &b)) - sum).abs() <= 1e-6 * size, "{isa:?} {n}");
        let (sum, _) = dot(&a, &a);
        assert!((f64::from(sum_sq(isa, &a)) - sum).abs() <= 1e-6 * sum, "{isa:?} {n}");
    });
}

#[test]
fn axpy_and_scale() {
    each(|isa, n, random| {
        let (x, v) = (random.values(n), halves(&random.values(n)));
        let mut acc = x.clone();
        axpy_f16(isa, &mut acc, &v, 0.7);
        for ((acc, x), v) in acc.iter().zip(&x).zip(widen(&v)) {
            assert!((acc - (x + 0.7 * v)).abs() <= 3e-7, "{isa:?} {n}");
        }
        let mut scaled = x.clone();
        scale(isa, &mut scaled, -3.0);
        assert!(scaled.iter().zip(&x).all(|(a, b)| *a == b * -3.0), "{isa:?} {n}");
    });
}

#[test]
fn maxima() {
    each(|isa, n, random| {
        let x = random.values(n);
        let expected = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(max_f32(isa, &x), expected, "{isa:?} {n}");
        let negative: Vec<f32> = x.iter().map(|x| x - 5.0).collect();
        let expected = negative.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(max_f32(isa, &negative), expected, "{isa:?} {n}: the tail must not bring in zeros");
    });
}

#[test]
fn softmax_parts() {
    each(|isa, n, random| {
        let x: Vec<f32> = random.values(n).iter().map(|x| x * 40.0 - 40.0).collect();
        let mut e = x.clone();
        let sum = f64::from(exp_sub_sum(isa, &mut e, 2.5));
        let mut expected_sum = 0.0;
        for (x, e) in x.iter().zip(&e) {
            let expected = f64::from(x - 2.5).exp();
            expected_sum += expected;
            assert!((f64::from(*e) - expected).abs() <= 1e-6 * expected, "{isa:?} exp({x} - 2.5) = {e}");
        }
        assert!((sum - expected_sum).abs() <= 2e-6 * expected_sum, "{isa:?} {n}");
    });
}

#[test]
fn exp_at_its_borders() {
    for isa in Isa::available() {
        let mut x = [0.0, f32::NEG_INFINITY, -1000.0, -87.0, -88.5, 1.0, f32::NAN, 88.0, -0.0];
        exp_sub_sum(isa, &mut x, 0.0);
        assert_eq!(x[..3], [1.0, 0.0, 0.0], "{isa:?}");
        assert!((f64::from(x[3]) / (-87f64).exp() - 1.0).abs() < 1e-6, "{isa:?} {}", x[3]);
        assert_eq!(x[4], 0.0);
        assert!((x[5] - std::f32::consts::E).abs() < 3e-6);
        assert!(x[6].is_nan(), "{isa:?}: NaN comes through");
        assert!((f64::from(x[7]) / 88f64.exp() - 1.0).abs() < 1e-6);
        assert_eq!(x[8], 1.0);
    }
}

#[test]
fn gated_units() {
    each(|isa, n, random| {
        let gate: Vec<f32> = random.values(n).iter().map(|x| x * 12.0).collect();
        let up = random.values(n);
        let (mut silu, mut gelu) = (vec![9.0; n + 1], vec![9.0; n + 1]);
        silu_mul(isa, &gate, &up, &mut silu[..n]);
        gelu_tanh_mul(isa, &gate, &up, &mut gelu[..n]);
        assert_eq!((silu[n], gelu[n]), (9.0, 9.0), "{isa:?} {n}: wrote outside");
        for i in 0..n {
            let (g, u) = (f64::from(gate[i]), f64::from(up[i]));
            let expected = g / (1.0 + (-g).exp()) * u;
            assert!((f64::from(silu[i]) - expected).abs() <= 1e-6 * (g * u).abs(), "{isa:?} silu({g})");
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g * g * g);
            let expected = 0.5 * g * (1.0 + inner.tanh()) * u;
            assert!((f64::from(gelu[i]) - expected).abs() <= 1e-6 * (g * u).abs(), "{isa:?} gelu({g})");
        }
    });
    for isa in Isa::available() {
        let (gate, up) = ([1e4, -1e4, 0.0, 100.0, -100.0], [1.0; 5]);
        let mut out = [0f32; 5];
        for f in [silu_mul, gelu_tanh_mul] {
            f(isa, &gate, &up, &mut out);
            assert_eq!((out[0], out[2], out[3]), (1e4, 0.0, 100.0), "{isa:?}");
            assert!(out[1].abs() < 1e-30 && out[4].abs() < 1e-30, "{isa:?} {out:?}");
        }
    }
}

#[test]
fn conversions_of_every_f16() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    for isa in Isa::available() {
        let mut wide = vec![0f32; all.len()];
        f16_to_f32(isa, &all, &mut wide);
        let mut back = vec![0u16; all.len()];
        f32_to_f16(isa, &wide, &mut back);
        for (&bits, (&wide, &back)) in all.iter().zip(wide.iter().zip(&back)) {
            let expected = f16::from_bits(bits);
            if expected.is_nan() {
                assert!(wide.is_nan() && f16::from_bits(back).is_nan());
            } else {
                assert_eq!(wide.to_bits(), expected.to_f32().to_bits(), "{isa:?} {bits:#x}");
                assert_eq!(back, bits, "{isa:?} {bits:#x}");
            }
        }
    }
}

#[test]
fn conversions_round_to_even_and_keep_lengths() {
    each(|isa, n, random| {
        let x: Vec<f32> = random.values(n).iter().map(|x| x * 70000.0).collect();
        let mut out = vec![0x1234u16; n + 1];
        f32_to_f16(isa, &x, &mut out[..n]);
        assert_eq!(out[..n], halves(&x), "{isa:?} {n}");
        assert_eq!(out[n], 0x1234, "{isa:?} {n}: wrote outside");
        let bf16: Vec<u16> = x.iter().map(|x| (x.to_bits() >> 16) as u16).collect();
        let mut wide = vec![0f32; n];
        bf16_to_f32(isa, &bf16, &mut wide);
        assert!(wide.iter().zip(&bf16).all(|(w, b)| w.to_bits() == u32::from(*b) << 16), "{isa:?} {n}");
    });
}
