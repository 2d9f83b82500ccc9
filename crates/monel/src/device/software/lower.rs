//! What the software device makes of weights and graphs: tiles of sixteen rows, integer products, and gated units
//! together with their products.

use crate::error::Result;
use crate::graph::{Graph, Node, Source, Value};
use crate::ops::{GatedProduct, Glu, MatMul, Op};
use crate::plan::Uses;
use crate::tensor::{DType, Desc};
use std::any::Any;

/// Two-dimensional quantized weights are kept in tiles of sixteen rows.
pub fn weight_type(dtype: DType, ne: [usize; 4]) -> DType {
    match dtype.block() {
        Some(block) if dtype.is_quantized() && ne[2] == 1 && ne[3] == 1 => DType::Packed(block),
        _ => dtype,
    }
}

/// The graph as this device runs it, or `None` if there is nothing to change.
pub fn lower(graph: &Graph) -> Result<Option<Graph>> {
    let gated = gated(graph)?;
    let lowered = crate::device::lower::lower(gated.as_ref().unwrap_or(graph), |weights, x| {
        (weights.dtype.is_quantized() && x.dtype == DType::F32).then_some(DType::Q8A)
    })?;
    Ok(lowered.or(gated))
}

fn op<T: Op>(graph: &Graph, value: Value) -> Option<(&T, &Node)> {
    let Source::Node(node) = &graph.entry(value).source else { return None };
    let op: &dyn Any = node.op.as_ref();
    Some((op.downcast_ref()?, node))
}

/// The graph with gated units and their two products as one op, or `None` if there are none.
fn gated(graph: &Graph) -> Result<Option<Graph>> {
    let uses = Uses::new(graph);
    let found: Vec<(Value, Unit)> =
        graph.nodes().filter_map(|(value, _)| Some((value, Unit::at(graph, &uses, value)?))).collect();
    if found.is_empty() {
        return Ok(None);
    }
    let mut to = Graph::new(graph.name());
    let mut map: Vec<Value> = Vec::with_capacity(graph.entries().len());
    for (index, entry) in graph.entries().iter().enumerate() {
        let at = |v: &Value| map[v.index()];
        let value = match &entry.source {
            Source::Leaf(tensor) => to.leaf(tensor),
            Source::View { of, offset } => to.view_as(at(of), *offset, entry.desc)?,
            Source::Node(node) => {
                if let Some((_, unit)) =
                    found.iter().find(|(_, unit)| unit.products.contains(&graph.value(index)))
                {
                    // Only the unit reads it.
                    map.push(at(&unit.x));
                    continue;
                }
                match found.iter().find(|(value, _)| value.index() == index) {
                    Some((_, unit)) => {
                        let [gate, up] = unit.weights;
                        to.apply(GatedProduct { glu: unit.glu }, &[at(&gate), at(&up), at(&unit.x)])?
                    }
                    None => {
                        let inputs: Vec<Value> = node.inputs.iter().map(at).collect();
                        to.apply_arc(node.op.clone(), &inputs, node.place.as_ref().map(at))?
                    }
                }
            }
        };
        to.set_name(value, entry.name.clone());
        map.push(value);
    }
    Ok(Some(to))
}

/// A gated unit that can be made together with its products.
struct Unit {
    glu: Glu,
    products: [Value; 2],
    weights: [Value; 2],
    x: Value,
}

