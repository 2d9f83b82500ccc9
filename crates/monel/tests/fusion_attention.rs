//! What goes before attention, fused with it: the same graph on a Vulkan device, which fuses, and on the software device,
//! which does not, from the same numbers. Results and the whole cache agree.

#![cfg(feature = "vulkan")]
#![allow(clippy::unwrap_used, reason = "a test's way to fail")]

mod common;

use common::{cpu, gpu, numbers};
use monel::ops::{FlashAttention, Masking, QuantizeRows, Rope, RopeKind, RopeScaling};
use monel::{DType, Device, Graph, Tensor};

/// One layer's attention and what goes before it.
#[derive(Clone, Debug)]
struct Layer {
    /// Elements of a head of keys, and of values.
    head: [usize; 2],
    heads: usize,
    kv_heads: usize,
    cells: usize,
    positions: Vec<i32>,
    kind: RopeKind,
    dims: usize,
    scaling: RopeScaling,
    norms: bool,
    factors: bool,
    window: Option<usize>,
    softcap: Option<f32>,
    /// Whether the result is wanted in eight bits.
    eight: bool,
    /// How much larger than one the numbers are.
    size: f32,
}

impl Layer {
    fn new(head: usize, heads: usize, kv_heads: usize, position: i32) -> Layer {
        Layer {
            head: [head, head],
            heads,
            kv_heads,
            cells: 512,
            positions: vec![position],
            kind: RopeKind::Neox,
            dims: head,
            scaling: RopeScaling::None,
            norms: false,
            factors: false,
            window: None,
            softcap: None,
            eight: false,
            size: 1.0,
        }
    }

    /// Ops that one step is to hold.
    fn ops(&self) -> usize {
        let before = 4 + if self.norms { 2 } else { 0 };
        match self.positions.len() {
            1 => before + 1 + usize::from(self.eight),
            _ => before,
        }
    }

    /// The result, the keys and the values; and the ops of the largest step.
    fn run(&self, device: &Device) -> monel::Result<([Vec<f32>; 3], usize)> {
        let stream = device.stream();
        let tokens = self.positions.len();
        let [head, value] = self.head;
        let mut seed = 0;
        let mut floats = |ne: &[usize], from: f32, to: f32| {
            seed += 1;
            let tensor = device.tensor(DType::F32, ne)?;
            let values = numbers(seed, ne.iter().product());
            let bytes = values.iter().flat_map(|x| (from + (x + 1.0) / 2.0 * (to - from)).to_le_bytes());
            drop(stream.upload(&tensor, &bytes.collect::<Vec<u8>>())?);
            monel::Result::Ok(tensor)
        };
        let mut cache = |size: usize| {
            let cells = floats(&[size, self.cells, self.kv_heads], -1.0, 1.0)?;
            let f16 = device.tensor(DType::F16, &[size, self.cells, self.kv_heads])?;
            let mut graph = Graph::new("cache");
            let (from, to) = (graph.leaf(&cells), graph.leaf(&f16));
            graph.copy_into(from, to)?;
            stream.run(&graph)?;
            monel::Result::Ok(f16)
        };
        let (keys, values) = (cache(head)?, cache(value)?);
        let size = self.size;
        let q = floats(&[head * self.heads, tokens], -size, size)?;
        let k = floats(&[head * self.kv_heads, tokens], -size, size)?;
        let v = floats(&[value * self.kv_heads, tokens], -1.0, 1.0)?;
        let weights = [floats(&[head], 0.5, 2.0)?, floats(&[head], 0.5, 2.0)?];
        let factors = floats(&[self.dims / 2], 1.0, 8.0)?;
        let positions = device.tensor(DType::I32, &[tokens])?;
        let bytes: Vec<u8> = self.positions.iter().flat_map(|p| p.to_le_bytes()).collect();
        drop(stream.upload(&positions, &bytes)?);

        let mut g = Graph::new("attention");
        // Something of the graph's own, as products would be.
        let [q, k, v] = [&q, &k, &v].map(|t| {
            let x = g.leaf(t);
            g.scale(x, 1.5, 0.0)
        });
        let positions = g.leaf(&positions);
        let mut q = g.reshape(q?, &[head, self.heads, tokens])?;
        let mut k = g.reshape(k?, &[head, self.kv_heads, tokens])?;
        if self.norms {
            let [a, b] = weights.each_ref().map(|w| g.leaf(w));
            q = g.rms_norm(q, Some(a), 1e-6)?;
            k = g.rms_norm(k, Some(b), 1e-5)?;
        }
        let rope = Rope { kind: self.kind, dims: self.dims, base: 10_000.0, scaling: self.scaling };
        let factors = self.factors.then(|| g.leaf(&factors));
        let q = g.rope(q, positions, factors, rope)?;
        let k = g.rope(k, positions, factors, rope)?;
        let v = g.reshape(v?, &[value, self.kv_heads, tokens])?;
        let (key_cells, value_cells) = (g.leaf(&keys), g.leaf(&values));
        let k = g.permute(k, [0, 2, 1, 3])?;
        let v = g.permute(v, [0, 2, 1, 3])?;
        let key_cells = g.set_rows(key_cells, k, positions)?;
        let value_cells = g.set_rows(value_cells, v, positions)?;
        let q = g.permute(q, [0, 2, 1, 3])?;
        let attention = FlashAttention {
            scale: 1.0 / (head as f32).sqrt(),
            softcap: self.softcap,
            masking: Masking::Causal { window: self.window },
        };
        let y = g.flash_attention([q, key_cells, value_cells], Some(positions), attention)?;
        let row = [value * self.heads, tokens];
        let y = g.reshape(y, &row)?;
        let result = device.tensor(if self.eight { DType::Q8P } else { DType::F32 }, &row)?;
        let place = g.leaf(&result);
        if self.eight {
            g.apply_into(QuantizeRows { to: DType::Q8P }, &[y], place)?;
        } else {
            g.copy_into(y, place)?;
        }
        let steps = device.plan(&g)?.steps;
        stream.run(&g)?;

        let bytes = |t: &Tensor| stream.download(t)?.wait();
        let halves = |t: &Tensor| -> monel::Result<Vec<f32>> {
            let words = bytes(t)?;
            Ok(words.as_chunks::<2>().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect())
        };
        let bytes_of_result = bytes(&result)?;
        let float = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        let found: Vec<f32> = if self.eight {
            let length = bytes_of_result.len() / tokens;
            let rows = bytes_of_result.chunks_exact(length).map(|bytes| {
                let (codes, scales) = bytes.split_at(row[0]);
                let blocks = codes.chunks_exact(32).zip(scales.chunks_exact(8));
                blocks.flat_map(|(codes, s)| {
                    // The second number is the sum of the values that the codes stand for.
                    let sum: f32 = codes.iter().map(|&c| float(s) * f32::from(c as i8)).sum();
                    assert!(
                        (sum - float(&s[4..])).abs() <= 1e-4 * (1.0 + sum.abs()),
                        "{sum} {}",
                        float(&s[4..])
                    );
                    codes.iter().map(|&c| float(s) * f32::from(c as i8)).collect::<Vec<_>>()
                })
            });
            rows.flatten().collect()
        } else {
            bytes_of_result.chunks_exact(4).map(float).collect()
        };
        let largest = steps.iter().map(|s| s.ops.len()).max().unwrap_or(0);
        Ok(([found, halves(&keys)?, halves(&values)?], largest))
    }
}

