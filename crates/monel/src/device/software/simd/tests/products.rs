//! Packing, activations and the packed products.

use super::*;

/// A packed matrix and its rows in f64.
struct Weights {
    packed: Vec<u8>,
    rows: Vec<Vec<f64>>,
}

fn pack(ty: BlockType, k: usize, rows: usize, bytes: &[u8]) -> Vec<u8> {
    let stride = ty.row_bytes(k);
    let mut packed = vec![0xaa; packed_bytes(ty, k, rows)];
    for (tile, dst) in packed.chunks_exact_mut(tile_bytes(ty, k)).enumerate() {
        let first = tile * TILE_ROWS;
        pack_tile(ty, k, &bytes[first * stride..], stride, rows - first, dst).unwrap();
    }
    packed
}

fn weights(ty: BlockType, k: usize, rows: usize, random: &mut Random) -> Weights {
    let bytes = random_blocks(ty, rows * k / ty.block_values(), random);
    let packed = pack(ty, k, rows, &bytes);
    let rows = (0..rows)
        .map(|row| {
            let mut values = vec![0f64; k];
            unpack_row_f64(ty, k, &packed, row, &mut values).unwrap();
            values
        })
        .collect();
    Weights { packed, rows }
}

struct Acts {
    bytes: Vec<u8>,
    stride: usize,
    cols: Vec<Vec<f64>>,
}

fn acts(isa: Isa, k: usize, cols: usize, value: impl FnMut() -> f32) -> Acts {
    let mut value = value;
    let stride = act_row_bytes(k) + 64;
    let mut bytes = vec![0x55; cols * stride];
    let cols = bytes
        .chunks_exact_mut(stride)
        .map(|row| {
            let x: Vec<f32> = (0..k).map(|_| value()).collect();
            quantize_act_row(isa, &x, row).unwrap();
            let mut back = vec![0f64; k];
            dequantize_act_row(row, &mut back).unwrap();
            back
        })
        .collect();
    Acts { bytes, stride, cols }
}

const CANARY: f32 = -12345.678;

/// Runs the product and checks every value and every place that must stay as it was.
///
/// The tolerance is relative to the sum of the terms' magnitudes: the integer part is exact, what remains is one
/// rounding per block of the scale's product and of the sum, all in f32.
fn check(isa: Isa, ty: BlockType, k: usize, w: &Weights, a: &Acts) {
    let (rows, cols) = (w.rows.len(), a.cols.len());
    let stride = rows + 3;
    let mut out = vec![CANARY; cols * stride + 7];
    let tiles = rows.div_ceil(TILE_ROWS);
    // SAFETY: the operands were made for these sizes.
    let done = unsafe {
        let out = out.as_mut_ptr().add(4);
        gemm_packed(isa, ty, k, w.packed.as_ptr(), tiles, rows, a.bytes.as_ptr(), a.stride, cols, out, stride)
    };
    assert!(done);
    for (i, &found) in out.iter().enumerate() {
        let (c, r) = (i.wrapping_sub(4) / stride, i.wrapping_sub(4) % stride);
        if i < 4 || c >= cols || r >= rows {
            assert_eq!(found, CANARY, "{isa:?} {ty:?} k {k}: wrote outside, at {i}");
            continue;
        }
        let terms = w.rows[r].iter().zip(&a.cols[c]).map(|(w, a)| w * a);
        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
        let error = (f64::from(found) - sum).abs();
        assert!(
            error <= 1e-5 * size,
            "{isa:?} {ty:?} k {k} row {r} of {rows} col {c} of {cols}: {found} for {sum}"
        );
    }
}

#[test]
fn products_of_odd_shapes() {
    let mut random = Random(7);
    for ty in quantized() {
        let block = ty.block_values();
        for (i, k) in [1, 2, 3, 7, 18].into_iter().map(|blocks| blocks * block).enumerate() {
            for rows in [1, 7, 8, 9, 15, 16, 17, 32, 40].into_iter().skip(i % 2).step_by(2) {
                let w = weights(ty, k, rows, &mut random);
                for isa in Isa::available() {
                    for cols in [1, 2, 3, 4, 5, 8, 11, 12, 13, 19, 27].into_iter().skip(i % 2).step_by(2) {
                        check(isa, ty, k, &w, &acts(isa, k, cols, || random.signed()));
                    }
                }
            }
        }
    }
}