impl Unit {
    fn at(graph: &Graph, uses: &Uses, value: Value) -> Option<Unit> {
        let (glu, node) = op::<Glu>(graph, value)?;
        let [gate, up] = node.inputs[..] else { return None };
        let (_, gate_node) = op::<MatMul>(graph, gate)?;
        let (_, up_node) = op::<MatMul>(graph, up)?;
        let (weights, x) = ([gate_node.inputs[0], up_node.inputs[0]], gate_node.inputs[1]);
        let alone = gate != up
            && [gate, up].iter().all(|&product| uses.only(graph, product) == Some(value))
            && up_node.inputs[1] == x
            && node.place.is_none();
        // Between the products and the unit, nothing may be written that they read.
        let first = gate.index().min(up.index());
        let written = (first..value.index())
            .any(|i| matches!(&graph.entry(graph.value(i)).source, Source::Node(n) if n.place.is_some()));
        // Whoever reads the unit takes it quantized.
        let readers = uses.of(graph, value);
        let quantized = readers.iter().all(|&reader| {
            op::<MatMul>(graph, reader).is_some_and(|(_, product)| {
                graph.desc(product.inputs[0]).dtype.is_quantized()
                    && product.inputs[0] != value
                    && product.inputs[1] == value
            })
        });
        let op = GatedProduct { glu: *glu };
        let mut operands = [*graph.desc(weights[0]), *graph.desc(weights[1]), *graph.desc(x)];
        let plain = operands[2].dtype == DType::F32 && operands[2].is_contiguous();
        operands[2] = Desc::new(DType::Q8A, &operands[2].ne).ok()?;
        let output = op.output(&operands).ok()?;
        let fits = plain && !readers.is_empty() && op.supports(&operands, &output).is_ok();
        (alone && !written && quantized && fits).then_some(Unit {
            glu: *glu,
            products: [gate, up],
            weights,
            x,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::software;
    use crate::ops::GluKind;
    use crate::quant::BlockType;

    #[test]
    fn a_unit_joins_its_products_where_nothing_else_sees_them() {
        let device = software::create(&software::Options::default()).unwrap();
        let weights = |k: usize, n: usize| device.tensor(DType::Packed(BlockType::Q4_0), &[k, n]).unwrap();
        let (gate, up, down) = (weights(64, 96), weights(64, 96), weights(96, 64));
        let x = device.tensor(DType::F32, &[64, 5]).unwrap();
        let names = |build: &dyn Fn(&mut Graph, [Value; 5]) -> Result<()>| {
            let mut graph = Graph::new("unit");
            let [g, u, d] = [&gate, &up, &down].map(|w| graph.leaf(w));
            let leaf = graph.leaf(&x);
            let x = graph.scale(leaf, 2.0, 0.0).unwrap();
            build(&mut graph, [g, u, d, x, leaf]).unwrap();
            let lowered = lower(&graph).unwrap().unwrap();
            lowered.nodes().map(|(_, node)| node.op.name()).collect::<Vec<_>>()
        };
        let joined = names(&|graph, [g, u, d, x, _]| {
            let (g, u) = (graph.mat_mul(g, x)?, graph.mat_mul(u, x)?);
            let y = graph.glu(GluKind::Swiglu, g, u)?;
            graph.mat_mul(d, y).map(|_| ())
        });
        assert_eq!(joined, ["scale", "quantize_rows", "gated_product", "mat_mul"]);
        let apart = ["scale", "quantize_rows", "mat_mul", "mat_mul", "glu", "quantize_rows", "mat_mul"];
        let gate_seen = names(&|graph, [g, u, d, x, _]| {
            let (g, u) = (graph.mat_mul(g, x)?, graph.mat_mul(u, x)?);
            let y = graph.glu(GluKind::Swiglu, g, u)?;
            graph.mat_mul(d, y)?;
            graph.add(g, g).map(|_| ())
        });
        assert_eq!(gate_seen[..7], apart);
        let unit_seen = names(&|graph, [g, u, d, x, _]| {
            let (g, u) = (graph.mat_mul(g, x)?, graph.mat_mul(u, x)?);
            let y = graph.glu(GluKind::Swiglu, g, u)?;
            graph.mat_mul(d, y)?;
            graph.add(y, y).map(|_| ())
        });
        assert_eq!(unit_seen[..7], apart);
        let written = names(&|graph, [g, u, d, x, leaf]| {
            let (g, u) = (graph.mat_mul(g, x)?, graph.mat_mul(u, x)?);
            graph.copy_into(x, leaf)?;
            let y = graph.glu(GluKind::Swiglu, g, u)?;
            graph.mat_mul(d, y).map(|_| ())
        });
        assert!(!written.contains(&"gated_product"), "{written:?}");
    }
}
