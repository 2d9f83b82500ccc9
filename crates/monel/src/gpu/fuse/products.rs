//! Products of few columns with the norm of one row before them and with what follows: bias, residual; the two products of
//! a gated unit, its activation, and the quantizing of its result for the next product.

use super::{Member, View, same};
use crate::gpu::{Dispatch, Limits, Operand};
use crate::graph::Value;
use crate::ops::mat_vec::{self, MAX_COLUMNS, Normed, Product};
use crate::ops::{Binary, BinaryKind, Glu, MatMul, QuantizeRows, RmsNorm};
use crate::tensor::DType;

fn is_add(view: &View<'_>, value: Value) -> bool {
    view.op::<Binary>(value).is_some_and(|b| b.kind == BinaryKind::Add)
}

pub(super) fn find(view: &View<'_>, first: Value) -> Vec<Value> {
    let mut group = vec![first];
    if view.op::<RmsNorm>(first).is_some() {
        return normed(view, first).unwrap_or(group);
    }
    product(view, &mut group, first);
    group
}

/// A norm of one row with all products that read it: those of a gated unit, of q, k and v, or of the logits.
fn normed(view: &View<'_>, norm: Value) -> Option<Vec<Value>> {
    let mut group = vec![norm];
    if view.desc(norm).rows() != 1 {
        return None;
    }
    group.extend(view.next(&group, norm).filter(|&v| view.op::<QuantizeRows>(v).is_some()));
    let x = group[group.len() - 1];
    for &reader in view.uses.of(view.graph, x) {
        if !group.contains(&reader) {
            let joins = view.op::<MatMul>(reader).is_some() && view.joins(&group, x, reader);
            if !joins {
                return None;
            }
            group.push(reader);
            if !product(view, &mut group, reader) {
                return None;
            }
        }
    }
    Some(group)
}

/// Adds to a group what follows the product `first`, its last node. Whether that is a product of few columns.
fn product(view: &View<'_>, group: &mut Vec<Value>, first: Value) -> bool {
    let (Some(_), Some(node)) = (view.op::<MatMul>(first), view.node(first)) else { return false };
    let x = view.desc(node.inputs[1]);
    if x.rows() > MAX_COLUMNS || mat_vec::takes(view.desc(node.inputs[0])) != Some(x.dtype) {
        return false;
    }
    // Gate, up, and what makes one of both.
    let glu = view.uses.only(view.graph, first).filter(|&v| view.op::<Glu>(v).is_some());
    if let Some(glu) = glu {
        let Some([gate, up]) = view.node(glu).map(|n| &n.inputs[..2]) else { return true };
        let twin = |v: Value| view.node(v).is_some_and(|n| n.inputs.get(1) == Some(&node.inputs[1]));
        if *gate == first
            && view.op::<MatMul>(*up).is_some()
            && twin(*up)
            && view.uses.only(view.graph, *up) == Some(glu)
            && crate::plan::can_join(view.graph, group, *up)
        {
            group.push(*up);
            if !crate::plan::can_join(view.graph, group, glu) {
                group.pop();
                return true;
            }
            group.push(glu);
            group.extend(view.next(group, glu).filter(|&v| view.op::<QuantizeRows>(v).is_some()));
        }
        return true;
    }
    // A bias, then a residual; either may be missing.
    let mut last = first;
    for _ in 0..2 {
        match view.next(group, last).filter(|&v| is_add(view, v)) {
            Some(add) => {
                group.push(add);
                last = add;
            }
            None => break,
        }
    }
    true
}

/// The other operand of an addition of `made`.
fn other<'a>(add: &'a Member<'_>, made: &Operand) -> Option<&'a Operand> {
    add.is::<Binary>().filter(|b| b.kind == BinaryKind::Add)?;
    match add.inputs.as_slice() {
        [a, b] if same(a, made) => Some(b),
        [a, b] if same(b, made) => Some(a),
        _ => None,
    }
}