/// AMX computes the same integers as AVX-512 with VNNI, and AVX-VNNI the same as AVX2, and both add the same floats in the
/// same order.
#[cfg(target_arch = "x86_64")]
#[test]
fn pairs_of_levels_give_the_same_bits() {
    for (level, like) in [(Level::Amx, Level::Avx512Vnni), (Level::Avx2Vnni, Level::Avx2)] {
        match Isa::new(level).zip(Isa::new(like)) {
            Some(levels) => same_bits(levels),
            None => println!(
                "skipped: the CPU path {} needs a processor and a system that grant it",
                level.name()
            ),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn same_bits(levels: (Isa, Isa)) {
    let mut random = Random(14);
    for ty in quantized() {
        // More blocks than are kept, more columns than a panel, rows that are missing in the last tile.
        for (k, rows, cols) in [(256, 96, 16), (1280, 117, 150), (768, 100, 47), (3328, 96, 33)] {
            let w = weights(ty, k, rows, &mut random);
            let a = acts(levels.0, k, cols, || random.signed());
            check(levels.0, ty, k, &w, &a);
            let product = |isa: Isa| {
                let mut out = vec![CANARY; cols * rows];
                let (w, tiles) = (w.packed.as_ptr(), rows.div_ceil(TILE_ROWS));
                // SAFETY: the operands were made for these sizes.
                let done = unsafe {
                    let (a, stride, out) = (a.bytes.as_ptr(), a.stride, out.as_mut_ptr());
                    gemm_packed(isa, ty, k, w, tiles, rows, a, stride, cols, out, rows)
                };
                assert!(done);
                out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            assert!(product(levels.0) == product(levels.1), "{ty:?} k {k} rows {rows} cols {cols}");
        }
    }
}

/// More packed bytes than one group of tiles holds, and more columns than a panel.
#[test]
fn products_over_several_groups() {
    let mut random = Random(8);
    for ty in [BlockType::Q4_1, BlockType::Q8_0] {
        let (k, rows) = (2048, 16 * 20 + 5);
        let w = weights(ty, k, rows, &mut random);
        for isa in Isa::available() {
            for cols in [14, 33] {
                check(isa, ty, k, &w, &acts(isa, k, cols, || random.signed()));
            }
        }
    }
}

/// The largest codes and activations: what would overflow 16-bit sums.
#[test]
fn products_of_the_largest_codes() {
    for ty in quantized() {
        let k = 2 * ty.block_values();
        for fill in [0xff, 0x00, 0x80, 0x7f] {
            let mut bytes = vec![fill; 16 * ty.row_bytes(k)];
            for block in bytes.chunks_exact_mut(ty.block_bytes()) {
                let at = if ty == BlockType::Q6_K { 208 } else { 0 };
                block[at..at + 2].copy_from_slice(&[0x00, 0x3c]);
                if !matches!(ty, BlockType::Q4_0 | BlockType::Q5_0 | BlockType::Q8_0 | BlockType::Q6_K) {
                    block[2..4].copy_from_slice(&[0x00, 0xb4]);
                }
            }
            let packed = pack(ty, k, 16, &bytes);
            let rows = (0..16)
                .map(|row| {
                    let mut values = vec![0f64; k];
                    unpack_row_f64(ty, k, &packed, row, &mut values).unwrap();
                    values
                })
                .collect();
            let w = Weights { packed, rows };
            for isa in Isa::available() {
                for sign in [1.0, -1.0] {
                    for cols in [5, 16] {
                        check(isa, ty, k, &w, &acts(isa, k, cols, || sign * 3.0));
                    }
                }
            }
        }
    }
}

#[test]
fn zeros_and_outliers() {
    let mut random = Random(9);
    for ty in quantized() {
        let k = ty.block_values();
        let w = weights(ty, k, 20, &mut random);
        for isa in Isa::available() {
            check(isa, ty, k, &w, &acts(isa, k, 3, || 0.0));
            let mut i = 0;
            let outlier = || {
                i += 1;
                if i % 29 == 0 { 1e6 } else { 0.5 }
            };
            check(isa, ty, k, &w, &acts(isa, k, 3, outlier));
        }
    }
}

#[test]
fn unpacking_gives_the_rows_back() {
    let mut random = Random(10);
    for ty in quantized() {
        let (k, rows) = (3 * ty.block_values(), 21);
        let bytes = random_blocks(ty, rows * 3, &mut random);
        let packed = pack(ty, k, rows, &bytes);
        for row in 0..rows {
            let (mut direct, mut unpacked) = (vec![0f32; k], vec![0f32; k]);
            dequantize_row(ty, &bytes[row * ty.row_bytes(k)..][..ty.row_bytes(k)], &mut direct).unwrap();
            unpack_row(ty, k, &packed, row, &mut unpacked).unwrap();
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&direct), bits(&unpacked), "{ty:?} row {row}");
        }
        let mut padding = vec![1f32; k];
        unpack_row(ty, k, &packed, rows, &mut padding).unwrap();
        assert!(padding.iter().all(|&x| x == 0.0), "{ty:?}: padded rows are zeros");
    }
}

#[test]
fn wrong_sizes_are_refused() {
    let ty = BlockType::Q4_1;
    let mut tile = vec![0; tile_bytes(ty, 64)];
    let src = vec![0; 16 * 40];
    assert!(pack_tile(ty, 64, &src, 40, 16, &mut tile).is_ok());
    assert!(matches!(pack_tile(ty, 64, &src[1..], 40, 16, &mut tile), Err(PackError::TooShort { .. })));
    assert!(matches!(pack_tile(ty, 64, &src, usize::MAX, 16, &mut tile), Err(PackError::TooShort { .. })));
    assert!(matches!(pack_tile(ty, 64, &src, 40, 16, &mut tile[1..]), Err(PackError::TooShort { .. })));
    assert!(matches!(pack_tile(ty, 65, &src, 40, 16, &mut tile), Err(PackError::PartialBlock { .. })));
    assert!(matches!(
        pack_tile(BlockType::F16, 64, &src, 40, 16, &mut tile),
        Err(PackError::NotQuantized { .. })
    ));
    assert!(matches!(unpack_row(ty, 64, &tile, 16, &mut [0.0; 64]), Err(PackError::TooShort { .. })));
    assert!(matches!(unpack_row(ty, 64, &tile, usize::MAX, &mut [0.0; 64]), Err(PackError::TooShort { .. })));
    assert!(matches!(
        quantize_act_row(Isa::SCALAR, &[0.0; 33], &mut tile),
        Err(ActError::PartialBlock { .. })
    ));
    assert!(matches!(
        quantize_act_row(Isa::SCALAR, &[0.0; 32], &mut [0; 63]),
        Err(ActError::TooShort { .. })
    ));
    // SAFETY: nothing is read or written: the shapes are refused.
    unsafe {
        let (none, out) = (std::ptr::null(), std::ptr::null_mut());
        assert!(!gemm_packed(Isa::SCALAR, BlockType::Q4_K, 64, none, 1, 1, none, 0, 1, out, 0));
        assert!(!gemm_packed(Isa::SCALAR, BlockType::F32, 64, none, 1, 1, none, 0, 1, out, 0));
        assert!(!gemm_packed(Isa::SCALAR, BlockType::Q4_1, 64, none, 1, 17, none, 0, 1, out, 0));
    }
}

/// d is absmax / 127 and the error at most half a step; the sums are those of the codes.
#[test]
fn activations_are_quantized_as_promised() {
    let mut random = Random(11);
    for isa in Isa::available() {
        for size in [1e-30, 1e-3, 1.0, 1e10] {
            let x: Vec<f32> = (0..96).map(|_| random.signed() * size).collect();
            let mut bytes = vec![0; act_row_bytes(96)];
            quantize_act_row(isa, &x, &mut bytes).unwrap();
            let mut portable = vec![0; act_row_bytes(96)];
            quantize_act_row(Isa::SCALAR, &x, &mut portable).unwrap();
            assert_eq!(bytes, portable, "{isa:?}: the same bytes everywhere");
            let mut back = vec![0f64; 96];
            dequantize_act_row(&bytes, &mut back).unwrap();
            for (x, back) in x.chunks_exact(32).zip(back.chunks_exact(32)) {
                let largest = x.iter().fold(0f32, |m, x| m.max(x.abs()));
                for (x, back) in x.iter().zip(back) {
                    let error = (f64::from(*x) - back).abs();
                    assert!(error <= 0.5001 * f64::from(largest) / 127.0, "{isa:?} {x} {back}");
                }
            }
        }
    }
}

#[test]
fn infinities_and_nan_poison_their_products() {
    for isa in Isa::available() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut random = Random(12);
            let w = weights(BlockType::Q8_0, 64, 16, &mut random);
            let mut i = 0;
            let a = acts(isa, 64, 2, || {
                i += 1;
                if i == 40 { bad } else { 0.5 }
            });
            let mut out = vec![0f32; 32];
            // SAFETY: the operands were made for these sizes.
            let done = unsafe {
                let (w, a_ptr) = (w.packed.as_ptr(), a.bytes.as_ptr());
                gemm_packed(isa, BlockType::Q8_0, 64, w, 1, 16, a_ptr, a.stride, 2, out.as_mut_ptr(), 16)
            };
            assert!(done);
            assert!(out[..16].iter().all(|x| x.is_nan()), "{isa:?} {bad}");
            assert!(out[16..].iter().all(|x| x.is_finite()), "{isa:?} {bad}");
        }
    }
}

#[test]
fn quantized_weights_multiply_like_their_values() {
    let mut random = Random(13);
    for ty in quantized() {
        let k = ty.block_values() * 2;
        let mut bytes = vec![0; 16 * ty.row_bytes(k)];
        quantize_row(ty, &random.values(16 * k), &mut bytes).unwrap();
        let packed = pack(ty, k, 16, &bytes);
        let mut rows = vec![vec![0f64; k]; 16];
        for (row, values) in rows.iter_mut().enumerate() {
            unpack_row_f64(ty, k, &packed, row, values).unwrap();
        }
        let w = Weights { packed, rows };
        for isa in Isa::available() {
            check(isa, ty, k, &w, &acts(isa, k, 4, || random.signed()));
        }
    }
}
