//! Which nodes may be computed together, as one step of a plan.
//!
//! A device proposes groups (see [`Driver::fuse`](crate::device::Driver::fuse)); what may join a group is the graph's
//! matter and decided here. A group takes the place of its first node, so later members move forward: over nodes that do
//! not touch what they read and write.

use crate::graph::{Graph, Source, Value};

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

/// Whether `node` may be computed with a group at the place of the group's first node.
pub fn can_join(graph: &Graph, group: &[Value], node: Value) -> bool {
    let (Some(first), Source::Node(joins)) = (group.first(), &graph.entry(node).source) else { return false };
    if node.index() <= first.index() {
        return false;
    }
    let root = |v: &Value| graph.resolve(*v).0;
    let reads: Vec<Value> = joins.inputs.iter().map(root).collect();
    let ready = |v: &Value| match &graph.entry(*v).source {
        Source::Node(_) => v.index() < first.index() || group.contains(v),
        _ => true,
    };
    let writes = joins.place.as_ref().map(root);
    reads.iter().all(ready)
        && (first.index() + 1..node.index()).map(|i| graph.value(i)).all(|between| {
            let Source::Node(other) = &graph.entry(between).source else { return true };
            if group.contains(&between) {
                return true;
            }
            let written = other.place.as_ref().map(root);
            let clobbers = written.is_some_and(|w| reads.contains(&w) || writes == Some(w));
            let read = writes.is_some_and(|w| other.inputs.iter().any(|v| root(v) == w));
            !clobbers && !read
        })
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
        let uses = Uses::new(&g);
        assert_eq!(uses.only(&g, b), Some(d));
        assert_eq!(uses.only(&g, a), None);
        assert_eq!(uses.only(&g, written), None);
        assert!(
            uses.kept(&g, &[b, c], b) && !uses.kept(&g, &[b, d], b) && uses.kept(&g, &[written], written)
        );
    }
}
