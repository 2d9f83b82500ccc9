//! Chains of row operations: a gated unit, additions, norms, and the fewer bits that products want. One workgroup takes a
//! row through all of them in registers.

use super::{Member, View, same};
use crate::gpu::{Dispatch, Limits, Shader};
use crate::graph::Value;
use crate::ops::{Binary, BinaryKind, Glu, QuantizeRows, RmsNorm, unary_wgsl};
use crate::tensor::DType;

/// Longest row that stays in registers.
const LONGEST: usize = 16_384;

/// What a link of the chain is.
fn kind(view: &View<'_>, value: Value) -> Option<char> {
    if view.op::<RmsNorm>(value).is_some() {
        return Some('n');
    }
    if view.op::<Glu>(value).is_some() {
        return Some('g');
    }
    if view.op::<QuantizeRows>(value).is_some() {
        return Some('q');
    }
    view.op::<Binary>(value).filter(|b| b.kind == BinaryKind::Add).map(|_| 'a')
}

pub(super) fn find(view: &View<'_>, first: Value) -> Vec<Value> {
    let mut group = vec![first];
    let (Some('n' | 'a' | 'g'), Some(desc)) = (kind(view, first), Some(view.desc(first))) else {
        return group;
    };
    let shape = desc.ne;
    loop {
        let last = group[group.len() - 1];
        let fits = |v: Value| kind(view, v).is_some_and(|k| k != 'g') && view.desc(v).ne == shape;
        // A result of the chain may be read by others too: it is written then.
        match view.any_next(&group, last, fits) {
            Some(next) if group.len() < 6 => {
                group.push(next);
                if kind(view, next) == Some('q') {
                    return group;
                }
            }
            _ => return group,
        }
    }
}

