//! Products of few columns with what follows: bias, residual; the two products of a gated unit, its activation, and the
//! quantizing of its result for the next product.

use super::{Member, View, same};
use crate::gpu::{Dispatch, Limits, Operand};
use crate::graph::Value;
use crate::ops::mat_vec::{self, MAX_COLUMNS, Product};
use crate::ops::{Binary, BinaryKind, Glu, MatMul, QuantizeRows};
use crate::tensor::DType;

fn is_add(view: &View<'_>, value: Value) -> bool {
    view.op::<Binary>(value).is_some_and(|b| b.kind == BinaryKind::Add)
}

pub(super) fn find(view: &View<'_>, first: Value) -> Vec<Value> {
    let mut group = vec![first];
    let (Some(_), Some(node)) = (view.op::<MatMul>(first), view.node(first)) else { return group };
    let x = view.desc(node.inputs[1]);
    if x.rows() > MAX_COLUMNS || mat_vec::takes(view.desc(node.inputs[0])) != Some(x.dtype) {
        return group;
    }
    // Gate, up, and what makes one of both.
    let glu = view.uses.only(view.graph, first).filter(|&v| view.op::<Glu>(v).is_some());
    if let Some(glu) = glu {
        let Some([gate, up]) = view.node(glu).map(|n| &n.inputs[..2]) else { return group };
        let twin = |v: Value| view.node(v).is_some_and(|n| n.inputs.get(1) == Some(&node.inputs[1]));
        if *gate == first
            && view.op::<MatMul>(*up).is_some()
            && twin(*up)
            && view.uses.only(view.graph, *up) == Some(glu)
            && crate::plan::can_join(view.graph, &group, *up)
        {
            group.push(*up);
            if !crate::plan::can_join(view.graph, &group, glu) {
                group.pop();
                return group;
            }
            group.push(glu);
            group.extend(view.next(&group, glu).filter(|&v| view.op::<QuantizeRows>(v).is_some()));
        }
        return group;
    }
    // A bias, then a residual; either may be missing.
    let mut last = first;
    for _ in 0..2 {
        match view.next(&group, last).filter(|&v| is_add(view, v)) {
            Some(add) => {
                group.push(add);
                last = add;
            }
            None => break,
        }
    }
    group
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

pub(super) fn shader(members: &[Member<'_>], limits: &Limits) -> Result<Vec<Dispatch>, String> {
    let no = || Err("no product with what follows it".to_string());
    let [product, rest @ ..] = members else { return no() };
    if product.is::<MatMul>().is_none() || product.kept {
        return no();
    }
    let (w, x) = (&product.inputs[0], &product.inputs[1]);
    if let [up, glu, quantize @ ..] = rest
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
        return Product { w, gated, x, bias: None, residual: None, y }.dispatch(limits).map(|d| vec![d]);
    }
    let (mut bias, mut residual) = (None, None);
    let mut made = &product.output;
    for (i, add) in rest.iter().enumerate() {
        let Some(term) = other(add, made) else { return no() };
        let last = i + 1 == rest.len();
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
    Product { w, gated: None, x, bias, residual, y: made }.dispatch(limits).map(|d| vec![d])
}