/// The norm that a group begins with, what it makes of its row for the products, and these.
type Before<'a> = (Normed<'a>, &'a Operand, &'a [Member<'a>]);

fn before<'a>(members: &'a [Member<'a>]) -> Option<Before<'a>> {
    let [norm, rest @ ..] = members else { return None };
    let op = norm.is::<RmsNorm>()?;
    let (made, rest) = match rest {
        [q, rest @ ..] if q.is::<QuantizeRows>().is_some() && same(&q.inputs[0], &norm.output) => (q, rest),
        rest => (norm, rest),
    };
    let normed = Normed { x: &norm.inputs[0], weight: norm.inputs.get(1), eps: op.eps };
    (!norm.kept && !made.kept).then_some((normed, &made.output, rest))
}

pub(super) fn shader(members: &[Member<'_>], limits: &Limits) -> Result<Vec<Dispatch>, String> {
    let no = || Err("no product with what follows it".to_string());
    // A norm whose row is wanted elsewhere is left where it is, as the first op: no product.
    let (normed, mut rest) = match before(members) {
        Some((norm, made, rest)) => (Some((norm, made)), rest),
        None => (None, members),
    };
    let mut dispatches: Vec<Dispatch> = Vec::new();
    while let [product, behind @ ..] = rest {
        // Products of one input need nothing of each other.
        if !dispatches.is_empty() && normed.is_none() {
            return no();
        }
        let following = match behind {
            [up, glu, quantize @ ..] if up.is::<MatMul>().is_some() && glu.is::<Glu>().is_some() => {
                2 + usize::from(quantize.first().is_some_and(|q| q.is::<QuantizeRows>().is_some()))
            }
            _ => behind.iter().take_while(|m| m.is::<Binary>().is_some()).count(),
        };
        let (following, others) = behind.split_at(following);
        let mut dispatch = one(product, following, normed, limits)?;
        dispatch.beside = !dispatches.is_empty();
        dispatches.push(dispatch);
        rest = others;
    }
    if dispatches.is_empty() { no() } else { Ok(dispatches) }
}

/// A product with its unit, or with a bias and a residual, and with the norm of its input.
fn one(
    product: &Member<'_>,
    following: &[Member<'_>],
    normed: Option<(Normed<'_>, &Operand)>,
    limits: &Limits,
) -> Result<Dispatch, String> {
    let no = || Err("no product with what follows it".to_string());
    if product.is::<MatMul>().is_none() || product.kept && !following.is_empty() {
        return no();
    }
    let (w, x) = (&product.inputs[0], &product.inputs[1]);
    if normed.is_some_and(|(_, made)| !same(x, made)) {
        return no();
    }
    let normed = normed.map(|(norm, _)| norm);
    if let [up, glu, quantize @ ..] = following
        && let Some(kind) = glu.is::<Glu>()
    {
        let shares = up.is::<MatMul>().is_some()
            && same(&up.inputs[1], x)
            && up.inputs[0].desc == w.desc
            && same(&glu.inputs[0], &product.output)
            && same(&glu.inputs[1], &up.output);
        let y = match quantize {
            [] => &glu.output,
            [q] if q.is::<QuantizeRows>().is_some() && !glu.kept && same(&q.inputs[0], &glu.output) => {
                &q.output
            }
            _ => return no(),
        };
        if !shares || up.kept {
            return no();
        }
        let gated = Some((&up.inputs[0], kind.activation()));
        return Product { w, gated, x, normed, bias: None, residual: None, y }.dispatch(limits);
    }
    let (mut bias, mut residual) = (None, None);
    let mut made = &product.output;
    for (i, add) in following.iter().enumerate() {
        let Some(term) = other(add, made) else { return no() };
        let last = i + 1 == following.len();
        if term.desc.dtype != DType::F32 || !last && add.kept {
            return no();
        }
        if term.desc.ne == made.desc.ne && last {
            residual = Some(term);
        } else if term.desc.rows() == 1 && term.desc.ne[0] == made.desc.ne[0] && i == 0 {
            bias = Some(term);
        } else {
            return no();
        }
        made = &add.output;
    }
    Product { w, gated: None, x, normed, bias, residual, y: made }.dispatch(limits)
}
