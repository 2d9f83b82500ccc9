//! O2 inside a graph: whatever the planner chains, overlaps, places and cuts, the result is that of the nodes run one
//! by one, each as a graph of its own.

use crate::harness::*;
use monel::device::{Device, Storage, software};
use monel::ops::{Binary, BinaryKind, MatMul, Op, Scale};
use monel::{DType, Desc, Graph, Tensor, Value};
use proptest::prelude::*;
use std::sync::Arc;

const SIDE: usize = 8;

/// A node: an op, its operands among what exists, how they are looked at, and where the result goes.
#[derive(Clone, Debug)]
struct Spec {
    op: usize,
    operands: [prop::sample::Index; 2],
    /// The second operand is one row of the value, repeated.
    one_row: bool,
    /// Into a leaf (then later nodes that use the leaf see it), or into scratch memory.
    place: Option<prop::sample::Index>,
}

fn spec() -> impl Strategy<Value = Spec> {
    let operands = [any::<prop::sample::Index>(), any::<prop::sample::Index>()];
    (0usize..5, operands, any::<bool>(), prop::option::weighted(0.3, any::<prop::sample::Index>()))
        .prop_map(|(op, operands, one_row, place)| Spec { op, operands, one_row, place })
}

fn op(which: usize) -> Arc<dyn Op> {
    match which {
        0 => Arc::new(Binary { kind: BinaryKind::Add }),
        1 => Arc::new(Binary { kind: BinaryKind::Mul }),
        2 => Arc::new(Scale { scale: 0.25, bias: 1.0 }),
        3 => Arc::new(Scale { scale: -0.5, bias: 0.0 }),
        _ => Arc::new(MatMul),
    }
}

fn leaves(device: &Device) -> Vec<Tensor> {
    let stream = device.stream();
    (0..4)
        .map(|i| {
            let t = device.allocate(Storage::Private, SIDE * SIDE * 4).unwrap();
            let t = t.tensor(0, DType::F32, &[SIDE, SIDE]).unwrap();
            let values: Vec<f32> =
                (0..SIDE * SIDE).map(|j| ((i * 37 + j * 11) % 17) as f32 / 8.0 - 1.0).collect();
            drop(stream.upload(&t, &float_bytes(&values)).unwrap());
            t
        })
        .collect()
}

/// Adds a node. `values` are what can be used; leaves first.
fn add(graph: &mut Graph, spec: &Spec, values: &[Value], leaves: usize) -> monel::Result<Value> {
    let mut inputs: Vec<Value> = spec.operands.iter().map(|i| *i.get(values)).collect();
    let elementwise = spec.op < 2;
    inputs.truncate(if elementwise || spec.op == 4 { 2 } else { 1 });
    if elementwise && spec.one_row {
        inputs[1] = graph.slice(inputs[1], 1, 3, 1)?;
    }
    // Elementwise ops may write over their first operand; nothing else may overlap what is read.
    let place = spec.place.map(|p| values[p.index(leaves)]).filter(|&p| {
        let root = |v| graph.resolve(v).0;
        let clashes = |v: &Value| root(*v) == root(p);
        !inputs.iter().any(clashes)
    });
    graph.apply_arc(op(spec.op), &inputs, place)
}

/// All as one graph; a result that is not placed is copied out, so that it can be compared.
fn planned(device: &Device, specs: &[Spec]) -> Vec<Vec<u8>> {
    let leaves = leaves(device);
    let outputs = outputs(device, specs.len());
    let mut graph = Graph::new("planned");
    let mut values: Vec<Value> = leaves.iter().map(|t| graph.leaf(t)).collect();
    let mut results = Vec::new();
    for spec in specs {
        let value = add(&mut graph, spec, &values, leaves.len()).unwrap();
        // A placed result is its leaf from now on.
        if graph.resolve(value).0 == value {
            values.push(value);
            results.push(value);
        }
    }
    for (value, output) in results.iter().zip(&outputs) {
        let place = graph.leaf(output);
        graph.copy_into(*value, place).unwrap();
    }
    let stream = device.stream();
    let recording = device.record(&graph).unwrap();
    stream.submit(&recording).unwrap().wait().unwrap_or_else(|e| panic!("{e}\n{}", recording.plan()));
    let all: Vec<&Tensor> = leaves.iter().chain(&outputs[..results.len()]).collect();
    all.iter().map(|t| stream.download(t).unwrap().wait().unwrap()).collect()
}

/// Node by node, every result in memory of its own.
fn one_by_one(device: &Device, specs: &[Spec]) -> Vec<Vec<u8>> {
    let leaves = leaves(device);
    let stream = device.stream();
    let mut tensors = leaves.clone();
    for spec in specs {
        let mut graph = Graph::new("one");
        let values: Vec<Value> = tensors.iter().map(|t| graph.leaf(t)).collect();
        let node = add(&mut graph, spec, &values, leaves.len()).unwrap();
        if graph.resolve(node).0 == node {
            let output = outputs(device, 1).remove(0);
            let place = graph.leaf(&output);
            graph.copy_into(node, place).unwrap();
            tensors.push(output);
        }
        stream.run(&graph).unwrap();
    }
    tensors.iter().map(|t| stream.download(t).unwrap().wait().unwrap()).collect()
}

fn outputs(device: &Device, n: usize) -> Vec<Tensor> {
    let desc = Desc::new(DType::F32, &[SIDE, SIDE]).unwrap();
    (0..n)
        .map(|_| Tensor::new(&device.allocate(Storage::Private, desc.span()).unwrap(), 0, desc).unwrap())
        .collect()
}

#[test]
fn o2_a_planned_graph_equals_its_nodes_one_by_one() {
    for (chunks, threads) in [(false, 1), (false, 3), (true, 2)] {
        let options = software::Options { threads, ..if chunks { tiny_chunks() } else { options() } };
        let device = software::create(&options).unwrap();
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(120));
        let specs = prop::collection::vec(spec(), 1..40);
        runner
            .run(&specs, |specs| {
                let (all, single) = (planned(&device, &specs), one_by_one(&device, &specs));
                prop_assert_eq!(all.len(), single.len());
                let different = all.iter().zip(&single).position(|(a, b)| a != b);
                prop_assert_eq!(different, None, "the first value that differs");
                Ok(())
            })
            .unwrap();
    }
}
