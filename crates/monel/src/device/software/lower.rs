//! Lowering: the graph the software device runs best.
//!
//! A product with quantized weights is an integer product, so its right-hand side is quantized first, by an op of its
//! own: planned, chained to the op before it, and shared by all products of the same value (q, k and v; gate and up).

use crate::error::Result;
use crate::graph::{Graph, Source, Value};
use crate::ops::{MatMul, QuantizeRows};
use crate::tensor::{DType, Desc};
use std::any::Any;
use std::collections::HashMap;

/// Two-dimensional quantized weights are kept in tiles of sixteen rows.
pub fn weight_type(dtype: DType, ne: [usize; 4]) -> DType {
    match dtype.block() {
        Some(block) if dtype.is_quantized() && ne[2] == 1 && ne[3] == 1 => DType::Packed(block),
        _ => dtype,
    }
}

/// Whether a product needs its right-hand side quantized.
fn quantizes(weights: &Desc, x: &Desc) -> bool {
    weights.dtype.is_quantized() && x.dtype == DType::F32
}

/// The graph with quantizing made explicit, or `None` if there is nothing to change.
pub fn lower(graph: &Graph) -> Result<Option<Graph>> {
    let is_product = |node: &crate::graph::Node| {
        let op: &dyn Any = node.op.as_ref();
        op.is::<MatMul>() && quantizes(graph.desc(node.inputs[0]), graph.desc(node.inputs[1]))
    };
    if !graph.nodes().any(|(_, n)| is_product(n)) {
        return Ok(None);
    }
    let mut to = Graph::new(graph.name());
    let mut map: Vec<Value> = Vec::with_capacity(graph.entries().len());
    let mut quantized: HashMap<Value, Value> = HashMap::new();
    for entry in graph.entries() {
        let value = match &entry.source {
            Source::Leaf(tensor) => to.leaf(tensor),
            Source::View { of, offset } => to.view_as(map[of.index()], *offset, entry.desc)?,
            Source::Node(node) => {
                let mut inputs: Vec<Value> = node.inputs.iter().map(|v| map[v.index()]).collect();
                if is_product(node) {
                    inputs[1] = match quantized.get(&inputs[1]) {
                        Some(&q) => q,
                        None => {
                            let q = to.apply(QuantizeRows { to: DType::Q8A }, &[inputs[1]])?;
                            // Only values that nothing overwrites may be shared.
                            if matches!(to.entry(to.resolve(inputs[1]).0).source, Source::Node(_)) {
                                quantized.insert(inputs[1], q);
                            }
                            q
                        }
                    };
                }
                to.apply_arc(node.op.clone(), &inputs, node.place.map(|p| map[p.index()]))?
            }
        };
        to.set_name(value, entry.name.clone());
        map.push(value);
    }
    Ok(Some(to))
}
