//! Graphs: what shall be computed, in program order.
//!
//! A [`Graph`] is a list of nodes. Leaves name tensors in buffers; views rearrange a value without moving it; a node
//! applies an [`Op`] and either gets scratch memory from the planner or writes into a place that the caller names
//! (a leaf or a view of one: a KV cache, a result to download). Shape rules are checked as the graph is built, each by
//! its op; nodes run as if one after the other, and the planner finds what may run side by side.

mod build;

use crate::error::{Error, Result};
use crate::ops::Op;
use crate::tensor::{Desc, Tensor};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A value of a graph: a leaf, a view, or the result of a node. Only meaningful in its own graph.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Value {
    graph: u32,
    index: u32,
}

impl Value {
    /// Position among the graph's values.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// Where a value comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A tensor in a buffer.
    Leaf(Tensor),
    /// The bytes of `of`, `offset` bytes further on, seen with another shape.
    View {
        /// The value looked at.
        of: Value,
        /// Byte offset from its first byte.
        offset: usize,
    },
    /// The result of an op.
    Node(Node),
}

/// An op with its operands.
#[derive(Clone, Debug)]
pub struct Node {
    /// What is computed.
    pub op: Arc<dyn Op>,
    /// From what.
    pub inputs: Vec<Value>,
    /// Where the result goes: `None` for scratch memory.
    pub place: Option<Value>,
}

/// A value's shape, origin and name.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Type, dimensions, strides.
    pub desc: Desc,
    /// Origin.
    pub source: Source,
    /// Name for errors and timelines; may be empty.
    pub name: String,
}

/// A graph under construction and when done; ops are methods (see `graph/build.rs`).
#[derive(Debug)]
pub struct Graph {
    id: u32,
    name: String,
    entries: Vec<Entry>,
}

impl Graph {
    /// An empty graph. The name shows up in errors, plans and timelines.
    pub fn new(name: impl Into<String>) -> Graph {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Graph { id: NEXT.fetch_add(1, Ordering::Relaxed), name: name.into(), entries: Vec::new() }
    }

    /// The graph's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All values in program order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The entry of a value.
    ///
    /// # Panics
    /// Never for values of this graph; builder methods check their arguments with [`Graph::check`] first.
    pub fn entry(&self, value: Value) -> &Entry {
        &self.entries[value.index()]
    }

    /// Type, dimensions and strides of a value of this graph.
    pub fn desc(&self, value: Value) -> &Desc {
        &self.entry(value).desc
    }

    /// The value with the given index.
    pub fn value(&self, index: usize) -> Value {
        Value { graph: self.id, index: index as u32 }
    }

    /// The nodes in program order, with the values they define.
    pub fn nodes(&self) -> impl Iterator<Item = (Value, &Node)> {
        self.entries.iter().enumerate().filter_map(|(i, e)| match &e.source {
            Source::Node(node) => Some((self.value(i), node)),
            _ => None,
        })
    }

    /// Refuses a value of another graph.
    pub fn check(&self, value: Value) -> Result<()> {
        if value.graph == self.id && value.index() < self.entries.len() {
            return Ok(());
        }
        Err(Error::Foreign {
            what: format!("value {}", value.index),
            expected: format!("graph {} ({})", self.id, self.name),
            found: format!("graph {}", value.graph),
        })
    }

    /// Follows views to the value whose memory they show, and the byte offset in it.
    pub fn resolve(&self, mut value: Value) -> (Value, usize) {
        let mut offset = 0;
        loop {
            match &self.entry(value).source {
                Source::View { of, offset: o } => (value, offset) = (*of, offset + o),
                Source::Node(Node { place: Some(place), .. }) => value = *place,
                _ => return (value, offset),
            }
        }
    }

    /// A tensor in a buffer, as a value.
    pub fn leaf(&mut self, tensor: &Tensor) -> Value {
        self.push(Entry { desc: *tensor.desc(), source: Source::Leaf(tensor.clone()), name: String::new() })
    }

    /// Names a value, for errors, plans and timelines.
    pub fn set_name(&mut self, value: Value, name: impl Into<String>) {
        if self.check(value).is_ok() {
            self.entries[value.index()].name = name.into();
        }
    }

