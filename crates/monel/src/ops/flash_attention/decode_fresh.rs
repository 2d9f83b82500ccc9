//! What a decode step does before its attention, done inside the attention kernel: norms and rotation of queries and the
//! new key, and the new key and value on their way into the cache.
//!
//! Each workgroup makes its own queries and the newest key and value, a subgroup a row, in registers, and leaves them in
//! workgroup memory, key and value rounded as the cache would. That depends on no position, so it is asked for before the
//! position is known. The last part of the cells uses the new cell from there, and the first workgroup of its KV head
//! writes it. Nobody reads it from the cache, so nobody waits.

use super::decode_text::Loops;
use crate::gpu::{Operand, Shader};
use crate::ops::{RmsNorm, Rope, known_angles};
use crate::tensor::DType;

/// The operands of the ops before attention, of one token.
pub(crate) struct Fresh<'a> {
    /// The rotation of queries and keys.
    pub rope: Rope,
    /// Its angles: F32 `[dims]`.
    pub angles: &'a Operand,
    /// Queries as they come: F32 `[head, heads]`.
    pub q: &'a Operand,
    /// The new key: F32 `[head, kv_heads]`.
    pub k: &'a Operand,
    /// The new value: F32 `[head_v, 1, kv_heads]`.
    pub v: &'a Operand,
    /// Norms of the heads of q and k, with their weights.
    pub norms: [Option<(RmsNorm, Option<&'a Operand>)>; 2],
}

/// The text's sizes.
pub(super) struct Sizes {
    pub head: usize,
    pub value: usize,
    /// Query heads of a workgroup.
    pub heads: usize,
    /// Workgroups for the query heads of a KV head.
    pub parts: usize,
    pub subgroup: usize,
    pub subgroups: usize,
}

impl Sizes {
    /// Vectors of four floats in workgroup memory.
    pub(super) fn turned(&self) -> usize {
        ((self.heads + 1) * self.head + self.value) / 4
    }
}

impl Fresh<'_> {
    /// Declares the operands and puts the work into the kernel's text.
    pub(super) fn define(
        &self,
        shader: Shader,
        sizes: &Sizes,
        loops: &Loops,
        cap: Option<&str>,
    ) -> Result<Shader, String> {
        let &Sizes { head, value, heads, parts, subgroup, subgroups } = sizes;
        let threads = subgroup * subgroups;
        let mut shader = shader;
        for (name, operand) in [("fresh_q", self.q), ("fresh_k", self.k), ("fresh_v", self.v)] {
            if operand.desc.dtype != DType::F32 || !operand.desc.has_dense_rows() {
                return Err(format!("{name} in F32 with dense rows, found {}", operand.desc));
            }
            shader = shader.raw(name, "read", "f32", operand);
        }
        for (name, norm) in [("weight_q", self.norms[0]), ("weight_k", self.norms[1])] {
            if let Some((_, Some(weight))) = norm {
                if weight.desc.dtype != DType::F32 || weight.desc.ne != [head, 1, 1, 1] {
                    return Err(format!("{name} F32[{head}], found {}", weight.desc));
                }
                shader = shader.raw(name, "read", "f32", weight);
            }
        }
        let stride = |operand: &Operand, d: usize| operand.desc.nb[d] / 4;
        let (key4, key8, value8) = (head / 4, head / 8, value / 8);
        let (key_at, value_at) = (heads * key4, (heads + 1) * key4);
        let put_value = |i: usize| {
            let n = subgroup * i;
            format!(
                "{{
      let i = lane + {n}u;
      if i < {}u {{
        let at = p.fresh_v + kv_head * {}u + 4u * i;
        turned[{value_at}u + (i & 1u) * {value8}u + (i >> 1u)] =
          vec4<f32>(as_f16(fresh_v[at]), as_f16(fresh_v[at + 1u]), as_f16(fresh_v[at + 2u]), as_f16(fresh_v[at + 3u]));
      }} }}",
                value / 4,
                stride(self.v, 2)
            )
        };
        let rows = format!(
            "for (var row = sg; row < {all}u; row += {subgroups}u) {{
    if row <= {heads}u {{
      let is_key = row == {heads}u;
      let at = select(p.fresh_q + (head0 + row) * {q_stride}u, p.fresh_k + kv_head * {k_stride}u, is_key);
      {row}
    }} else {{
      {value_row}
    }}
  }}",
            all = heads + 2,
            q_stride = stride(self.q, 1),
            k_stride = stride(self.k, 1),
            row = self.row(sizes)?,
            value_row = (0..(value / 4).div_ceil(subgroup)).map(put_value).collect::<Vec<_>>().join("\n"),
        );
        let write = format!(
            "if newest && wg.y % {parts}u == 0u {{
    for (var i = li; i < {key8}u; i += {threads}u) {{
      k[k_at + position * p.k1 + i] = eight_f16(turned[{key_at}u + i], turned[{key_at}u + {key8}u + i]);
    }}
    for (var i = li; i < {value8}u; i += {threads}u) {{
      v[v_at + position * p.v1 + i] = eight_f16(turned[{value_at}u + i], turned[{value_at}u + {value8}u + i]);
    }}
  }}"
        );
        let newest = format!("if newest && sg == {}u {{\n    {}\n  }}", subgroups - 1, loops.newest(cap));
        let shader = shader
            .part(include_str!("decode_fresh.wgsl"))
            .define("TURNED", sizes.turned())
            .define("KEY4", key4)
            .define("KEY8", key8)
            .define("ROWS", rows)
            .define("FRESH", "let newest = split == used - 1u;\n  workgroupBarrier();")
            .define("NEWEST", format!("{newest}\n  {write}"));
        known_angles(shader, self.rope.dims, self.angles)
    }

    /// A subgroup's way with the row of a query or the key: norm, rotation, workgroup memory. Their operands differ, what is
    /// done is the same text: a kernel is read from memory, too.
    fn row(&self, sizes: &Sizes) -> Result<String, String> {
        let &Sizes { head, subgroup, .. } = sizes;
        let weights = self.norms.map(|n| n.map(|(_, weight)| weight.is_some()));
        if weights[0] != weights[1] {
            return Err("norms of queries and keys that are alike".into());
        }
        let weighted = weights[0] == Some(true);
        let pairs = self.rope.dims / 2;
        let rest = head - 2 * pairs;
        let mut text = Vec::new();
        let mut add = |line: String| text.push(line);
        // Pairs j and elements behind them, those past the end looking at the last again.
        let inside = |j: usize, n: usize| match (j + 1) * subgroup <= n {
            true => "true".to_string(),
            false => format!("lane + {}u < {n}u", j * subgroup),
        };
        let (ps, rs) = (0..pairs.div_ceil(subgroup), 0..rest.div_ceil(subgroup));
        let mut loads = [Vec::new(), Vec::new()];
        for j in ps.clone() {
            let (first, second) = self.rope.pair_text(&format!("i{j}"));
            add(format!(
                "let i{j} = min(lane + {}u, {}u); let a{j} = {first}; let b{j} = {second};
      let t{j} = known_sin_cos(i{j}, 0u); var x{j}: vec2<f32>;",
                j * subgroup,
                pairs - 1
            ));
            for (name, loads) in ["q", "k"].iter().zip(&mut loads) {
                loads.push(format!("x{j} = vec2<f32>(fresh_{name}[at + a{j}], fresh_{name}[at + b{j}]);"));
            }
        }
        for j in rs.clone() {
            let (from, last) = (2 * pairs + j * subgroup, head - 1);
            add(format!("let e{j} = min(lane + {from}u, {last}u); var z{j}: f32;"));
            for (name, loads) in ["q", "k"].iter().zip(&mut loads) {
                loads.push(format!("z{j} = fresh_{name}[at + e{j}];"));
            }
        }
        if weighted {
            ps.clone().for_each(|j| add(format!("var g{j}: vec2<f32>;")));
            rs.clone().for_each(|j| add(format!("var h{j}: f32;")));
            for (name, loads) in ["q", "k"].iter().zip(&mut loads) {
                let w = format!("weight_{name}[p.weight_{name} + ");
                loads.extend(ps.clone().map(|j| format!("g{j} = vec2<f32>({w}a{j}], {w}b{j}]);")));
                loads.extend(rs.clone().map(|j| format!("h{j} = {w}e{j}];")));
            }
        }
        let [q, k] = loads.map(|l| l.join(" "));
        add(format!("if is_key {{ {k} }} else {{ {q} }}"));
        if let [Some((of_q, _)), Some((of_k, _))] = self.norms {
            add(format!("let eps = select({:?}, {:?}, is_key);", of_q.eps, of_k.eps));
            let squares = |unit: &str| {
                let two = ps
                    .clone()
                    .map(|j| format!("select(0.0, dot(x{j} * {unit}, x{j} * {unit}), {})", inside(j, pairs)));
                let one = rs
                    .clone()
                    .map(|j| format!("select(0.0, z{j} * {unit} * z{j} * {unit}, {})", inside(j, rest)));
                format!("subgroupAdd({})", two.chain(one).collect::<Vec<_>>().join(" + "))
            };
            // Numbers whose squares overflow are made smaller by a power of two.
            add(format!(
                "let squares = {};
      var f = 1.0 / sqrt(squares / {head}.0 + eps);
      if !(squares < 3e38) {{
        let unit = 1.0842022e-19;
        let smaller = {};
        f = unit / sqrt(smaller / {head}.0 + eps * unit * unit);
      }}",
                squares("1.0"),
                squares("unit"),
            ));
            let times = |name: &str, j: usize| if weighted { format!(" * {name}{j}") } else { String::new() };
            ps.clone().for_each(|j| add(format!("x{j} = x{j} * f{};", times("g", j))));
            rs.clone().for_each(|j| add(format!("z{j} = z{j} * f{};", times("h", j))));
        }
        for j in ps {
            add(format!(
                "if {} {{
        put_turned(row, a{j}, as_cell(x{j}.x * t{j}.y - x{j}.y * t{j}.x, is_key));
        put_turned(row, b{j}, as_cell(x{j}.x * t{j}.x + x{j}.y * t{j}.y, is_key));
      }}",
                inside(j, pairs),
            ));
        }
        for j in rs {
            add(format!("if {} {{ put_turned(row, e{j}, as_cell(z{j}, is_key)); }}", inside(j, rest)));
        }
        Ok(text.join("\n      "))
    }
}
