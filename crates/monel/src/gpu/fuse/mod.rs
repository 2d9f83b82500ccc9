//! Fusion: several ops of a graph as one step of a GPU's plan.
//!
//! On a GPU each step that depends on the one before costs microseconds whatever it does, so a decode step of a small
//! model is as fast as its chain of steps is short. A *pattern* looks at a node and the ones behind it and proposes a
//! group; the group's kernels are made from the ops' own parameters, so what is computed stays what the graph says.
//!
//! To add a pattern: a file beside this one with a function that proposes a group, one that makes its dispatches, and a
//! line in [`PATTERNS`]. A proposal that cannot be made into dispatches is dropped, and its ops run one by one.

mod attention;
mod products;
mod rows;

use super::{Dispatch, Limits, Memory, Operand};
use crate::graph::{Graph, Node, Source, Value};
use crate::ops::{Binary, FlashAttention, Glu, MatMul, Op, SetRows};
use crate::plan::Uses;
use crate::tensor::{DType, Desc};
use std::any::Any;

/// An op of a group with its operands.
pub struct Member<'a> {
    /// The op.
    pub op: &'a dyn Op,
    /// Its inputs. Those made inside the group are the outputs of earlier members (the same [`Memory`]).
    pub inputs: Vec<Operand>,
    /// Its result.
    pub output: Operand,
    /// Temporary memory, as the op alone would get it.
    pub scratch: Operand,
    /// Whether the result is read outside of the group; others need not be written.
    pub kept: bool,
}

impl Member<'_> {
    fn is<T: Op>(&self) -> Option<&T> {
        (self.op as &dyn Any).downcast_ref()
    }
}

