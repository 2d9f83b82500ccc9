//! Fused steps compute what the ops say: the same graph on a Vulkan device, which fuses, and on the software device,
//! which does not, from the same numbers.

#![cfg(feature = "vulkan")]
#![allow(clippy::unwrap_used, reason = "a test's way to fail")]

mod common;

use common::{cpu, gpu, numbers};
use monel::ops::{Binary, BinaryKind, Glu, GluKind, MatMul, Op, QuantizeRows, RmsNorm, Scale};
use monel::{DType, Device, Graph, Tensor, Value};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::sync::Arc;

/// The same graph on one device after the other.
struct Rig {
    device: Device,
    keep: Vec<Tensor>,
    seed: u32,
    graph: Graph,
}

impl Rig {
    fn new(device: &Device) -> Rig {
        Rig { device: device.clone(), keep: Vec::new(), seed: 0, graph: Graph::new("fusion") }
    }

    fn upload(&mut self, dtype: DType, ne: &[usize]) -> Tensor {
        self.seed += 1;
        let stream = self.device.stream();
        let floats = self.device.tensor(DType::F32, ne).unwrap();
        let bytes: Vec<u8> =
            numbers(self.seed, ne.iter().product()).iter().flat_map(|x| x.to_le_bytes()).collect();
        drop(stream.upload(&floats, &bytes).unwrap());
        if dtype == DType::F32 {
            return floats;
        }
        // Blocks are made by the device's own copies, planes from blocks.
        let mut graph = Graph::new("fill");
        let mut value = graph.leaf(&floats);
        let natural = match dtype {
            DType::Planar(block) => DType::of(block),
            other => other,
        };
        let mut result = floats;
        for to in [natural, dtype] {
            if result.desc().dtype != to {
                result = self.device.tensor(to, ne).unwrap();
                let place = graph.leaf(&result);
                value = graph.copy_into(value, place).unwrap();
            }
        }
        stream.run(&graph).unwrap();
        result
    }

    fn leaf(&mut self, dtype: DType, ne: &[usize]) -> Value {
        let tensor = self.upload(dtype, ne);
        let value = self.graph.leaf(&tensor);
        self.keep.push(tensor);
        value
    }

    /// Weights as the device keeps them.
    fn weights(&mut self, dtype: DType, ne: &[usize]) -> Value {
        let dtype = self.device.weight_type(dtype, [ne[0], ne[1], 1, 1]);
        match dtype {
            DType::Packed(block) => self.leaf(DType::of(block), ne),
            dtype => self.leaf(dtype, ne),
        }
    }

    /// Runs the graph and reads these results; how many ops its largest step has.
    fn run(mut self, results: &[Value]) -> (Vec<Vec<f32>>, usize) {
        let mut places = Vec::new();
        for &value in results {
            let tensor = self.device.tensor(DType::F32, &self.graph.desc(value).ne).unwrap();
            let place = self.graph.leaf(&tensor);
            self.graph.copy_into(value, place).unwrap();
            places.push(tensor);
        }
        let largest = self.device.plan(&self.graph).unwrap().steps.iter().map(|s| s.ops.len()).max();
        let stream = self.device.stream();
        stream.run(&self.graph).unwrap();
        let read = |t: &Tensor| {
            let bytes = stream.download(t).unwrap().wait().unwrap();
            bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
        };
        (places.iter().map(read).collect(), largest.unwrap_or(0))
    }
}

/// Both devices run what `build` builds; results agree to `tolerance` of their size, and the GPU fused `ops` ops.
fn compare(what: &str, tolerance: f64, ops: usize, build: impl Fn(&mut Rig) -> Vec<Value>) {
    let Some(gpu) = gpu() else { return };
    let run = |device: &Device| {
        let mut rig = Rig::new(device);
        let results = build(&mut rig);
        rig.run(&results)
    };
    let (found, largest) = run(&gpu);
    let (expected, _) = run(&cpu());
    assert_eq!(largest, ops, "{what}: ops in the largest step");
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let size: f64 = expected.iter().map(|x| f64::from(*x).powi(2)).sum();
        let off: f64 = found.iter().zip(expected).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        assert!(
            size > 0.0 && (off / size).sqrt() < tolerance,
            "{what}, result {i}: off by {}",
            (off / size).sqrt()
        );
    }
}

/// Codes that fall to the other side of a rounding differ by one of 127; few do.
const CODES: f64 = 2e-3;

