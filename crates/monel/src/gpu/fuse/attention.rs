//! What lies between the products of q, k and v and the product behind attention: norms of heads, rotation, new rows of
//! the cache, attention, eight bits.
//!
//! Of one token everything becomes the kernel of attention (`ops/flash_attention/decode_fresh.rs`). Of more tokens,
//! and where a device has too few bindings for that, all that comes before attention becomes one kernel.

use super::{Member, View, same};
use crate::gpu::{Dispatch, GpuCall, Limits, Operand, Shader};
use crate::graph::Value;
use crate::ops::{
    FlashAttention, Fresh, Masking, QuantizeRows, RmsNorm, Rope, RopeAngles, SetRows, fused, known_angles,
};
use crate::tensor::DType;

/// The value whose memory a view shows from its first byte; `None` for other views.
fn root(view: &View<'_>, value: Value) -> Option<Value> {
    // Results that have a place resolve to it; here the node is wanted.
    let mut at = value;
    while let crate::graph::Source::View { of, offset: 0 } = &view.graph.entry(at).source {
        at = *of;
    }
    (view.node(at).is_some()).then_some(at)
}

/// The rotation whose result is seen with heads and tokens exchanged.
fn rotated(view: &View<'_>, value: Value) -> Option<Value> {
    let rope = root(view, value)?;
    view.op::<Rope>(rope)?;
    let seen = view.desc(rope).permute([0, 2, 1, 3]).ok()?;
    (*view.desc(value) == seen).then_some(rope)
}

/// The norm whose result a rotation takes, if nobody else does.
fn normed(view: &View<'_>, rope: Value) -> Option<Value> {
    let norm = *view.node(rope)?.inputs.first()?;
    view.op::<RmsNorm>(norm)?;
    (view.uses.only(view.graph, norm) == Some(rope)).then_some(norm)
}

/// The attention that a norm or a rotation leads to.
fn leads_to(view: &View<'_>, first: Value) -> Option<Value> {
    let only = |v: Value| view.uses.only(view.graph, v);
    let rope = if view.op::<RmsNorm>(first).is_some() { only(first)? } else { first };
    view.op::<Rope>(rope)?;
    let is_attention = |v: &Value| view.op::<FlashAttention>(*v).is_some();
    let next = only(rope)?;
    if is_attention(&next) {
        return Some(next);
    }
    view.op::<SetRows>(next)?;
    let readers = view.uses.of(view.graph, next);
    readers
        .iter()
        .copied()
        .find(|v| is_attention(v) && view.node(*v).is_some_and(|n| n.inputs.get(1) == Some(&next)))
}

/// The nodes before an attention, itself, and the quantizing of its result.
fn nodes(view: &View<'_>, attention: Value) -> Option<Vec<Value>> {
    let op = view.op::<FlashAttention>(attention)?;
    let [q, keys, values, positions] = view.node(attention)?.inputs[..] else { return None };
    if !matches!(op.masking, Masking::Causal { .. }) {
        return None;
    }
    let written = |cells: Value| {
        view.op::<SetRows>(cells)?;
        let [_, rows, ids] = view.node(cells)?.inputs[..] else { return None };
        (ids == positions).then_some(rows)
    };
    let (q, k) = (rotated(view, q)?, rotated(view, written(keys)?)?);
    // The kernel reads v's rows from memory, where a rotated key is not kept.
    if [q, k].contains(&crate::plan::maker(view.graph, written(values)?)) {
        return None;
    }
    let (q_inputs, k_inputs) = (&view.node(q)?.inputs, &view.node(k)?.inputs);
    // Positions alone would cost each head's rotation its sines and cosines; graphs are lowered to angles.
    let angles = q_inputs[1];
    let alike = view.op::<Rope>(q) == view.op::<Rope>(k)
        && view.op::<RopeAngles>(angles).is_some()
        && view.node(angles).is_some_and(|n| n.inputs[0] == positions)
        && q_inputs[1..] == k_inputs[1..]
        && q.index() < k.index()
        && keys.index() < values.index();
    if !alike {
        return None;
    }
    let mut group: Vec<Value> = [normed(view, q), normed(view, k)].into_iter().flatten().collect();
    group.extend([q, k, keys, values, attention]);
    group.sort_by_key(|v| v.index());
    // Of one token the result as a row is what the next product takes.
    let quantize = view.uses.only(view.graph, attention).filter(|&v| {
        let input = view.node(v).and_then(|n| n.inputs.first().copied());
        view.op::<QuantizeRows>(v).is_some()
            && input.is_some_and(|i| {
                root(view, i) == Some(attention)
                    && view.desc(i).is_contiguous()
                    && view.desc(i).elements() == view.desc(attention).elements()
            })
    });
    group.extend(quantize);
    Some(group)
}