/// A pattern.
struct Pattern {
    /// The nodes to compute with the first one, in order, the first included.
    find: fn(&View<'_>, Value) -> Vec<Value>,
    /// The kernels of such a group, or why there are none.
    shader: fn(&[Member<'_>], &Limits) -> Result<Vec<Dispatch>, String>,
}

const PATTERNS: [Pattern; 3] = [
    Pattern { find: products::find, shader: products::shader },
    Pattern { find: attention::find, shader: attention::shader },
    Pattern { find: rows::find, shader: rows::shader },
];

/// What patterns look at.
struct View<'a> {
    graph: &'a Graph,
    uses: &'a Uses,
}

impl View<'_> {
    fn node(&self, value: Value) -> Option<&Node> {
        match &self.graph.entry(value).source {
            Source::Node(node) => Some(node),
            _ => None,
        }
    }

    /// The node's op, if it is a `T`.
    fn op<T: Op>(&self, value: Value) -> Option<&T> {
        (self.node(value)?.op.as_ref() as &dyn Any).downcast_ref()
    }

    fn desc(&self, value: Value) -> &Desc {
        self.graph.desc(value)
    }

    /// The only reader of a value, if it may join the group and reads the value as it was made.
    fn next(&self, group: &[Value], value: Value) -> Option<Value> {
        let next = self.uses.only(self.graph, value)?;
        self.joins(group, value, next).then_some(next)
    }

    /// The first reader of a value that may join the group, whoever else reads it.
    fn any_next(&self, group: &[Value], value: Value, wanted: impl Fn(Value) -> bool) -> Option<Value> {
        let readers = self.uses.of(self.graph, value);
        readers.iter().copied().find(|&next| wanted(next) && self.joins(group, value, next))
    }

    fn joins(&self, group: &[Value], value: Value, next: Value) -> bool {
        // A view of the value is another shape of it.
        let reads_whole = self.node(next).is_some_and(|n| n.inputs.contains(&value));
        reads_whole && crate::plan::can_join(self.graph, group, next)
    }
}

/// The nodes that are best computed together with `first`, in order and `first` included. A group ends before a node
/// that has to stay `alone`.
pub fn find(
    graph: &Graph,
    uses: &Uses,
    first: Value,
    limits: &Limits,
    alone: impl Fn(Value) -> bool,
) -> Vec<Value> {
    let view = View { graph, uses };
    for pattern in &PATTERNS {
        let mut group = (pattern.find)(&view, first);
        group.truncate(group.iter().take_while(|v| !alone(**v)).count());
        while group.len() > 1 {
            let members = members(graph, uses, &group);
            if reads_fit(&view, &group) && (pattern.shader)(&members, limits).is_ok() {
                return group;
            }
            group.pop();
        }
    }
    vec![first]
}

/// Whether members read results of the group only where the patterns take them from: anywhere else a kernel would look
/// for them in memory, where those that are not kept never come.
fn reads_fit(view: &View<'_>, group: &[Value]) -> bool {
    group.iter().all(|&member| {
        let inputs = view.node(member).map_or(&[][..], |n| &n.inputs[..]);
        let makers: Vec<Value> = inputs.iter().map(|&v| crate::plan::maker(view.graph, v)).collect();
        let inside: Vec<usize> = (0..makers.len()).filter(|&i| group.contains(&makers[i])).collect();
        if view.op::<Binary>(member).is_some() {
            return inside.len() < 2;
        }
        let (takes, distinct) = if view.op::<Glu>(member).is_some() {
            (0..2, true)
        } else if view.op::<FlashAttention>(member).is_some() {
            (0..3, true)
        } else if view.op::<MatMul>(member).is_some() || view.op::<SetRows>(member).is_some() {
            (1..2, false)
        } else {
            (0..1, false)
        };
        let apart = |&i: &usize| makers.iter().filter(|&m| *m == makers[i]).count() == 1;
        inside.iter().all(|i| takes.contains(i)) && (!distinct || inside.iter().all(apart))
    })
}

/// The kernels of a group that [`find`] made.
pub fn shader(members: &[Member<'_>], limits: &Limits) -> Result<Vec<Dispatch>, String> {
    let mut reasons = Vec::new();
    for pattern in &PATTERNS {
        match (pattern.shader)(members, limits) {
            Ok(dispatches) => return Ok(dispatches),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(reasons.join("; "))
}

/// The kernel of a single row operation whose rows lie as those of chains do, or why there is none.
pub fn row(op: &dyn Op, call: &super::GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
    let inputs = call.inputs.to_vec();
    let member = Member { op, inputs, output: call.output, scratch: call.scratch, kept: true };
    rows::shader(&[member], &call.limits)
}

/// A group's members with operands that lie nowhere yet.
fn members<'a>(graph: &'a Graph, uses: &Uses, group: &[Value]) -> Vec<Member<'a>> {
    let mut numbers: Vec<Value> = Vec::new();
    let mut number = |value: Value| {
        let at = numbers.iter().position(|v| *v == value).unwrap_or(numbers.len());
        if at == numbers.len() {
            numbers.push(value);
        }
        Memory::Input(at)
    };
    let mut list = Vec::new();
    for &value in group {
        let Source::Node(node) = &graph.entry(value).source else { continue };
        let mut operand = |v: Value| Operand { desc: *graph.desc(v), offset: 0, memory: number(v) };
        let inputs: Vec<Operand> = node.inputs.iter().map(|&v| operand(v)).collect();
        let output = operand(value);
        let descs: Vec<Desc> = inputs.iter().map(|o| o.desc).collect();
        let words = node.op.scratch(&descs, &output.desc) / 4;
        let Ok(desc) = Desc::new(DType::I32, &[words]) else { continue };
        let scratch = Operand { desc, offset: 0, memory: Memory::Scratch };
        list.push(Member {
            op: node.op.as_ref(),
            inputs,
            output,
            scratch,
            kept: uses.kept(graph, group, value),
        });
    }
    list
}

/// Whether two operands are the same bytes seen in the same way.
fn same(a: &Operand, b: &Operand) -> bool {
    a.memory == b.memory && a.offset == b.offset && a.desc.ne == b.desc.ne && a.desc.nb == b.desc.nb
}
