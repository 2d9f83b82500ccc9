//! Plans: what a graph becomes before a device sees it. Pure and printable.
//!
//! From a graph (already rewritten by the device's `lower`) a plan fixes the steps and their order, which ops are
//! chained into one step, where barriers stand, where intermediate results lie, and where the graph is cut into
//! chunks. Nothing here calls a device except to ask `supports`, so a plan can be tested and printed anywhere, and a
//! device only has to turn steps into commands.
//!
//! Order of work: validate (E4) → join ops into steps → find phases by data → place memory by lifetime in phases →
//! find barriers by byte ranges → cut into chunks (A2, A5).

mod chunk;
mod hazard;
mod join;
mod memory;
mod rates;
mod show;

pub use hazard::{Hazards, Span};
pub use join::{Uses, can_join, maker};
pub use memory::ALIGN as SCRATCH_ALIGN;
pub use rates::{Estimate, Rates};

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::graph::{Graph, Source, Value};
use crate::ops::{Cost, Op};
use crate::queue::Access;
use crate::tensor::Desc;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Where an operand lies.
#[derive(Clone, Debug)]
pub struct Place {
    /// The buffer, or `None` for the graph's scratch memory.
    pub buffer: Option<Buffer>,
    /// Byte offset in it.
    pub offset: usize,
    /// Type, dimensions, strides.
    pub desc: Desc,
}

impl Place {
    fn span(&self) -> Span {
        Span {
            memory: self.buffer.as_ref().map_or(0, Buffer::id),
            bytes: self.offset..self.offset + self.desc.span(),
        }
    }
}

/// An op with the places of its operands.
#[derive(Clone, Debug)]
pub struct PlannedOp {
    /// What is computed.
    pub op: Arc<dyn Op>,
    /// From where.
    pub inputs: Vec<Place>,
    /// To where.
    pub output: Place,
    /// Temporary memory: offset in scratch and bytes.
    pub temporary: Range<usize>,
    /// The value's name, for errors and timelines.
    pub name: String,
    /// Whether the result is read outside of the step.
    pub kept: bool,
}

/// One op, or several: what the device fuses, or a chain of row-local ops in which a thread takes each row through all.
#[derive(Clone, Debug)]
pub struct Step {
    /// The ops in order.
    pub ops: Vec<PlannedOp>,
    /// Whether everything before it has to be finished.
    pub barrier: bool,
    /// Estimated work.
    pub cost: Cost,
}

/// A part of a plan that is committed as one command buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// Which steps.
    pub steps: Range<usize>,
    /// Estimated time at the device's initial rates.
    pub estimate: Estimate,
}

/// A graph, ready to be encoded.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The graph's name.
    pub name: Arc<str>,
    /// What happens, in order.
    pub steps: Vec<Step>,
    /// Where it is cut.
    pub chunks: Vec<Chunk>,
    /// Bytes of scratch memory.
    pub scratch: usize,
    /// Bytes of buffers that it touches.
    pub access: Arc<[Access]>,
    /// Work in all.
    pub cost: Cost,
    /// Whether it needs more than one chunk's budget of time (then the window applies).
    pub long: bool,
}

/// What planning needs to know of a device.
pub struct Limits<'a> {
    /// Its name, for errors.
    pub device: &'a str,
    /// Its number: leaves have to lie on it.
    pub device_id: u64,
    /// Its speed.
    pub rates: &'a Rates,
    /// The longest a chunk may take, in nanoseconds.
    pub chunk_budget_ns: f64,
    /// Whether it computes an op with these operands.
    #[allow(clippy::type_complexity)]
    pub supports: &'a dyn Fn(&dyn Op, &[Desc], &Desc) -> Result<(), String>,
    /// The nodes it computes together with a node (in order, the node included), or `None` to chain row-local ops.
    #[allow(clippy::type_complexity)]
    pub fuse: &'a dyn Fn(&Graph, &Uses, Value) -> Option<Vec<Value>>,
}