pub(super) fn find(view: &View<'_>, first: Value) -> Vec<Value> {
    let none = vec![first];
    let Some(all) = leads_to(view, first).and_then(|attention| nodes(view, attention)) else { return none };
    if all.first() != Some(&first) {
        return none;
    }
    let mut group = none;
    for &next in &all[1..] {
        if !crate::plan::can_join(view.graph, &group, next) {
            break;
        }
        group.push(next);
    }
    group
}

/// The members by what they do. Which is which follows from their order, as [`find`] sees to.
struct Parts<'a> {
    norms: [Option<(RmsNorm, &'a Member<'a>)>; 2],
    ropes: [(Rope, &'a Member<'a>); 2],
    rows: [&'a Member<'a>; 2],
    attention: Option<(FlashAttention, &'a Member<'a>)>,
    codes: Option<&'a Member<'a>>,
}

impl<'a> Parts<'a> {
    fn of(members: &'a [Member<'a>]) -> Option<Parts<'a>> {
        let all = |wanted: fn(&Member<'_>) -> bool| members.iter().filter(move |m| wanted(m));
        let ropes: Vec<_> = members.iter().filter_map(|m| Some((*m.is::<Rope>()?, m))).collect();
        let norms: Vec<_> = members.iter().filter_map(|m| Some((*m.is::<RmsNorm>()?, m))).collect();
        let rows: Vec<_> = all(|m| m.is::<SetRows>().is_some()).collect();
        let attention: Vec<_> =
            members.iter().filter_map(|m| Some((*m.is::<FlashAttention>()?, m))).collect();
        let codes: Vec<_> = all(|m| m.is::<QuantizeRows>().is_some()).collect();
        let (&[q, k], &[keys, values]) = (ropes.as_slice(), rows.as_slice()) else { return None };
        let known = 4 + norms.len() + attention.len() + codes.len();
        if known != members.len() || attention.len() > 1 || codes.len() > attention.len() {
            return None;
        }
        let of = |rope: &Member<'_>| norms.iter().copied().find(|(_, n)| same(&n.output, &rope.inputs[0]));
        let found = [of(q.1), of(k.1)];
        (found.iter().flatten().count() == norms.len()).then_some(Parts {
            norms: found,
            ropes: [q, k],
            rows: [keys, values],
            attention: attention.first().copied(),
            codes: codes.first().copied(),
        })
    }

    /// Where tokens stand.
    fn positions(&self) -> &'a Operand {
        &self.rows[0].inputs[2]
    }

    /// What a norm takes, or the rotation where there is none.
    fn source(&self, i: usize) -> &'a Operand {
        match self.norms[i] {
            Some((_, norm)) => &norm.inputs[0],
            None => &self.ropes[i].1.inputs[0],
        }
    }

    fn weights(&self) -> [Option<(RmsNorm, Option<&'a Operand>)>; 2] {
        self.norms.map(|n| n.map(|(op, member)| (op, member.inputs.get(1))))
    }
}

