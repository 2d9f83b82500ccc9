//! Round trips, bounds, special values, and the layouts against an independent implementation.

use super::*;

/// A small generator: the tests need repeatable numbers, not good ones.
pub(crate) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 32) as u32
    }

    /// Between -1 and 1.
    pub fn signed(&mut self) -> f32 {
        self.next() as i32 as f32 / 2147483648.0
    }

    pub fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.signed()).collect()
    }
}

fn quantized() -> impl Iterator<Item = BlockType> {
    BlockType::ALL.into_iter().filter(|ty| !ty.is_float())
}

fn round_trip(ty: BlockType, x: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; ty.row_bytes(x.len())];
    quantize_row(ty, x, &mut bytes).unwrap();
    let mut back = vec![0.0; x.len()];
    dequantize_row(ty, &bytes, &mut back).unwrap();
    back
}

#[test]
fn sizes_are_the_file_formats() {
    let sizes = BlockType::ALL.map(|ty| (ty.block_values(), ty.block_bytes()));
    let expected = [
        (1, 4),
        (1, 2),
        (1, 2),
        (32, 18),
        (32, 20),
        (32, 22),
        (32, 24),
        (32, 34),
        (256, 144),
        (256, 176),
        (256, 210),
    ];
    assert_eq!(sizes, expected);
    assert_eq!(BlockType::Q4_1.row_bytes(576), 360);
}

/// Errors as a share of the largest magnitude: half a step of the coarsest scale that the format can choose, with
/// room for the scale's own rounding (f16, or six bits in the formats of 256).
#[test]
fn round_trip_error_is_bounded() {
    let mut random = Random(1);
    for ty in BlockType::ALL {
        let bound = match ty {
            BlockType::F32 => 0.0,
            BlockType::F16 => 1.0 / 2048.0,
            BlockType::BF16 => 1.0 / 256.0,
            BlockType::Q4_0 => 1.01 / 8.0, // the short side of the range loses a whole step
            BlockType::Q4_1 => 0.51 * 2.0 / 15.0,
            BlockType::Q5_0 => 1.01 / 16.0,
            BlockType::Q5_1 => 0.51 * 2.0 / 31.0,
            BlockType::Q8_0 => 0.51 / 127.0,
            BlockType::Q4_K => 0.65 * 2.0 / 15.0,
            BlockType::Q5_K => 0.75 * 2.0 / 31.0,
            BlockType::Q6_K => 1.2 / 32.0,
        };
        for scale in [0.02, 1.0, 300.0] {
            let x: Vec<f32> = random.values(512).into_iter().map(|x| x * scale).collect();
            let worst = x.iter().zip(round_trip(ty, &x)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= bound * scale * 1.0001, "{ty:?}: {worst} of {scale}");
        }
    }
}

#[test]
fn f64_agrees_with_f32_within_its_rounding() {
    let mut random = Random(2);
    for ty in BlockType::ALL {
        let x = random.values(256);
        let mut bytes = vec![0; ty.row_bytes(256)];
        quantize_row(ty, &x, &mut bytes).unwrap();
        let (mut single, mut double) = (vec![0f32; 256], vec![0f64; 256]);
        dequantize_row(ty, &bytes, &mut single).unwrap();
        dequantize_row_f64(ty, &bytes, &mut double).unwrap();
        for (a, b) in single.iter().zip(double) {
            assert!((f64::from(*a) - b).abs() < 1e-6, "{ty:?}: {a} {b}");
        }
    }
}

#[test]
fn zeros_stay_zeros() {
    for ty in BlockType::ALL {
        assert!(round_trip(ty, &[0.0; 256]).iter().all(|&x| x == 0.0), "{ty:?}");
    }
}

#[test]
fn extreme_inputs_give_finite_blocks() {
    for ty in quantized() {
        for special in [1e30, -1e30, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40] {
            let mut x = [0.01f32; 256];
            x[77] = special;
            let back = round_trip(ty, &x);
            assert!(back.iter().all(|x| x.is_finite()), "{ty:?} {special}");
        }
    }
}

#[test]
fn an_outlier_keeps_its_value() {
    for ty in quantized() {
        for outlier in [1000.0f32, -1000.0] {
            let mut x = [0.5; 256];
            x[130] = outlier;
            let back = round_trip(ty, &x)[130];
            assert!((back - outlier).abs() < 40.0, "{ty:?}: {back}");
        }
    }
}

#[test]
fn wrong_lengths_are_refused() {
    for ty in quantized() {
        let block = ty.block_values();
        let partial = QuantError::PartialBlock { ty, values: block + 1, block };
        assert_eq!(dequantize_row(ty, &[0; 1000], &mut vec![0.0; block + 1]), Err(partial));
        let expected = ty.block_bytes();
        let short = QuantError::WrongBytes { ty, values: block, expected, found: expected - 1 };
        assert_eq!(dequantize_row(ty, &vec![0; expected - 1], &mut vec![0.0; block]), Err(short.clone()));
        assert_eq!(quantize_row(ty, &vec![0.0; block], &mut vec![0; expected - 1]), Err(short));
    }
}

/// Random bytes with finite scales: every code, scale and minimum occurs.
pub(crate) fn random_blocks(ty: BlockType, blocks: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..blocks * ty.block_bytes()).map(|_| (random.next() >> 13) as u8).collect();
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        let halves: &[usize] = match ty {
            BlockType::Q4_0 | BlockType::Q5_0 | BlockType::Q8_0 => &[0],
            BlockType::Q6_K => &[208],
            _ => &[0, 2],
        };
        for &at in halves {
            // Exponents around one.
            block[at + 1] = block[at + 1] & 0x83 | 0x30 | (block[at + 1] & 0x08);
        }
    }
    bytes
}

/// FNV-1a over the bits of the dequantized values.
fn hash(values: &[f32]) -> u64 {
    let bytes = values.iter().flat_map(|x| x.to_bits().to_le_bytes());
    bytes.fold(0xcbf29ce484222325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100000001b3))
}

/// The same bytes were dequantized by the Python package `gguf` 0.19, and the bits of its results hashed.
#[test]
fn dequantizes_like_the_reference_package() {
    for (ty, expected) in EXPECTED {
        let bytes = random_blocks(ty, 16, &mut Random(ty.block_bytes() as u64));
        let mut values = vec![0.0; 16 * ty.block_values()];
        dequantize_row(ty, &bytes, &mut values).unwrap();
        assert_eq!(hash(&values), expected, "{ty:?}");
    }
}

const EXPECTED: [(BlockType, u64); 8] = [
    (BlockType::Q4_0, 0xbf6c47d4e5a89030),
    (BlockType::Q4_1, 0x77cfde2b9d4da611),
    (BlockType::Q5_0, 0x0e4cc458f88e6c07),
    (BlockType::Q5_1, 0xd44ce1fad99e0f24),
    (BlockType::Q8_0, 0x9e5b60d1b32897ea),
    (BlockType::Q4_K, 0xc145516f76916757),
    (BlockType::Q5_K, 0x80cee84b4cb12156),
    (BlockType::Q6_K, 0xb01964c1a8b713fe),
];