fn compare(layer: &Layer) {
    let Some(gpu) = gpu() else { return };
    let (found, largest) = layer.run(&gpu).unwrap();
    let (expected, _) = layer.run(&cpu()).unwrap();
    assert_eq!(largest, layer.ops(), "{layer:?}: ops in the largest step");
    // Eight bits: half a step of 1/127 of a block's largest value on either side, where a code turns.
    let tolerances = [if layer.eight { 6e-3 } else { 2e-3 }, 5e-4, 5e-4];
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_eq!(found.len(), expected.len());
        let size: f64 = expected.iter().map(|x| f64::from(*x).powi(2)).sum();
        let off: f64 = found.iter().zip(expected).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        let off = (off / size).sqrt();
        assert!(size > 0.0 && off < tolerances[i], "{layer:?}, result {i}: off by {off}");
    }
}

#[test]
fn positions_and_windows() {
    for position in [0, 1, 31, 32, 33, 500, 511] {
        compare(&Layer::new(64, 9, 3, position));
        compare(&Layer { window: Some(32), ..Layer::new(64, 4, 4, position) });
        compare(&Layer { window: Some(1), ..Layer::new(64, 2, 1, position) });
        compare(&Layer { eight: true, ..Layer::new(64, 9, 3, position) });
    }
}

#[test]
fn sizes_and_groups() {
    // Large heads in large groups take Mesa's compiler seconds each.
    for (head, most) in [(64, 7), (128, 4), (256, 4)] {
        for group in 1..=most {
            let layer = Layer::new(head, 2 * group, 2, 77);
            compare(&Layer { eight: group % 2 == 0, norms: group % 3 == 0, ..layer });
        }
    }
    compare(&Layer::new(128, 7, 1, 40));
    compare(&Layer { head: [96, 32], dims: 96, ..Layer::new(96, 4, 2, 100) });
    compare(&Layer { head: [96, 96], eight: true, ..Layer::new(96, 3, 1, 100) });
    compare(&Layer { head: [40, 40], dims: 40, ..Layer::new(40, 4, 2, 100) });
}

