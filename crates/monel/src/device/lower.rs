//! Lowering: quantizing made explicit, and what several nodes would compute alike made once.
//!
//! A product with quantized weights is an integer product on most devices, so its right-hand side is quantized first, by
//! an op of its own: planned, joined to the op before it, and shared by all products of the same value (q, k and v; gate
//! and up). Rotations by the same angles, those of all layers, share them as a node of their own ([`RopeAngles`]).

use crate::error::Result;
use crate::graph::{Graph, Node, Source, Value};
use crate::ops::{GatedProduct, MatMul, QuantizeRows, Rope, RopeAngles};
use crate::tensor::{DType, Desc};
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
    // Rotations by what their angles follow from. A tensor that is seen as several leaves is one.
    let leaf = |v: Value| match &graph.entry(v).source {
        Source::Leaf(tensor) => Some((tensor.buffer().id(), tensor.offset(), *tensor.desc())),
        _ => None,
    };
    let mut first_leaf = HashMap::new();
    let mut one_leaf = |v: Value| leaf(v).map_or(v, |place| *first_leaf.entry(place).or_insert(v));
    let mut rotation = |node: &Node| {
        let op: &dyn Any = node.op.as_ref();
        let rope = op.downcast_ref::<Rope>().filter(|r| r.dims > 0)?;
        let of = &node.inputs[1..];
        let known = graph.desc(*of.first()?).dtype == DType::F32;
        (!known).then(|| (*rope, of.iter().map(|&v| one_leaf(v)).collect::<Vec<_>>()))
    };
    let rotations = graph.nodes().filter_map(|(_, n)| rotation(n)).collect::<Vec<_>>();
    let shared = |r: &(Rope, Vec<Value>)| rotations.iter().filter(|other| *other == r).count() > 1;
    if !rotations.iter().any(shared) && !graph.nodes().any(|(_, n)| wanted(n).is_some()) {
        return Ok(None);
    }
    let mut to = Graph::new(graph.name());
    let mut map: Vec<Value> = Vec::with_capacity(graph.entries().len());
    let mut quantized: HashMap<(Value, DType), Value> = HashMap::new();
    let mut angles: Vec<((Rope, Vec<Value>), Value)> = Vec::new();
    // Angles of leaves are made first: they are in nobody's way there, and no group of ops has to wait for them.
    let mut leaves: HashMap<_, Value> = HashMap::new();
    for key in rotations.iter().filter(|r| shared(r)) {
        if angles.iter().any(|(k, _)| k == key) {
            continue;
        }
        let mut inputs = Vec::new();
        for &v in &key.1 {
            if let (Source::Leaf(tensor), Some(place)) = (&graph.entry(v).source, leaf(v)) {
                inputs.push(*leaves.entry(place).or_insert_with(|| to.leaf(tensor)));
            }
        }
        if inputs.len() == key.1.len() {
            angles.push((key.clone(), to.apply(RopeAngles { rope: key.0 }, &inputs)?));
        }
    }
    for entry in graph.entries() {
        let value = match &entry.source {
            Source::Leaf(tensor) => {
                let place = (tensor.buffer().id(), tensor.offset(), *tensor.desc());
                leaves.get(&place).copied().unwrap_or_else(|| to.leaf(tensor))
            }
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
                if let Some(key) = rotation(node).filter(shared) {
                    let known = angles.iter().find(|(k, _)| *k == key).map(|(_, made)| *made);
                    let made = match known {
                        Some(made) => made,
                        None => {
                            let made = to.apply(RopeAngles { rope: key.0 }, &inputs[1..])?;
                            angles.push((key, made));
                            made
                        }
                    };
                    inputs.truncate(1);
                    inputs.push(made);
                }
                if let Some(place) = node.place {
                    // Positions that are overwritten are others from here on.
                    let memory = |v: Value| {
                        let root = graph.resolve(v).0;
                        match &graph.entry(root).source {
                            Source::Leaf(tensor) => (None, Some(tensor.buffer().id())),
                            _ => (Some(root), None),
                        }
                    };
                    let written = memory(place);
                    angles.retain(|((_, of), _)| of.iter().all(|&v| memory(v) != written));
                }
                to.apply_arc(node.op.clone(), &inputs, node.place.map(|p| map[p.index()]))?
            }
        };
        to.set_name(value, entry.name.clone());
        map.push(value);
    }
    Ok(Some(to))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::device::software::{self, Options};
    use crate::ops::{RopeKind, RopeScaling};

    fn angles(graph: &Graph) -> usize {
        let is = |op: &dyn Any| op.is::<RopeAngles>();
        graph.nodes().filter(|(_, n)| is(n.op.as_ref())).count()
    }

    #[test]
    fn rotations_share_angles_until_their_positions_change() {
        let device = software::create(&Options::default()).unwrap();
        let x = device.tensor(DType::F32, &[8, 2, 3]).unwrap();
        let [positions, others] = [(); 2].map(|()| device.tensor(DType::I32, &[3]).unwrap());
        let rope = Rope { kind: RopeKind::Neox, dims: 8, base: 100.0, scaling: RopeScaling::None };
        // A rotation by a base, of a leaf of the positions of its own.
        let turn = |graph: &mut Graph, base: f32| {
            let (x, positions) = (graph.leaf(&x), graph.leaf(&positions));
            graph.rope(x, positions, None, Rope { base, ..rope }).unwrap()
        };
        let lowered = |bases: &[f32], written: bool| {
            let mut graph = Graph::new("rotations");
            for (i, base) in bases.iter().enumerate() {
                turn(&mut graph, *base);
                if written && i + 1 == bases.len() / 2 {
                    let (from, place) = (graph.leaf(&others), graph.leaf(&positions));
                    graph.copy_into(from, place).unwrap();
                }
            }
            lower(&graph, |_, _| None).unwrap().map_or(0, |g| angles(&g))
        };
        assert_eq!(lowered(&[100.0], false), 0, "nobody to share with");
        assert_eq!(lowered(&[100.0, 50.0], false), 0);
        assert_eq!(lowered(&[100.0, 100.0, 100.0], false), 1);
        assert_eq!(lowered(&[100.0, 50.0, 100.0, 50.0], false), 2);
        assert_eq!(lowered(&[100.0, 100.0, 100.0, 100.0], true), 2, "other positions have other angles");
    }
}
