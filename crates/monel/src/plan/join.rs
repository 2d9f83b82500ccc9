//! Which nodes may be computed together, as one step of a plan.
//!
//! A device proposes groups (see [`Driver::fuse`](crate::device::Driver::fuse)); what may join a group is the graph's
//! matter and decided here. A group takes the place of its first node, so later members move forward: over nodes that do
//! not touch what they read and write.

use crate::graph::{Graph, Source, Value};
use std::ops::Range;

/// Who reads each value, views followed.
pub struct Uses {
    /// Readers by the index of the value whose memory they read, in program order.
    readers: Vec<Vec<Value>>,
}

impl Uses {
    /// The uses of a graph.
    pub fn new(graph: &Graph) -> Uses {
        let mut readers = vec![Vec::new(); graph.entries().len()];
        for (value, node) in graph.nodes() {
            for &input in &node.inputs {
                let list: &mut Vec<Value> = &mut readers[graph.resolve(input).0.index()];
                if list.last() != Some(&value) {
                    list.push(value);
                }
            }
        }
        Uses { readers }
    }

    /// The nodes that read a value's memory, in program order.
    pub fn of(&self, graph: &Graph, value: Value) -> &[Value] {
        &self.readers[graph.resolve(value).0.index()]
    }

    /// The node that reads a value, if it is the only one and the value is nowhere placed.
    pub fn only(&self, graph: &Graph, value: Value) -> Option<Value> {
        match (&graph.entry(value).source, self.of(graph, value)) {
            (Source::Node(node), [one]) if node.place.is_none() => Some(*one),
            _ => None,
        }
    }

    /// Whether a node's result is read outside of a group, or has a place that others see.
    pub fn kept(&self, graph: &Graph, group: &[Value], value: Value) -> bool {
        let placed = matches!(&graph.entry(value).source, Source::Node(node) if node.place.is_some());
        placed || self.of(graph, value).iter().any(|reader| !group.contains(reader))
    }
}

/// The node or leaf that a value is or shows a part of. Unlike [`Graph::resolve`] it stops at a node that has a place.
pub fn maker(graph: &Graph, mut value: Value) -> Value {
    while let Source::View { of, .. } = &graph.entry(value).source {
        value = *of;
    }
    value
}

/// The bytes of a value: which memory (a buffer, or a result of its own), and where in it.
struct Bytes {
    buffer: Option<u64>,
    root: Value,
    range: Range<usize>,
}

impl Bytes {
    fn of(graph: &Graph, value: Value) -> Bytes {
        let (root, offset) = graph.resolve(value);
        let (buffer, offset) = match &graph.entry(root).source {
            Source::Leaf(t) => (Some(t.buffer().id()), offset + t.offset()),
            _ => (None, offset),
        };
        Bytes { buffer, root, range: offset..offset + graph.desc(value).span() }
    }

    fn overlap(&self, other: &Bytes) -> bool {
        // Two leaves may be tensors of the same bytes.
        let together =
            if self.buffer.is_some() { self.buffer == other.buffer } else { self.root == other.root };
        together && self.range.start < other.range.end && other.range.start < self.range.end
    }
}

