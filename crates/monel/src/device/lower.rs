//! Lowering: quantizing made explicit, and what several nodes would compute alike made once.
//!
//! A product with quantized weights is an integer product on most devices, so its right-hand side is quantized first, by
//! an op of its own: planned, joined to the op before it, and shared by all products of the same value (q, k and v; gate
//! and up). Rotations by the same angles, those of all layers, share them as a node of their own (`angles`).

mod angles;

use crate::error::Result;
use crate::graph::{Graph, Node, Source, Value};
use crate::ops::{GatedProduct, MatMul, QuantizeRows};
use crate::tensor::{DType, Desc};
use angles::Angles;
use std::any::Any;
use std::collections::HashMap;

/// Which input of a node is the right-hand side of a product.
fn right_side(node: &Node) -> Option<usize> {
    let op: &dyn Any = node.op.as_ref();
    if op.is::<MatMul>() {
        return Some(1);
    }
    op.is::<GatedProduct>().then_some(2)
}

/// The graph with quantizing made explicit, or `None` if there is nothing to change.
/// `wants` says in which type the device wants the x of a product, from its weights and x as they are in the graph;
/// `None` leaves x as it is.
pub fn lower(graph: &Graph, wants: impl Fn(&Desc, &Desc) -> Option<DType>) -> Result<Option<Graph>> {
    let wanted = |node: &Node| {
        let x = right_side(node)?;
        let dtype = wants(graph.desc(node.inputs[0]), graph.desc(node.inputs[x]))?;
        Some((x, dtype))
    };
    let mut angles = Angles::new(graph);
    if !angles.any() && !graph.nodes().any(|(_, n)| wanted(n).is_some()) {
        return Ok(None);
    }
    let mut to = Graph::new(graph.name());
    let mut map: Vec<Value> = Vec::with_capacity(graph.entries().len());
    let mut quantized: HashMap<(Value, DType), Value> = HashMap::new();
    angles.begin(&mut to)?;
    for entry in graph.entries() {
        let value = match &entry.source {
            Source::Leaf(tensor) => angles.leaf(tensor).unwrap_or_else(|| to.leaf(tensor)),
            Source::View { of, offset } => to.view_as(map[of.index()], *offset, entry.desc)?,
            Source::Node(node) => {
                let mut inputs: Vec<Value> = node.inputs.iter().map(|v| map[v.index()]).collect();
                if let Some((x, dtype)) = wanted(node) {
                    inputs[x] = match quantized.get(&(inputs[x], dtype)) {
                        Some(&q) => q,
                        None => {
                            let q = to.apply(QuantizeRows { to: dtype }, &[inputs[x]])?;
                            // Only values that nothing overwrites may be shared.
                            if matches!(to.entry(to.resolve(inputs[x]).0).source, Source::Node(_)) {
                                quantized.insert((inputs[x], dtype), q);
                            }
                            q
                        }
                    };
                }
                angles.replace(&mut to, node, &mut inputs)?;
                if let Some(place) = node.place {
                    angles.overwritten(place);
                }
                to.apply_arc(node.op.clone(), &inputs, node.place.map(|p| map[p.index()]))?
            }
        };
        to.set_name(value, entry.name.clone());
        map.push(value);
    }
    Ok(Some(to))
}
