//! Products of float weights.

use super::*;

/// Errors relative to the sum of magnitudes: k / lanes roundings of f32, far below this at these sizes.
const TOLERANCE: f64 = 1e-6;

#[test]
fn float_products_of_odd_shapes() {
    let mut random = Random(21);
    for ty in [BlockType::F32, BlockType::F16, BlockType::BF16] {
        for k in [1, 3, 8, 17, 32, 100] {
            for (rows, cols) in [(1, 1), (1, 5), (2, 4), (3, 3), (4, 4), (5, 9), (9, 1)] {
                let w_stride = ty.row_bytes(k) + 2 * size_of::<f32>();
                let (x_stride, out_stride) = (k + 3, rows + 2);
                let mut w = vec![0xff; rows * w_stride]; // NaN between the rows
                let x: Vec<f32> = random.values(cols * x_stride);
                let mut values = vec![0f32; rows * k];
                for (row, values) in w.chunks_exact_mut(w_stride).zip(values.chunks_exact_mut(k)) {
                    let row = &mut row[..ty.row_bytes(k)];
                    quantize_row(ty, &random.values(k), row).unwrap();
                    dequantize_row(ty, row, values).unwrap();
                }
                for isa in Isa::available() {
                    let mut out = vec![7.5f32; cols * out_stride];
                    // SAFETY: the operands were made for these sizes.
                    let done = unsafe {
                        let (w, x, out) = (w.as_ptr(), x.as_ptr(), out.as_mut_ptr());
                        gemm_float(isa, ty, k, w, w_stride, rows, x, x_stride, cols, out, out_stride)
                    };
                    assert!(done);
                    for (c, out) in out.chunks_exact(out_stride).enumerate() {
                        assert_eq!(out[rows..], [7.5, 7.5], "{isa:?} {ty:?}: wrote outside");
                        for (r, &found) in out[..rows].iter().enumerate() {
                            let (w, x) = (&values[r * k..][..k], &x[c * x_stride..][..k]);
                            let terms = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
                            let (sum, size) = terms.fold((0.0, 0.0), |(s, m), t: f64| (s + t, m + t.abs()));
                            let error = (f64::from(found) - sum).abs();
                            assert!(
                                error <= TOLERANCE * size,
                                "{isa:?} {ty:?} k {k} {rows}x{cols}: {found} {sum}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn quantized_types_are_refused() {
    for ty in quantized() {
        let (none, out) = (std::ptr::null(), std::ptr::null_mut());
        // SAFETY: nothing is read or written: the type is refused.
        assert!(!unsafe { gemm_float(Isa::SCALAR, ty, 32, none, 0, 1, std::ptr::null(), 0, 1, out, 0) });
    }
}