pub(super) fn shader(members: &[Member<'_>], limits: &Limits) -> Result<Vec<Dispatch>, String> {
    let no = |why: &str| Err(format!("no chain of rows: {why}"));
    let Some(first) = members.first() else { return no("nothing") };
    let (x, ne) = (&first.inputs[0], first.output.desc.ne);
    let (n, rows) = (ne[0], first.output.desc.rows());
    // Blocks of eight bits are 32 long.
    let blocks = members.iter().any(|m| m.output.desc.dtype == DType::Q8P);
    if !n.is_multiple_of(if blocks { 32 } else { 4 }) || n > LONGEST || n == 0 {
        return no("the length of rows");
    }
    let quads = n / 4;
    // Processors that pose as GPUs want few invocations, but compile long arrays for minutes.
    let alone = if limits.software { quads.div_ceil(16) } else { quads };
    let threads = alone.next_power_of_two().clamp(32, limits.largest_group());
    let parts = quads.div_ceil(threads);
    let mut shader = Shader::new("rows", include_str!("rows.wgsl"))
        .reductions(threads as u32)
        .part(include_str!("../norm_factor.wgsl"))
        .part(include_str!("../quantize.wgsl"))
        .define("PARTS", parts)
        .number("rows", rows)
        .number("quads", quads);
    // Tensors of the chain's shape are contiguous, so row r of all of them begins at r * quads.
    let mut body = String::new();
    let mut made = x;
    let mut names = ["a0", "a1", "a2", "a3", "a4", "a5", "a6"].into_iter();
    let Some(name) = names.next() else { return no("names") };
    if x.desc.dtype != DType::F32 || x.desc.ne != ne || !x.desc.is_contiguous() {
        return no("the input");
    }
    shader = shader.raw(name, "read", "vec4<f32>", x);
    body.push_str(&each(&format!("v[i] = {name}[p.{name} + row + q];")));
    for (i, member) in members.iter().enumerate() {
        let y = &member.output;
        let chained = if i == 0 { 0 } else { member.inputs.iter().position(|o| same(o, made)).unwrap_or(9) };
        if chained == 9 || y.desc.ne != ne || !y.desc.is_contiguous() {
            return no("an operand");
        }
        if let Some(norm) = member.is::<RmsNorm>() {
            if chained != 0 {
                return no("a norm's weight");
            }
            shader = shader.float(["eps0", "eps1", "eps2", "eps3", "eps4", "eps5"][i.min(5)], norm.eps);
            body.push_str(&format!("f = norm_factor(v, q0, p.eps{i}, sg, nsg, lane);\n"));
            let mut weight = String::new();
            if let Some(w) = member.inputs.get(1) {
                let Some(name) = names.next() else { return no("names") };
                if w.desc.dtype != DType::F32 || w.desc.ne != [n, 1, 1, 1] {
                    return no("a norm's weight");
                }
                shader = shader.raw(name, "read", "vec4<f32>", w);
                weight = format!(" * {name}[p.{name} + q]");
            }
            body.push_str(&each(&format!("v[i] = v[i] * f{weight};")));
        } else if member.is::<Binary>().is_some_and(|b| b.kind == BinaryKind::Add) {
            let term = &member.inputs[1 - chained.min(1)];
            let Some(name) = names.next() else { return no("names") };
            if term.desc.dtype != DType::F32 || term.desc.ne != ne || !term.desc.is_contiguous() {
                return no("a term");
            }
            shader = shader.raw(name, "read", "vec4<f32>", term);
            body.push_str(&each(&format!("v[i] = v[i] + {name}[p.{name} + row + q];")));
        } else if let (Some(glu), 0) = (member.is::<Glu>(), i) {
            let up = &member.inputs[1];
            let Some(name) = names.next() else { return no("names") };
            if up.desc.dtype != DType::F32 || up.desc.ne != ne || !up.desc.is_contiguous() {
                return no("a gate's other side");
            }
            let f = unary_wgsl(glu.activation());
            shader = shader
                .part(include_str!("../functions.wgsl"))
                .raw(name, "read", "vec4<f32>", up)
                .text(&format!("fn act(v: f32) -> f32 {{ return {f}; }}\n"));
            let four = "let g = v[i]; v[i] = vec4<f32>(act(g.x), act(g.y), act(g.z), act(g.w))";
            body.push_str(&each(&format!("{four} * {name}[p.{name} + row + q];")));
        } else if member.is::<QuantizeRows>().is_some()
            && y.desc.dtype == DType::F16
            && i + 1 == members.len()
        {
            shader = shader.raw("pairs", "read_write", "vec2<u32>", y);
            let limits = "vec4<f32>(-65504.0), vec4<f32>(65504.0)";
            let bits = "f16_bits(h.x) | (f16_bits(h.y) << 16u), f16_bits(h.z) | (f16_bits(h.w) << 16u)";
            body.push_str(&each(&format!(
                "let h = clamp(v[i], {limits}); pairs[p.pairs + row + q] = vec2<u32>({bits});"
            )));
            continue;
        } else if member.is::<QuantizeRows>().is_some()
            && y.desc.dtype == DType::Q8P
            && i + 1 == members.len()
        {
            shader =
                shader.raw("codes", "read_write", "u32", y).number("words", y.desc.dtype.row_bytes(n) / 4);
            body.push_str(include_str!("rows_quantize.wgsl"));
            continue;
        } else {
            return no("an op");
        }
        if member.kept || i + 1 == members.len() {
            let Some(name) = names.next() else { return no("names") };
            shader = shader.raw(name, "read_write", "vec4<f32>", y);
            body.push_str(&each(&format!("{name}[p.{name} + row + q] = v[i];")));
        }
        made = y;
    }
    Ok(vec![shader.define("BODY", body).groups(rows)?])
}

/// Something done for each of an invocation's quads of the row.
fn each(what: &str) -> String {
    format!(
        "  for (var i = 0u; i < PARTS; i++) {{ let q = q0 + i * THREADS; if q < p.quads {{ {what} }} }}\n"
    )
}