    /// Applies an op; the result lies in scratch memory.
    pub fn apply(&mut self, op: impl Op, inputs: &[Value]) -> Result<Value> {
        self.apply_arc(Arc::new(op), inputs, None)
    }

    /// Applies an op and writes the result into `place`, a leaf or a view of one with the result's type and shape.
    pub fn apply_into(&mut self, op: impl Op, inputs: &[Value], place: Value) -> Result<Value> {
        self.apply_arc(Arc::new(op), inputs, Some(place))
    }

    /// As [`Graph::apply`] and [`Graph::apply_into`], for an op that is shared already.
    pub fn apply_arc(&mut self, op: Arc<dyn Op>, inputs: &[Value], place: Option<Value>) -> Result<Value> {
        for &v in inputs.iter().chain(&place) {
            self.check(v)?;
        }
        let descs: Vec<Desc> = inputs.iter().map(|&v| *self.desc(v)).collect();
        let mut desc = op.output(&descs)?;
        if let Some(place) = place {
            let found = self.desc(place);
            if found.dtype != desc.dtype || found.ne != desc.ne {
                return Err(Error::shape(op.name(), format!("to write {desc}, the place is {found}")));
            }
            if !matches!(self.entry(self.resolve(place).0).source, Source::Leaf(_)) {
                return Err(Error::shape(op.name(), "a place that is a leaf or a view of one"));
            }
            desc = *found;
        }
        let node = Node { op, inputs: inputs.to_vec(), place };
        Ok(self.push(Entry { desc, source: Source::Node(node), name: String::new() }))
    }

    /// The same bytes under other dimensions; the value has to be contiguous.
    pub fn reshape(&mut self, value: Value, dims: &[usize]) -> Result<Value> {
        self.check(value)?;
        let desc = self.desc(value).reshape(dims)?;
        Ok(self.view(value, 0, desc))
    }

    /// Dimensions in another order; dimension `i` becomes `axes[i]`.
    pub fn permute(&mut self, value: Value, axes: [usize; 4]) -> Result<Value> {
        self.check(value)?;
        let desc = self.desc(value).permute(axes)?;
        Ok(self.view(value, 0, desc))
    }

    /// Dimensions 0 and 1 exchanged.
    pub fn transpose(&mut self, value: Value) -> Result<Value> {
        self.permute(value, [1, 0, 2, 3])
    }

    /// `len` indices of one dimension, from `start`.
    pub fn slice(&mut self, value: Value, dim: usize, start: usize, len: usize) -> Result<Value> {
        self.check(value)?;
        let (desc, offset) = self.desc(value).slice(dim, start, len)?;
        Ok(self.view(value, offset, desc))
    }

    /// Another description of a value's bytes, from a byte offset; has to lie inside the value's span.
    pub fn view_as(&mut self, of: Value, offset: usize, desc: Desc) -> Result<Value> {
        self.check(of)?;
        let size = self.desc(of).span();
        if offset.checked_add(desc.span()).is_none_or(|end| end > size) {
            return Err(Error::OutOfRange { what: desc.to_string(), offset, bytes: desc.span(), size });
        }
        Ok(self.view(of, offset, desc))
    }

    fn view(&mut self, of: Value, offset: usize, desc: Desc) -> Value {
        self.push(Entry { desc, source: Source::View { of, offset }, name: String::new() })
    }

    fn push(&mut self, entry: Entry) -> Value {
        self.entries.push(entry);
        self.value(self.entries.len() - 1)
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "graph {}: {} values", self.name, self.entries.len())?;
        for (i, e) in self.entries.iter().enumerate() {
            match &e.source {
                Source::Leaf(t) => writeln!(f, "  %{i} = leaf {} {} @{:#x}", e.name, e.desc, t.address())?,
                Source::View { of, offset } => {
                    writeln!(f, "  %{i} = view %{} +{offset} {}", of.index, e.desc)?
                }
                Source::Node(n) => {
                    let inputs: Vec<String> = n.inputs.iter().map(|v| format!("%{}", v.index)).collect();
                    writeln!(f, "  %{i} = {:?}({}) {} {}", n.op, inputs.join(", "), e.desc, e.name)?;
                }
            }
        }
        Ok(())
    }
}