/// Whether `node` may be computed with a group at the place of the group's first node, by a kernel whose parts run in any
/// order: nothing it reads is written meanwhile, but for results of the group that it reads as such, and nothing that the
/// group reads is written by it.
pub fn can_join(graph: &Graph, group: &[Value], node: Value) -> bool {
    let (Some(first), Source::Node(joins)) = (group.first(), &graph.entry(node).source) else { return false };
    if node.index() <= first.index() || group.contains(&node) {
        return false;
    }
    let ready = |v: &Value| {
        let (root, _) = graph.resolve(*v);
        !matches!(&graph.entry(root).source, Source::Node(_))
            || root.index() < first.index()
            || group.contains(&root)
    };
    if !joins.inputs.iter().all(ready) {
        return false;
    }
    let reads: Vec<Bytes> = joins.inputs.iter().map(|&v| Bytes::of(graph, v)).collect();
    let writes = joins.place.map(|_| Bytes::of(graph, node));
    // Results without a place have memory of their own.
    let disturbs = |other: Value, makes: &dyn Fn(Value) -> bool| {
        let Source::Node(o) = &graph.entry(other).source else { return false };
        let written = o.place.map(|_| Bytes::of(graph, other));
        let taken = |w: &Bytes| {
            reads.iter().zip(&joins.inputs).any(|(r, &v)| r.overlap(w) && !makes(v))
                || writes.as_ref().is_some_and(|own| own.overlap(w))
        };
        let spoiled = |own: &Bytes| o.inputs.iter().any(|&v| Bytes::of(graph, v).overlap(own));
        written.as_ref().is_some_and(taken) || writes.as_ref().is_some_and(spoiled)
    };
    let between = (first.index() + 1..node.index()).map(|i| graph.value(i)).filter(|v| !group.contains(v));
    !group.iter().any(|&m| disturbs(m, &|v| maker(graph, v) == m))
        && !between.into_iter().any(|v| disturbs(v, &|_| false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::software;
    use crate::tensor::DType;

    #[test]
    fn nodes_move_over_what_does_not_concern_them() {
        let device = software::create(&software::Options::default()).unwrap();
        let x = device.tensor(DType::F32, &[4]).unwrap();
        let y = device.tensor(DType::F32, &[4]).unwrap();
        let mut g = Graph::new("join");
        let (x, y) = (g.leaf(&x), g.leaf(&y));
        let a = g.scale(x, 2.0, 0.0).unwrap();
        let b = g.scale(x, 3.0, 0.0).unwrap();
        let c = g.add(a, x).unwrap();
        let d = g.add(c, b).unwrap();
        let written = g.copy_into(d, y).unwrap();
        let e = g.add(a, y).unwrap();
        assert!(can_join(&g, &[a], c), "over b");
        assert!(!can_join(&g, &[a, c], d), "b is not made yet");
        assert!(can_join(&g, &[b, c], d));
        assert!(!can_join(&g, &[a], e), "y is written between");
        assert!(!can_join(&g, &[b], a), "backwards");
        assert!(!can_join(&g, &[a, c], c), "twice");
        let uses = Uses::new(&g);
        assert_eq!(uses.only(&g, b), Some(d));
        assert_eq!(uses.only(&g, a), None);
        assert_eq!(uses.only(&g, written), None);
        assert!(
            uses.kept(&g, &[b, c], b) && !uses.kept(&g, &[b, d], b) && uses.kept(&g, &[written], written)
        );
    }

    #[test]
    fn tensors_of_the_same_bytes_are_the_same_memory() {
        let device = software::create(&software::Options::default()).unwrap();
        let (x, y) = (device.tensor(DType::F32, &[4]).unwrap(), device.tensor(DType::F32, &[4]).unwrap());
        let mut g = Graph::new("join");
        let (x1, x2, y1, y2) = (g.leaf(&x), g.leaf(&x), g.leaf(&y), g.leaf(&y));
        let a = g.scale(x1, 2.0, 0.0).unwrap();
        let _ = g.copy_into(x1, y1).unwrap();
        let c = g.add(a, y2).unwrap();
        assert!(!can_join(&g, &[a], c), "y is written between");
        let into_x = add_into(&mut g, a, y2, x2);
        assert!(!can_join(&g, &[a], into_x), "the group reads x");
        let into_y = add_into(&mut g, a, x1, y1);
        assert!(!can_join(&g, &[a], into_y), "another writes y between");
    }

    #[test]
    fn results_with_a_place_are_read_as_such_or_not_at_all() {
        let device = software::create(&software::Options::default()).unwrap();
        let (x, y) = (device.tensor(DType::F32, &[4]).unwrap(), device.tensor(DType::F32, &[4]).unwrap());
        let mut g = Graph::new("join");
        let (x, y1, y2) = (g.leaf(&x), g.leaf(&y), g.leaf(&y));
        let a = g.copy_into(x, y1).unwrap();
        let (b, c) = (g.add(a, x).unwrap(), g.add(y2, x).unwrap());
        assert!(can_join(&g, &[a], b));
        assert!(!can_join(&g, &[a], c), "the bytes of a, not a");
    }

    fn add_into(g: &mut Graph, a: Value, b: Value, place: Value) -> Value {
        let add = crate::ops::Binary { kind: crate::ops::BinaryKind::Add };
        g.apply_into(add, &[a, b], place).unwrap()
    }
}