/// Makes a plan, or says which op or tensor stands in the way; nothing runs before it succeeds (contract E4).
pub fn plan(graph: &Graph, limits: &Limits<'_>) -> Result<Plan> {
    validate(graph, limits)?;
    let uses = Uses::new(graph);
    let groups = fused(graph, &uses, limits).unwrap_or_else(|| chain(graph));
    let (phases, last) = lifetimes(graph, &groups);
    let nodes: Vec<(Value, usize)> =
        groups.iter().zip(&phases).flat_map(|(g, &p)| g.iter().map(move |&v| (v, p))).collect();

    // Scratch: one block per unplaced result, one per op that asks for temporary memory.
    let mut blocks = Vec::new();
    let mut results: HashMap<Value, usize> = HashMap::new();
    let mut temporaries: HashMap<Value, usize> = HashMap::new();
    for &(value, phase) in &nodes {
        let Source::Node(node) = &graph.entry(value).source else { continue };
        if node.place.is_none() {
            results.insert(value, blocks.len());
            let last = last.get(&value).copied().unwrap_or(phase);
            blocks.push(memory::Block { bytes: graph.desc(value).span(), first: phase, last });
        }
        let inputs: Vec<Desc> = node.inputs.iter().map(|&v| *graph.desc(v)).collect();
        let bytes = node.op.scratch(&inputs, graph.desc(value));
        if bytes > 0 {
            temporaries.insert(value, blocks.len());
            blocks.push(memory::Block { bytes, first: phase, last: phase });
        }
    }
    let (offsets, scratch) = memory::place(&blocks);

    let place = |value: Value| -> Place {
        let (root, offset) = graph.resolve(value);
        let desc = *graph.desc(value);
        match &graph.entry(root).source {
            Source::Leaf(t) => Place { buffer: Some(t.buffer().clone()), offset: t.offset() + offset, desc },
            _ => Place { buffer: None, offset: results.get(&root).map_or(0, |&b| offsets[b]) + offset, desc },
        }
    };

    let mut steps = Vec::with_capacity(groups.len());
    let mut hazards = Hazards::default();
    let mut access = Accesses::default();
    let mut total = Cost::default();
    for group in &groups {
        let mut ops = Vec::with_capacity(group.len());
        let (mut reads, mut writes, mut cost) = (Vec::new(), Vec::new(), Cost::default());
        for &value in group {
            let Source::Node(node) = &graph.entry(value).source else { continue };
            let inputs: Vec<Place> = node.inputs.iter().map(|&v| place(v)).collect();
            let output = place(value);
            let descs: Vec<Desc> = inputs.iter().map(|p| p.desc).collect();
            cost += node.op.cost(&descs, &output.desc);
            let temporary = match temporaries.get(&value) {
                Some(&b) => offsets[b]..offsets[b] + blocks[b].bytes,
                None => 0..0,
            };
            reads.extend(inputs.iter().map(Place::span));
            writes.push(output.span());
            if !temporary.is_empty() {
                writes.push(Span { memory: 0, bytes: temporary.clone() });
            }
            inputs.iter().for_each(|p| access.add(p, false, false));
            // An op that writes into its first input leaves the rest of it as it was.
            let updates = inputs.iter().any(|p| p.span() == output.span());
            access.add(&output, true, !updates && output.desc.is_contiguous());
            let name = graph.entry(value).name.clone();
            let kept = uses.kept(graph, group, value);
            ops.push(PlannedOp { op: node.op.clone(), inputs, output, temporary, name, kept });
        }
        let barrier = hazards.conflict(&reads, &writes);
        if barrier {
            hazards.clear();
        }
        hazards.add(&reads, &writes);
        total += cost;
        steps.push(Step { ops, barrier, cost });
    }
    let (chunks, long) = chunk::cut(&steps, limits.rates, limits.chunk_budget_ns);
    let name = graph.name().into();
    Ok(Plan { name, steps, chunks, scratch, access: access.finish(), cost: total, long })
}

fn validate(graph: &Graph, limits: &Limits<'_>) -> Result<()> {
    for (value, node) in graph.nodes() {
        for &v in node.inputs.iter().chain([&value]) {
            if let Source::Leaf(t) = &graph.entry(graph.resolve(v).0).source
                && t.buffer().device_id() != limits.device_id
            {
                return Err(Error::Foreign {
                    what: format!("an operand of {}", node.op.name()),
                    expected: limits.device.to_string(),
                    found: t.buffer().device_name().to_string(),
                });
            }
        }
        let inputs: Vec<Desc> = node.inputs.iter().map(|&v| *graph.desc(v)).collect();
        let output = graph.desc(value);
        let refused = |reason: String| {
            let operands: Vec<String> = inputs.iter().map(Desc::to_string).collect();
            let op = format!("{:?}({}) -> {output}", node.op, operands.join(", "));
            Error::Unsupported { device: limits.device.to_string(), op, reason }
        };
        if let (_, Some(p)) = (value, node.place)
            && let Source::Leaf(t) = &graph.entry(graph.resolve(p).0).source
            && !t.buffer().is_writable()
        {
            return Err(refused("its result would be written into mapped memory, which is read-only".into()));
        }
        (limits.supports)(node.op.as_ref(), &inputs, output).map_err(refused)?;
    }
    Ok(())
}