#[test]
fn products_with_bias_and_residual() {
    for dtype in [
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q8_0,
        DType::Q4_K,
        DType::Q5_K,
        DType::Q6_K,
    ] {
        for (n, m) in [(96, 1), (33, 3), (64, 8)] {
            compare(&format!("{dtype} {n} {m}"), CODES, 3, |rig| {
                let (w, x) = (rig.weights(dtype, &[512, n]), rig.leaf(DType::F32, &[512, m]));
                let (bias, rest) = (rig.leaf(DType::F32, &[n]), rig.leaf(DType::F32, &[n, m]));
                let y = rig.graph.mat_mul(w, x).unwrap();
                let y = rig.graph.add(y, bias).unwrap();
                vec![rig.graph.add(rest, y).unwrap()]
            });
        }
    }
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        compare(&format!("{dtype}"), 1e-5, 2, |rig| {
            let (w, x) = (rig.weights(dtype, &[264, 70]), rig.leaf(DType::F32, &[264, 2]));
            let rest = rig.leaf(DType::F32, &[70, 2]);
            let y = rig.graph.mat_mul(w, x).unwrap();
            vec![rig.graph.add(y, rest).unwrap()]
        });
    }
}

#[test]
fn a_result_that_others_read_is_not_lost() {
    compare("kept", CODES, 2, |rig| {
        let (w, x) = (rig.weights(DType::Q8_0, &[64, 64]), rig.leaf(DType::F32, &[64, 1]));
        let rest = rig.leaf(DType::F32, &[64, 1]);
        let y = rig.graph.mat_mul(w, x).unwrap();
        let z = rig.graph.add(y, rest).unwrap();
        let twice = rig.graph.scale(z, 2.0, 0.0).unwrap();
        vec![z, twice]
    });
    compare("kept between", CODES, 1, |rig| {
        let (w, x) = (rig.weights(DType::Q8_0, &[64, 64]), rig.leaf(DType::F32, &[64, 1]));
        let rest = rig.leaf(DType::F32, &[64, 1]);
        let y = rig.graph.mat_mul(w, x).unwrap();
        vec![y, rig.graph.add(y, rest).unwrap()]
    });
}

#[test]
fn gated_units_quantize_for_the_next_product() {
    for kind in [GluKind::Swiglu, GluKind::Geglu, GluKind::Reglu] {
        for (dtype, m) in [(DType::Q4_K, 1), (DType::Q6_K, 2), (DType::Q8_0, 8), (DType::Q4_1, 1)] {
            // One row's norm is part of the unit.
            let ops = if m == 1 { 6 } else { 4 };
            compare(&format!("{kind:?} {dtype} {m}"), CODES, ops, |rig| {
                let x = rig.leaf(DType::F32, &[256, m]);
                // What nothing overwrites is quantized once for both.
                let x = rig.graph.rms_norm(x, None, 1e-6).unwrap();
                let (gate, up) = (rig.weights(dtype, &[256, 768]), rig.weights(dtype, &[256, 768]));
                let down = rig.weights(dtype, &[768, 256]);
                let gate = rig.graph.mat_mul(gate, x).unwrap();
                let up = rig.graph.mat_mul(up, x).unwrap();
                let y = rig.graph.apply(Glu { kind }, &[gate, up]).unwrap();
                vec![rig.graph.mat_mul(down, y).unwrap()]
            });
        }
    }
    compare("floats", 1e-5, 3, |rig| {
        let x = rig.leaf(DType::F32, &[256, 1]);
        let (gate, up) = (rig.weights(DType::F16, &[256, 70]), rig.weights(DType::F16, &[256, 70]));
        let gate = rig.graph.mat_mul(gate, x).unwrap();
        let up = rig.graph.mat_mul(up, x).unwrap();
        vec![rig.graph.glu(GluKind::Swiglu, gate, up).unwrap()]
    });
}

#[test]
fn norms_join_the_products_that_read_them() {
    // q, k and v of unlike types, one with a bias; norms with and without a weight.
    for (k, weight) in [(256, true), (768, false), (2048, true)] {
        for types in [
            [DType::Q4_K, DType::Q6_K, DType::Q8_0],
            [DType::Q4_0, DType::Q5_1, DType::Q5_K],
            [DType::Q4_1, DType::Q5_0, DType::Q4_K],
        ] {
            compare(&format!("{types:?} {k}"), CODES, 6, |rig| {
                let (x, a) = (rig.leaf(DType::F32, &[k, 1]), rig.leaf(DType::F32, &[k]));
                let x = rig.graph.rms_norm(x, weight.then_some(a), 1e-5).unwrap();
                let bias = rig.leaf(DType::F32, &[100]);
                let made = [(types[0], 100), (types[1], 36), (types[2], 1)].map(|(dtype, n)| {
                    let w = rig.weights(dtype, &[k, n]);
                    rig.graph.mat_mul(w, x).unwrap()
                });
                vec![rig.graph.add(made[0], bias).unwrap(), made[1], made[2]]
            });
        }
        compare(&format!("floats {k}"), 1e-5, 4, |rig| {
            let (x, a) = (rig.leaf(DType::F32, &[k, 1]), rig.leaf(DType::F32, &[k]));
            let x = rig.graph.rms_norm(x, weight.then_some(a), 1e-5).unwrap();
            let (gate, up) = (rig.weights(DType::BF16, &[k, 70]), rig.weights(DType::BF16, &[k, 70]));
            let gate = rig.graph.mat_mul(gate, x).unwrap();
            let up = rig.graph.mat_mul(up, x).unwrap();
            vec![rig.graph.glu(GluKind::Swiglu, gate, up).unwrap()]
        });
    }
    // A norm that something else reads too is written once for all.
    compare("kept", CODES, 2, |rig| {
        let x = rig.leaf(DType::F32, &[64, 1]);
        let x = rig.graph.rms_norm(x, None, 1e-5).unwrap();
        let w = rig.weights(DType::Q8_0, &[64, 40]);
        vec![rig.graph.mat_mul(w, x).unwrap(), x]
    });
}

