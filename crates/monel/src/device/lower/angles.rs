//! Angles of rotation, made once for all rotations of a graph that turn by the same.

use crate::error::Result;
use crate::graph::{Graph, Node, Source, Value};
use crate::ops::{Rope, RopeAngles};
use crate::tensor::{DType, Desc, Tensor};
use std::any::Any;
use std::collections::HashMap;

/// A rotation with what its angles follow from: positions, and perhaps factors, as values of the graph that is lowered.
type Turn = (Rope, Vec<Value>);

/// A tensor's bytes and how they are seen.
type Place = (u64, usize, Desc);

fn place(tensor: &Tensor) -> Place {
    (tensor.buffer().id(), tensor.offset(), *tensor.desc())
}

/// The angles of a graph on its way into another.
pub(super) struct Angles<'a> {
    graph: &'a Graph,
    /// Turns of which there are several.
    shared: Vec<Turn>,
    /// The first leaf that shows a tensor; models make a leaf of the same tensor in every layer.
    first_leaf: HashMap<Place, Value>,
    /// Nodes of the new graph that still hold what a turn needs.
    made: Vec<(Turn, Value)>,
    /// Leaves of the new graph that angles are made of.
    leaves: HashMap<Place, Value>,
}

impl<'a> Angles<'a> {
    pub fn new(graph: &'a Graph) -> Angles<'a> {
        let mut first_leaf = HashMap::new();
        for (index, entry) in graph.entries().iter().enumerate() {
            if let Source::Leaf(tensor) = &entry.source {
                first_leaf.entry(place(tensor)).or_insert_with(|| graph.value(index));
            }
        }
        let (shared, made, leaves) = (Vec::new(), Vec::new(), HashMap::new());
        let mut angles = Angles { graph, shared, first_leaf, made, leaves };
        let turns: Vec<Turn> = graph.nodes().filter_map(|(_, node)| angles.turn(node)).collect();
        for (i, turn) in turns.iter().enumerate() {
            if turns[..i].contains(turn) && !angles.shared.contains(turn) {
                angles.shared.push(turn.clone());
            }
        }
        angles
    }

    /// Whether there is anything to share.
    pub fn any(&self) -> bool {
        !self.shared.is_empty()
    }

    /// What a node's angles follow from, if it is a rotation by positions.
    fn turn(&self, node: &Node) -> Option<Turn> {
        let op: &dyn Any = node.op.as_ref();
        let rope = op.downcast_ref::<Rope>().filter(|rope| rope.dims > 0)?;
        let of = &node.inputs[1..];
        let first = |&v: &Value| match &self.graph.entry(v).source {
            Source::Leaf(tensor) => self.first_leaf.get(&place(tensor)).copied().unwrap_or(v),
            _ => v,
        };
        let by_positions = self.graph.desc(*of.first()?).dtype == DType::I32;
        by_positions.then(|| (*rope, of.iter().map(first).collect()))
    }

    /// Makes the angles of leaves before anything else: they are in nobody's way there, and no group of ops has to wait.
    pub fn begin(&mut self, to: &mut Graph) -> Result<()> {
        for turn in self.shared.clone() {
            let tensor = |v: &Value| match &self.graph.entry(*v).source {
                Source::Leaf(tensor) => Some(tensor),
                _ => None,
            };
            let Some(tensors) = turn.1.iter().map(tensor).collect::<Option<Vec<_>>>() else { continue };
            let leaf = |tensor| *self.leaves.entry(place(tensor)).or_insert_with(|| to.leaf(tensor));
            let inputs: Vec<Value> = tensors.into_iter().map(leaf).collect();
            let made = to.apply(RopeAngles { rope: turn.0 }, &inputs)?;
            self.made.push((turn, made));
        }
        Ok(())
    }

    /// The leaf of a tensor that angles were made of.
    pub fn leaf(&self, tensor: &Tensor) -> Option<Value> {
        self.leaves.get(&place(tensor)).copied()
    }

    /// Puts angles in the place of a rotation's positions and factors, if others share them. `inputs` are the node's, as
    /// values of the new graph.
    pub fn replace(&mut self, to: &mut Graph, node: &Node, inputs: &mut Vec<Value>) -> Result<()> {
        let Some(turn) = self.turn(node).filter(|turn| self.shared.contains(turn)) else { return Ok(()) };
        let known = self.made.iter().find(|(t, _)| *t == turn).map(|(_, made)| *made);
        let made = match known {
            Some(made) => made,
            None => {
                let made = to.apply(RopeAngles { rope: turn.0 }, &inputs[1..])?;
                self.made.push((turn, made));
                made
            }
        };
        inputs.truncate(1);
        inputs.push(made);
        Ok(())
    }

    /// Forgets the angles of positions that are overwritten from here on.
    pub fn overwritten(&mut self, value: Value) {
        let memory = |v: Value| {
            let root = self.graph.resolve(v).0;
            match &self.graph.entry(root).source {
                Source::Leaf(tensor) => (None, Some(tensor.buffer().id())),
                _ => (Some(root), None),
            }
        };
        let written = memory(value);
        self.made.retain(|((_, of), _)| of.iter().all(|&v| memory(v) != written));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::device::lower::lower;
    use crate::device::software::{self, Options};
    use crate::ops::{RopeKind, RopeScaling};

    fn made(graph: &Graph) -> usize {
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
            lower(&graph, |_, _| None).unwrap().map_or(0, |g| made(&g))
        };
        assert_eq!(lowered(&[100.0], false), 0, "nobody to share with");
        assert_eq!(lowered(&[100.0, 50.0], false), 0);
        assert_eq!(lowered(&[100.0, 100.0, 100.0], false), 1);
        assert_eq!(lowered(&[100.0, 50.0, 100.0, 50.0], false), 2);
        assert_eq!(lowered(&[100.0, 100.0, 100.0, 100.0], true), 2, "other positions have other angles");
    }
}
