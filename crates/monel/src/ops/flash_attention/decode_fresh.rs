//! What a decode step does before its attention, done inside the attention kernel: norms and rotation of queries and the
//! new key, and the new key and value on their way into the cache.
//!
//! Each workgroup makes its own queries, a subgroup a row, in registers, and leaves them in workgroup memory. The last part
//! of the cells, the shortest, also makes the newest key and value, rounds them as the cache would, uses them from there,
//! and the first workgroup of their KV head writes them. Nobody reads the new cell from the cache, so nobody waits.

use super::decode_text::Loops;
use crate::gpu::{Operand, Shader};
use crate::ops::{RmsNorm, Rope};
use crate::tensor::DType;

/// The operands of the ops before attention, of one token.
pub(crate) struct Fresh<'a> {
    /// The rotation of queries and keys.
    pub rope: Rope,
    /// Divides the frequencies.
    pub factors: Option<&'a Operand>,
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
        let text = format!(
            "let newest = split == used - 1u;
  for (var row = sg; row < select({heads}u, {all}u, newest); row += {subgroups}u) {{
    if row < {heads}u {{
      let at = p.fresh_q + (head0 + row) * {q_stride}u;
      {q}
    }} else if row == {heads}u {{
      let at = p.fresh_k + kv_head * {k_stride}u;
      {k}
    }} else {{
      for (var i = lane; i < {value4}u; i += {subgroup}u) {{
        let start = p.fresh_v + kv_head * {v_stride}u + 4u * i;
        turned[{value_at}u + (i & 1u) * {value8}u + (i >> 1u)] =
          vec4<f32>(as_f16(fresh_v[start]), as_f16(fresh_v[start + 1u]), as_f16(fresh_v[start + 2u]), as_f16(fresh_v[start + 3u]));
      }}
    }}
  }}
  workgroupBarrier();
  if newest && wg.y % {parts}u == 0u {{
    for (var i = li; i < {key8}u; i += {threads}u) {{
      k[k_at + position * p.k1 + i] = eight_f16(turned[{key_at}u + i], turned[{key_at}u + {key8}u + i]);
    }}
    for (var i = li; i < {value8}u; i += {threads}u) {{
      v[v_at + position * p.v1 + i] = eight_f16(turned[{value_at}u + i], turned[{value_at}u + {value8}u + i]);
    }}
  }}",
            all = heads + 2,
            q_stride = stride(self.q, 1),
            k_stride = stride(self.k, 1),
            v_stride = stride(self.v, 2),
            q = self.row(sizes, "q", self.norms[0], false),
            k = self.row(sizes, "k", self.norms[1], true),
            value4 = value / 4,
        );
        let newest = format!("if newest && sg == {}u {{\n    {}\n  }}", subgroups - 1, loops.newest(cap));
        let shader = shader
            .part(include_str!("decode_fresh.wgsl"))
            .define("TURNED", sizes.turned())
            .define("KEY4", key4)
            .define("KEY8", key8)
            .define("FRESH", text)
            .define("NEWEST", newest);
        self.rope.angles(shader, self.factors)
    }

    /// A subgroup's way with one row: norm, rotation, workgroup memory.
    fn row(
        &self,
        sizes: &Sizes,
        name: &str,
        norm: Option<(RmsNorm, Option<&Operand>)>,
        rounds: bool,
    ) -> String {
        let &Sizes { head, subgroup, .. } = sizes;
        let pairs = self.rope.dims / 2;
        let rest = head - 2 * pairs;
        let weight = norm.and_then(|(_, weight)| weight).map(|_| format!("weight_{name}[p.weight_{name} + "));
        let mut text = Vec::new();
        let mut add = |line: String| text.push(line);
        // Pairs j and elements behind them, those past the end looking at the last again.
        let inside = |j: usize, n: usize| match (j + 1) * subgroup <= n {
            true => "true".to_string(),
            false => format!("lane + {}u < {n}u", j * subgroup),
        };
        let (ps, rs) = (0..pairs.div_ceil(subgroup), 0..rest.div_ceil(subgroup));
        for j in ps.clone() {
            let (first, second) = self.rope.pair_text(&format!("i{j}"));
            add(format!(
                "let i{j} = min(lane + {}u, {}u); let a{j} = {first}; let b{j} = {second};
      var x{j} = vec2<f32>(fresh_{name}[at + a{j}], fresh_{name}[at + b{j}]);",
                j * subgroup,
                pairs - 1
            ));
        }
        for j in rs.clone() {
            add(format!(
                "let e{j} = min(lane + {}u, {}u); var z{j} = fresh_{name}[at + e{j}];",
                2 * pairs + j * subgroup,
                head - 1
            ));
        }
        if let Some((norm, _)) = norm {
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
      var f = 1.0 / sqrt(squares / {head}.0 + {eps:?});
      if !(squares < 3e38) {{
        let unit = 1.0842022e-19;
        let smaller = {};
        f = unit / sqrt(smaller / {head}.0 + {eps:?} * unit * unit);
      }}",
                squares("1.0"),
                squares("unit"),
                eps = norm.eps
            ));
            for j in ps.clone() {
                add(match &weight {
                    Some(w) => format!("x{j} = x{j} * f * vec2<f32>({w}a{j}], {w}b{j}]);"),
                    None => format!("x{j} = x{j} * f;"),
                });
            }
            for j in rs.clone() {
                add(match &weight {
                    Some(w) => format!("z{j} = z{j} * f * {w}e{j}];"),
                    None => format!("z{j} = z{j} * f;"),
                });
            }
        }
        let cell = |x: String| if rounds { format!("as_f16({x})") } else { x };
        for j in ps {
            add(format!(
                "let t{j} = sin_cos_of(i{j}, bitcast<i32>(position));
      if {} {{
        put_turned(row, a{j}, {});
        put_turned(row, b{j}, {});
      }}",
                inside(j, pairs),
                cell(format!("x{j}.x * t{j}.y - x{j}.y * t{j}.x")),
                cell(format!("x{j}.x * t{j}.x + x{j}.y * t{j}.y"))
            ));
        }
        for j in rs {
            add(format!("if {} {{ put_turned(row, e{j}, {}); }}", inside(j, rest), cell(format!("z{j}"))));
        }
        text.join("\n      ")
    }
}