#[test]
fn chains_of_rows() {
    for (n, m) in [(32, 1), (576, 5), (640, 1), (4096, 2), (96, 40)] {
        // After attention in Gemma 3: norm, residual, norm, and eight bits for the products.
        compare(&format!("post norm {n} {m}"), 1e-5, 3, |rig| {
            let (y, x) = (rig.leaf(DType::F32, &[n, m]), rig.leaf(DType::F32, &[n, m]));
            let (a, b) = (rig.leaf(DType::F32, &[n]), rig.leaf(DType::F32, &[n]));
            let y = rig.graph.rms_norm(y, Some(a), 1e-6).unwrap();
            let x = rig.graph.add(x, y).unwrap();
            vec![x, rig.graph.rms_norm(x, Some(b), 1e-6).unwrap()]
        });
        // Many columns are multiplied in floats, on the CPU in eight bits.
        let (tolerance, ops) = match m {
            1 => (CODES, 3),
            2..=8 => (CODES, 2),
            _ => (2e-2, 1),
        };
        compare(&format!("eight bits {n} {m}"), tolerance, ops, |rig| {
            let (x, a) = (rig.leaf(DType::F32, &[n, m]), rig.leaf(DType::F32, &[n]));
            let w = rig.weights(DType::Q8_0, &[n, 20]);
            let x = rig.graph.rms_norm(x, Some(a), 1e-6).unwrap();
            vec![rig.graph.mat_mul(w, x).unwrap()]
        });
    }
}

#[test]
fn rows_that_overflow_when_squared_are_normed() {
    compare("large", 1e-5, 2, |rig| {
        let (x, y) = (rig.leaf(DType::F32, &[64, 2]), rig.leaf(DType::F32, &[64, 2]));
        let x = rig.graph.scale(x, 1e25, 0.0).unwrap();
        let x = rig.graph.add(x, y).unwrap();
        vec![rig.graph.rms_norm(x, None, 1e-6).unwrap()]
    });
}

#[test]
fn quantized_rows_are_the_cpu_s() {
    let Some(gpu) = gpu() else { return };
    for (n, m) in [(32, 1), (96, 3), (576, 7)] {
        let run = |device: &Device| {
            let mut rig = Rig::new(device);
            let x = rig.leaf(DType::F32, &[n, m]);
            let rows = rig.device.tensor(DType::Q8P, &[n, m]).unwrap();
            let place = rig.graph.leaf(&rows);
            rig.graph.apply_into(QuantizeRows { to: DType::Q8P }, &[x], place).unwrap();
            let stream = rig.device.stream();
            stream.run(&rig.graph).unwrap();
            stream.download(&rows).unwrap().wait().unwrap()
        };
        let (a, b) = (run(&gpu), run(&cpu()));
        let different = a.iter().zip(&b).filter(|(a, b)| a != b).count();
        // The last bit of a scale, and codes that it turns.
        assert!(a.len() == b.len() && different * 20 < a.len(), "{n} {m}: {different} of {} bytes", a.len());
    }
}

#[test]
fn a_result_read_twice_is_there_both_times() {
    compare("a product and itself", 1e-5, 1, |rig| {
        let (w, x) = (rig.weights(DType::F32, &[64, 64]), rig.leaf(DType::F32, &[64, 1]));
        let y = rig.graph.mat_mul(w, x).unwrap();
        vec![rig.graph.add(y, y).unwrap()]
    });
    compare("a product that is its own gate", 1e-5, 1, |rig| {
        let (w, x) = (rig.weights(DType::F32, &[64, 64]), rig.leaf(DType::F32, &[64, 1]));
        let y = rig.graph.mat_mul(w, x).unwrap();
        vec![rig.graph.glu(GluKind::Swiglu, y, y).unwrap()]
    });
    compare("a row and itself", 1e-5, 1, |rig| {
        let x = rig.leaf(DType::F32, &[64, 3]);
        let n = rig.graph.rms_norm(x, None, 1e-6).unwrap();
        vec![rig.graph.add(n, n).unwrap()]
    });
    compare("a row that comes back", 1e-5, 2, |rig| {
        let (x, r) = (rig.leaf(DType::F32, &[64, 3]), rig.leaf(DType::F32, &[64, 3]));
        let n = rig.graph.rms_norm(x, None, 1e-6).unwrap();
        let a = rig.graph.add(n, r).unwrap();
        vec![rig.graph.add(a, n).unwrap()]
    });
}