pub(super) fn shader(members: &[Member<'_>], limits: &Limits) -> Result<Vec<Dispatch>, String> {
    let no = |why: &str| Err(format!("no norms, rotations and rows before attention: {why}"));
    let Some(parts) = Parts::of(members) else { return no("the ops") };
    let [(rope, q), (other, k)] = parts.ropes;
    let positions = parts.positions();
    let fits = rope == other
        && q.inputs.len() == 2
        && q.inputs[1].desc.dtype == DType::F32
        && same(&q.inputs[1], &k.inputs[1])
        && parts.rows.iter().all(|r| same(positions, &r.inputs[2]));
    if !fits {
        return no("their operands");
    }
    if k.kept || parts.norms.iter().flatten().any(|(_, n)| n.kept) {
        return no("a result that is read elsewhere");
    }
    let Some((op, attention)) = parts.attention else { return rows(&parts, limits).map(|d| vec![d]) };
    let cells = [0, 1].map(|i| same(&attention.inputs[i + 1], &parts.rows[i].output));
    if q.kept || cells != [true; 2] || !same(positions, &attention.inputs[3]) {
        return no("what attention takes");
    }
    if parts.codes.is_some() && attention.kept {
        return no("a result that is read elsewhere");
    }
    let fresh = Fresh {
        rope,
        angles: &q.inputs[1],
        q: parts.source(0),
        k: parts.source(1),
        v: &parts.rows[1].inputs[1],
        norms: parts.weights(),
    };
    let call = GpuCall {
        inputs: &attention.inputs,
        output: attention.output,
        scratch: attention.scratch,
        limits: *limits,
        window: None,
    };
    fused(op, &call, &fresh, parts.codes.map(|c| &c.output))
}

/// Everything before attention: a workgroup takes a head of a token.
fn rows(parts: &Parts<'_>, limits: &Limits) -> Result<Dispatch, String> {
    const THREADS: u32 = 64;
    let (rope, rotated) = parts.ropes[0];
    let y = &rotated.output;
    let (keys, values) = (&parts.rows[0].output, &parts.rows[1].output);
    let (q, k, v) = (parts.source(0), parts.source(1), &parts.rows[1].inputs[1]);
    let positions = parts.positions();
    let [head, heads, tokens, batches] = y.desc.ne;
    let [_, cells, kv_heads, _] = keys.desc.ne;
    if batches != 1 || keys.desc.ne[1..] != values.desc.ne[1..] || q.desc.ne[2] != tokens || tokens == 0 {
        return Err("rows before attention: one batch".into());
    }
    for cache in [keys, values] {
        if cache.desc.dtype != DType::F16 {
            return Err(format!("rows before attention: F16, found {}", cache.desc));
        }
    }
    for x in [q, k, v, y] {
        if x.desc.dtype != DType::F32 || !x.desc.has_dense_rows() {
            return Err(format!("rows before attention: F32 with dense rows, found {}", x.desc));
        }
    }
    let cells_of = move |id: u32| format!("position {} of a cache of {cells} cells", id as i32);
    let mut shader = Shader::new("attention_rows", include_str!("attention_rows.wgsl"))
        .all_bindings(limits)
        .reductions(THREADS)
        .define("HEADS", heads)
        .define("KV_HEADS", kv_heads)
        .define("HEAD", head)
        .define("VALUE", values.desc.ne[0])
        .define("PAIRS", rope.dims / 2)
        .define("STEP", positions.desc.nb[0] / 4)
        .number("tokens", tokens)
        .number("cells", cells)
        .raw("positions", "read", "i32", positions)
        .raw("q", "read", "f32", q)
        .raw("k", "read", "f32", k)
        .raw("v", "read", "f32", v)
        .raw("y", "read_write", "f32", y)
        .raw("keys", "read_write", "u16", keys)
        .raw("values", "read_write", "u16", values)
        .can_fail(cells_of);
    // v and the caches have tokens before heads.
    for (name, x, [of_head, of_token], unit) in [
        ("q", q, [1, 2], 4),
        ("k", k, [1, 2], 4),
        ("v", v, [2, 1], 4),
        ("y", y, [1, 2], 4),
        ("keys", keys, [2, 1], 2),
        ("values", values, [2, 1], 2),
    ] {
        let strides = [of_head, of_token].map(|d| x.desc.nb[d]);
        if strides.iter().any(|s| s % unit != 0) {
            return Err(format!("rows before attention: whole elements, found {}", x.desc));
        }
        shader = shader
            .number(&format!("{name}_head"), strides[0] / unit)
            .number(&format!("{name}_token"), strides[1] / unit);
    }
    for (i, norm) in parts.weights().into_iter().enumerate() {
        let x = ["q", "k"][i];
        let load = match norm {
            None => format!("{x}[at + i]"),
            Some((_, None)) => format!("{x}[at + i] * factor"),
            Some((_, Some(weight))) => {
                let w = ["weight_q", "weight_k"][i];
                if weight.desc.dtype != DType::F32 || weight.desc.ne != [head, 1, 1, 1] {
                    return Err(format!(
                        "rows before attention: a weight F32[{head}], found {}",
                        weight.desc
                    ));
                }
                shader = shader.raw(w, "read", "f32", weight);
                format!("{x}[at + i] * factor * {w}[p.{w} + i]")
            }
        };
        let factor = match norm {
            None => String::new(),
            Some((norm, _)) => format!(
                "var squares = 0.0;
    for (var i = li; i < HEAD; i += THREADS) {{ squares += {x}[at + i] * {x}[at + i]; }}
    squares = sum_all(squares, sg, nsg, lane);
    var factor = 1.0 / sqrt(squares / f32(HEAD) + {eps:?});
    if !(squares < 3e38) {{
      // Numbers whose squares overflow are made smaller by a power of two.
      let unit = 1.0842022e-19;
      squares = 0.0;
      for (var i = li; i < HEAD; i += THREADS) {{ let u = {x}[at + i] * unit; squares += u * u; }}
      squares = sum_all(squares, sg, nsg, lane);
      factor = unit / sqrt(squares / f32(HEAD) + {eps:?} * unit * unit);
    }}",
                eps = norm.eps
            ),
        };
        shader = shader.define(["NORM_Q", "NORM_K"][i], factor).define(["LOAD_Q", "LOAD_K"][i], load);
    }
    let (first, second) = rope.pair_text("pair");
    shader = shader.define("FIRST", first).define("SECOND", second).part(include_str!("../functions.wgsl"));
    known_angles(shader, rope.dims, &rotated.inputs[1])?.finish([
        (heads + 2 * kv_heads) as u32,
        tokens as u32,
        1,
    ])
}
