//! Attention in 16-bit integers, against double precision and at the edge of what the sums hold.

use super::super::Isa;
use super::super::attention::{CellRows, CellType, Columns, Rounded, Rows};
use half::f16;

const HEAD: usize = 64;
const LANES: usize = 16;

/// Every instruction set on which integers are faster.
fn instructions() -> impl Iterator<Item = Rounded> {
    Isa::available().filter_map(|isa| Rounded::new(isa, [HEAD, HEAD]))
}

fn halves(rows: &[f16]) -> CellRows<'_> {
    // SAFETY: whole rows of a slice that is borrowed as long.
    unsafe { CellRows::new(rows.as_ptr().cast(), 2 * HEAD, rows.len() / HEAD, HEAD, CellType::F16) }
}

/// Some numbers between -1 and 1.
fn number(i: usize) -> f32 {
    ((i * 7919 + 13) % 2003) as f32 / 1001.0 - 1.0
}

/// q k for [`LANES`] rows of q, as `[cell][lane]`.
fn scores(by: Rounded, q: &[f32], k: &[f16]) -> Vec<f32> {
    let cells = k.len() / HEAD;
    let (mut rows, mut q_scales) = (vec![0; LANES * HEAD / 2], vec![0.0; LANES]);
    assert!(by.rows(CellRows::of(q, HEAD), &mut rows, &mut q_scales));
    let q: Vec<i32> = (0..HEAD / 2 * LANES).map(|i| rows[i % LANES * HEAD / 2 + i / LANES]).collect();
    let (mut pairs, mut k_scales) = (vec![0; cells * HEAD / 2], vec![0.0; cells]);
    assert!(by.rows(halves(k), &mut pairs, &mut k_scales));
    let mut s = vec![0.0; cells * LANES];
    let k = Rows { pairs: &pairs, step: (HEAD / 2, 1), size: (cells, HEAD / 2), scales: &k_scales };
    by.product(k, Columns { pairs: &q, scales: &q_scales }, &mut s, false);
    s
}

/// The softmax of the scores times v, as `[lane][value]`.
fn weighed(by: Rounded, s: &[f32], v: &[f16]) -> Vec<f32> {
    let cells = v.len() / HEAD;
    let (mut pairs, mut scales) = (vec![0; cells.div_ceil(2) * HEAD], vec![0.0; HEAD]);
    assert!(by.columns(halves(v), &mut pairs, &mut scales));
    let mut weights = vec![0; cells.div_ceil(2) * LANES];
    let [mut max, mut sum, mut carry, mut unit] = [-1e30, 0.0, 0.0, 0.0].map(|x| vec![x; LANES]);
    by.softmax_columns(s, cells, &mut weights, [&mut max, &mut sum, &mut carry, &mut unit]);
    let mut o = vec![0.0; LANES * HEAD];
    let weights = Rows { pairs: &weights, step: (1, LANES), size: (LANES, cells.div_ceil(2)), scales: &unit };
    by.product(weights, Columns { pairs: &pairs, scales: &scales }, &mut o, true);
    o.iter().enumerate().map(|(i, o)| o / sum[i / HEAD]).collect()
}

#[test]
fn near_double_precision() {
    for by in instructions() {
        // an odd number of cells: the last one has no neighbour
        for cells in [1, 4, 63, 64] {
            let q: Vec<f32> = (0..LANES * HEAD).map(number).collect();
            let k: Vec<f16> = (0..cells * HEAD).map(|i| f16::from_f32(number(i + 5) * 3.0)).collect();
            let v: Vec<f16> = (0..cells * HEAD).map(|i| f16::from_f32(number(i + 9))).collect();
            let s = scores(by, &q, &k);
            let exact = |c: usize, lane: usize| -> f64 {
                (0..HEAD).map(|d| f64::from(q[lane * HEAD + d]) * k[c * HEAD + d].to_f64()).sum()
            };
            for (i, &s) in s.iter().enumerate() {
                let exact = exact(i / LANES, i % LANES);
                // rounding to 1/32,700 of lengths of 5 and 14 is off by 0.0008 (root mean square)
                assert!(
                    (f64::from(s) - exact).abs() < 5e-3,
                    "{by:?}, {cells} cells, score {i}: {s} for {exact}"
                );
            }
            for (i, o) in weighed(by, &s, &v).into_iter().enumerate() {
                let weight = |c: usize| f64::from(s[c * LANES + i / HEAD]).exp2();
                let total: f64 = (0..cells).map(weight).sum();
                let sum: f64 = (0..cells).map(|c| weight(c) * v[c * HEAD + i % HEAD].to_f64()).sum();
                let exact = sum / total;
                assert!(
                    (f64::from(o) - exact).abs() < 5e-4,
                    "{by:?}, {cells} cells, value {i}: {o} for {exact}"
                );
            }
        }
    }
}