#[test]
fn a_residual_may_be_added_in_place() {
    // The norm's row is read by every workgroup of the product; the sum must not land on it meanwhile.
    compare("a norm, a product, a sum over the norm's row", 1e-4, 2, |rig| {
        let (w, x) = (rig.weights(DType::F32, &[512, 512]), rig.leaf(DType::F32, &[512, 1]));
        let n = rig.graph.rms_norm(x, None, 1e-6).unwrap();
        let m = rig.graph.mat_mul(w, n).unwrap();
        vec![rig.graph.apply_into(Binary { kind: BinaryKind::Add }, &[x, m], x).unwrap()]
    });
}

/// One node of a random graph: which op, its operands among what there is, and a leaf that the result overwrites.
#[derive(Clone, Debug)]
struct Spec {
    op: usize,
    operands: [prop::sample::Index; 2],
    place: Option<prop::sample::Index>,
}

/// Rows of these many numbers, a leaf each, and as many leaves of their bytes once more.
const ROW: usize = 64;
const LEAVES: usize = 3;

/// All nodes, and then what is not overwritten and every leaf.
fn random_graph(rig: &mut Rig, specs: &[Spec]) -> Vec<Value> {
    let weights = rig.weights(DType::F32, &[ROW, ROW]);
    let eighth = rig.graph.scale(weights, 0.125, 0.0).unwrap();
    let mut values: Vec<Value> = (0..LEAVES).map(|_| rig.leaf(DType::F32, &[ROW, 1])).collect();
    for i in 0..LEAVES {
        let again = rig.graph.leaf(&rig.keep[rig.keep.len() - LEAVES + i]);
        values.push(again);
    }
    let leaves = values.clone();
    let mut made = Vec::new();
    for spec in specs {
        let [a, b] = spec.operands.map(|i| *i.get(&values));
        let (op, inputs): (Arc<dyn Op>, Vec<Value>) = match spec.op {
            0..3 => (Arc::new(Binary { kind: BinaryKind::Add }), vec![a, b]),
            3 => (Arc::new(RmsNorm { eps: 1e-6 }), vec![a]),
            4 => (Arc::new(Scale { scale: 0.75, bias: 0.0 }), vec![a]),
            5 => (Arc::new(Glu { kind: GluKind::Swiglu }), vec![a, b]),
            _ => (Arc::new(MatMul), vec![eighth, a]),
        };
        // Only additions may write over an operand.
        let bytes = |v: Value| leaves.iter().position(|&l| l == rig.graph.resolve(v).0).map(|i| i % LEAVES);
        let place = spec.place.map(|p| *p.get(&leaves));
        let place = place.filter(|&p| spec.op < 3 || !inputs.iter().any(|&v| bytes(v) == bytes(p)));
        let value = rig.graph.apply_arc(op, &inputs, place).unwrap();
        if place.is_none() {
            values.push(value);
            made.push(value);
        }
    }
    made.extend(&leaves[..LEAVES]);
    made
}

#[test]
fn random_graphs_of_rows_are_the_cpu_s() {
    let Some(gpu) = gpu() else { return };
    let cpu = cpu();
    let mut runner =
        TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) });
    let operands = || [any::<prop::sample::Index>(), any::<prop::sample::Index>()];
    let spec = (0usize..9, operands(), prop::option::weighted(0.3, any::<prop::sample::Index>()))
        .prop_map(|(op, operands, place)| Spec { op, operands, place });
    let run = |device: &Device, specs: &[Spec]| {
        let mut rig = Rig::new(device);
        let results = random_graph(&mut rig, specs);
        rig.run(&results).0
    };
    runner
        .run(&prop::collection::vec(spec, 1..16), |specs| {
            for (i, (found, expected)) in run(&gpu, &specs).iter().zip(&run(&cpu, &specs)).enumerate() {
                let size = expected.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
                let off =
                    found.iter().zip(expected).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
                prop_assert!(off <= 1e-3 * size, "result {}: off by {} of {}", i, off, size);
            }
            Ok(())
        })
        .unwrap();
}