#[test]
fn norms_factors_and_kinds() {
    let yarn = RopeScaling::Yarn {
        factor: 4.0,
        original_context: 128,
        beta_fast: 32.0,
        beta_slow: 1.0,
        ext_factor: 1.0,
        attn_factor: 1.0,
    };
    for kind in [RopeKind::Normal, RopeKind::Neox] {
        for (norms, factors) in [(false, false), (false, true), (true, false), (true, true)] {
            for eight in [false, true] {
                let layer = Layer::new(64, 4, 2, 400);
                compare(&Layer { kind, norms, factors, eight, ..layer.clone() });
                compare(&Layer { kind, norms, factors, eight, dims: 40, scaling: yarn, ..layer });
            }
        }
    }
    compare(&Layer { softcap: Some(2.0), ..Layer::new(128, 4, 2, 90) });
    compare(&Layer { norms: true, size: 1e22, ..Layer::new(64, 4, 2, 90) });
}

#[test]
fn short_caches_are_one_kernel() {
    for position in [0, 5, 19] {
        for eight in [false, true] {
            compare(&Layer { cells: 20, eight, ..Layer::new(64, 3, 1, position) });
        }
    }
}

#[test]
fn several_tokens_share_what_goes_before_attention() {
    let layer = Layer::new(64, 6, 2, 0);
    for positions in [vec![3, 4], (100..140).collect(), vec![7, 9, 7, 8, 7]] {
        for (norms, factors, kind) in
            [(false, false, RopeKind::Neox), (true, false, RopeKind::Normal), (false, true, RopeKind::Normal)]
        {
            let positions = positions.clone();
            compare(&Layer { positions, norms, factors, kind, dims: 48, ..layer.clone() });
        }
    }
}

#[test]
fn positions_behind_the_cache_are_errors() {
    let Some(gpu) = gpu() else { return };
    for (cells, position) in [(512, 512), (512, -1), (20, 20), (20, 1 << 30)] {
        let layer = Layer { cells, ..Layer::new(64, 6, 2, position) };
        let error = layer.run(&gpu).unwrap_err().to_string();
        assert!(error.contains(&format!("position {position} of a cache of {cells} cells")), "{error}");
    }
    let layer = Layer { positions: vec![3, 600], ..Layer::new(64, 6, 2, 0) };
    let error = layer.run(&gpu).unwrap_err().to_string();
    assert!(error.contains("position 600 of a cache of 512 cells"), "{error}");
}

/// Workgroups count themselves, and the last one puts their parts together: whoever that is, the bits are the same, and
/// the next replay begins to count at zero, also after one that failed.
#[test]
fn replays_of_one_recording_give_the_same_bits() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream();
    let (head, tokens, heads, kv_heads, cells) = (64, 2, 6, 2, 2048);
    let tensor = |seed, dtype, ne: &[usize]| {
        let tensor = gpu.tensor(dtype, ne).unwrap();
        let values = numbers(seed, ne.iter().product());
        let bytes: Vec<u8> = match dtype {
            DType::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            _ => values.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect(),
        };
        drop(stream.upload(&tensor, &bytes).unwrap());
        tensor
    };
    let q = tensor(1, DType::F32, &[head, tokens, heads]);
    let [k, v] = [2, 3].map(|seed| tensor(seed, DType::F16, &[head, cells, kv_heads]));
    let positions = gpu.tensor(DType::I32, &[tokens]).unwrap();
    let mut graph = Graph::new("attention");
    let [from, keys, values, at] = [&q, &k, &v, &positions].map(|t| graph.leaf(t));
    // Two that may run at once, each with counters of its own.
    let results = [None, Some(700)].map(|window| {
        let masking = Masking::Causal { window };
        let op = FlashAttention { scale: 0.125, softcap: None, masking };
        let y = graph.flash_attention([from, keys, values], Some(at), op).unwrap();
        let result = gpu.tensor(DType::F32, &[head, heads, tokens]).unwrap();
        let place = graph.leaf(&result);
        graph.copy_into(y, place).unwrap();
        result
    });
    let recording = gpu.record(&graph).unwrap();
    let mut first: [Option<[Vec<u8>; 2]>; 5] = Default::default();
    let depths = [[2046, 2047], [3, 1500], [0, 1], [800, 64], [129, 300]];
    for round in 0..12 {
        for (i, depth) in depths.iter().enumerate() {
            let bytes = |p: &[i32; 2]| p.iter().flat_map(|p| p.to_le_bytes()).collect::<Vec<u8>>();
            if (round + i) % 7 == 3 {
                drop(stream.upload(&positions, &bytes(&[2000, 2048])).unwrap());
                assert!(stream.submit(&recording).unwrap().wait().is_err());
                stream.recover().unwrap();
            }
            drop(stream.upload(&positions, &bytes(depth)).unwrap());
            stream.submit(&recording).unwrap().wait().unwrap();
            let found = results.each_ref().map(|t| stream.download(t).unwrap().wait().unwrap());
            let expected = first[i].get_or_insert_with(|| found.clone());
            assert!(*expected == found, "{depth:?}, replay {round}");
        }
    }
}