/// Rows that point the same way, and columns of one number under equal weights, give the largest sums there are.
#[test]
fn largest_sums_fit() {
    for by in instructions() {
        for only in [1, 2, HEAD] {
            let row = |i: usize, x: f32| if i % HEAD < only { x } else { 0.0 };
            let q: Vec<f32> = (0..LANES * HEAD).map(|i| row(i, 1e4)).collect();
            let k: Vec<f16> = (0..64 * HEAD).map(|i| f16::from_f32(row(i, -6e4))).collect();
            let exact = -6e4 * 1e4 * only as f32;
            assert!(scores(by, &q, &k).iter().all(|s| (s / exact - 1.0).abs() < 1e-3), "{by:?}, {only}");
        }
        for cells in 1..=64 {
            let v = vec![f16::MIN; cells * HEAD];
            let o = weighed(by, &vec![3.0; cells * LANES], &v);
            assert!(
                o.iter().all(|o| (o / f16::MIN.to_f32() - 1.0).abs() < 1e-3),
                "{by:?}, {cells}: {}",
                o[0]
            );
        }
    }
}

#[test]
fn what_is_not_finite_is_refused() {
    for by in instructions() {
        for bad in [f16::NAN, f16::INFINITY, f16::NEG_INFINITY] {
            for at in [0, HEAD + 1, 5 * HEAD - 1] {
                let mut cells = vec![f16::ONE; 5 * HEAD];
                cells[at] = bad;
                let (mut pairs, mut scales) = (vec![0; 5 * HEAD], vec![0.0; HEAD]);
                assert!(!by.rows(halves(&cells), &mut pairs, &mut scales), "{by:?}, {bad} at {at}");
                assert!(!by.columns(halves(&cells), &mut pairs, &mut scales), "{by:?}, {bad} at {at}");
            }
        }
        let mut large = vec![1.0; HEAD];
        large[7] = 1e25;
        assert!(!by.rows(CellRows::of(&large, HEAD), &mut [0; HEAD], &mut [0.0]), "{by:?}");
    }
}

/// Rows side by side or apart along k, last rows that do not fill a tile, depths that do not either, words of all sizes:
/// every instruction set gives the same bits.
#[test]
fn products_have_the_same_bits_everywhere() {
    let shapes: [[usize; 3]; 6] =
        [[16, 16, 1], [70, 64, 32], [128, 64, 40], [150, 128, 31], [15, 16, 32], [97, 48, 128]];
    for [rows, lanes, terms] in shapes {
        // mostly small, so that few sums leave 32 bits; those that do wrap around, everywhere alike
        let word = |i: usize| match i % 97 {
            0 => [i16::MAX, i16::MIN][i / 97 % 2],
            _ => ((i as u32).wrapping_mul(2_654_435_761) >> 20) as i16 - 2048,
        };
        let pair = |i: usize| i32::from(word(2 * i) as u16) | i32::from(word(2 * i + 1)) << 16;
        let apart = rows.next_multiple_of(16);
        let left: Vec<i32> = (0..apart * terms).map(|i| pair(i + 3)).collect();
        let right: Vec<i32> = (0..lanes * terms).map(|i| pair(i + 1000)).collect();
        let scales: Vec<f32> = (0..rows.max(lanes)).map(|i| 1e-3 + number(i).abs()).collect();
        for (step, add) in [((terms, 1), false), ((terms, 1), true), ((1, apart), false), ((1, apart), true)]
        {
            let results = instructions().map(|by| {
                let mut c: Vec<f32> = (0..rows * lanes).map(number).collect();
                let a = Rows { pairs: &left, step, size: (rows, terms), scales: &scales };
                by.product(a, Columns { pairs: &right, scales: &scales[..lanes] }, &mut c, add);
                c.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            });
            let results: Vec<_> = results.collect();
            let same = results.windows(2).all(|two| two[0] == two[1]);
            assert!(same, "{rows} rows, {lanes} lanes, {terms} pairs, {step:?}, {add}");
        }
    }
}