/// The device's own groups, if it makes any.
fn fused(graph: &Graph, uses: &Uses, limits: &Limits<'_>) -> Option<Vec<Vec<Value>>> {
    let mut taken = vec![false; graph.entries().len()];
    let mut groups: Vec<Vec<Value>> = Vec::new();
    for (value, _) in graph.nodes() {
        if taken[value.index()] {
            continue;
        }
        let mut group = vec![value];
        for next in (limits.fuse)(graph, uses, value)?.into_iter().skip(1) {
            if taken[next.index()] || !can_join(graph, &group, next) {
                break;
            }
            group.push(next);
        }
        group.iter().for_each(|v| taken[v.index()] = true);
        groups.push(group);
    }
    Some(groups)
}

/// Groups consecutive row-local nodes that pass rows on to each other.
fn chain(graph: &Graph) -> Vec<Vec<Value>> {
    let mut groups: Vec<Vec<Value>> = Vec::new();
    for (value, node) in graph.nodes() {
        let desc = graph.desc(value);
        let joins = groups.last().is_some_and(|group| {
            let local = |v: Value| match &graph.entry(v).source {
                Source::Node(n) => {
                    let inputs: Vec<Desc> = n.inputs.iter().map(|&v| *graph.desc(v)).collect();
                    n.place.is_none() && n.op.row_local(&inputs, graph.desc(v))
                }
                _ => false,
            };
            // Operands made inside the group are used as they were made, row for row.
            let passes = |&v: &Value| {
                let (root, offset) = graph.resolve(v);
                !group.contains(&root)
                    || offset == 0
                        && graph.desc(root).ne == graph.desc(v).ne
                        && graph.desc(root).nb == graph.desc(v).nb
            };
            let feeds = node.inputs.iter().any(|v| group.contains(&graph.resolve(*v).0));
            group.iter().all(|&g| local(g) && graph.desc(g).rows() == desc.rows())
                && local(value)
                && feeds
                && node.inputs.iter().all(passes)
        });
        match groups.last_mut() {
            Some(group) if joins => group.push(value),
            _ => groups.push(vec![value]),
        }
    }
    groups
}

/// The phase of each group by data dependencies alone, and the last phase that uses each result.
fn lifetimes(graph: &Graph, groups: &[Vec<Value>]) -> (Vec<usize>, HashMap<Value, usize>) {
    let mut phases = Vec::with_capacity(groups.len());
    let mut made: HashMap<Value, usize> = HashMap::new();
    let mut last: HashMap<Value, usize> = HashMap::new();
    // Placed results order through their root leaf; any use of a root that was written counts.
    let mut phase = 0;
    for group in groups {
        let inputs = |v: &Value| match &graph.entry(*v).source {
            Source::Node(n) => n.inputs.clone(),
            _ => Vec::new(),
        };
        let roots: Vec<Value> = group
            .iter()
            .flat_map(inputs)
            .map(|v| graph.resolve(v).0)
            .filter(|r| !group.contains(r))
            .collect();
        let writes = group.iter().map(|&v| graph.resolve(v).0);
        if roots.iter().copied().chain(writes).any(|r| made.get(&r).is_some_and(|&p| p >= phase)) {
            phase += 1;
        }
        for &v in group {
            made.insert(graph.resolve(v).0, phase);
            last.insert(v, phase);
        }
        for r in roots {
            last.insert(r, phase);
        }
        phases.push(phase);
    }
    (phases, last)
}

/// Buffer ranges of a graph: reads and writes, neighbours merged.
#[derive(Default)]
struct Accesses {
    list: Vec<Access>,
}

impl Accesses {
    fn add(&mut self, place: &Place, write: bool, whole: bool) {
        let Some(buffer) = &place.buffer else { return };
        let range = place.offset..place.offset + place.desc.span();
        if range.is_empty() {
            return;
        }
        // Reading what the graph itself wrote whole before is not a read from outside.
        let known = self.list.iter().any(|a| {
            a.buffer == buffer.id()
                && a.range.start <= range.start
                && range.end <= a.range.end
                && (a.write == write && a.whole >= whole || !write && a.whole)
        });
        if !known {
            self.list.push(Access { buffer: buffer.id(), range, write, whole });
        }
    }

    fn finish(mut self) -> Arc<[Access]> {
        self.list.sort_by_key(|a| (a.buffer, a.range.start, a.range.end, a.write));
        self.list.into()
    }
}
