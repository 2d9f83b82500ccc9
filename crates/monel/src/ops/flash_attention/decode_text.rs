//! The inner loop of attention of few tokens, written out: registers have names, not indices.
//!
//! Of the rows that a subgroup reads together, each lies across `lanes` neighbouring invocations; an invocation holds the
//! same elements of every head's query and sum. Products of `unroll` rows and all heads are added up across the lanes by
//! halving: with each exchange an invocation passes on half of its rows and keeps the other half, so that in the end it
//! has the whole scores of one row, whose exponentials it computes alone.

use crate::gpu::Shader;

/// Vectors of K, and as many of V, that an invocation loads before it uses them; cells that are decoded by a function are
/// written out fewer times.
const LOADS: usize = 4;
const DECODED: usize = 2;

/// Where the loop finds the queries.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Query {
    /// In memory, as vectors.
    Vectors,
    /// In memory, element by element.
    Elements,
    /// In workgroup memory: of each row first the even vectors of four, then the odd ones.
    Turned,
}

/// Sizes of the loop.
pub(super) struct Loops {
    heads: usize,
    /// Eights of elements in a row of K, and of V.
    key: usize,
    value: usize,
    subgroup: usize,
    /// Invocations that share a row.
    lanes: usize,
    pub unroll: usize,
    masked: bool,
    /// Heads whose sums fit into workgroup memory together.
    per_pass: usize,
}

impl Loops {
    pub(super) fn new(
        [head, value]: [usize; 2],
        [heads, per_pass]: [usize; 2],
        subgroup: usize,
        fast: bool,
        masked: bool,
    ) -> Loops {
        let (key, value) = (head / 8, value / 8);
        let lanes = key.max(value).next_power_of_two().min(subgroup);
        let chunks = key.max(value).div_ceil(lanes);
        let unroll = (if fast { LOADS } else { DECODED } / chunks).max(1).next_power_of_two().min(lanes);
        Loops { heads, key, value, subgroup, lanes, unroll, masked, per_pass }
    }

    /// Rows that a subgroup reads at once.
    pub(super) fn rows_at_once(&self) -> usize {
        self.subgroup / self.lanes
    }

    /// Puts everything into the kernel's text. `cap` is the function that bends scores.
    pub(super) fn define(
        &self,
        shader: Shader,
        query: Query,
        fast_k: Option<&str>,
        fast_v: Option<&str>,
        cap: Option<&str>,
    ) -> Shader {
        shader
            .define("LANES", self.lanes)
            .define("AT_ONCE", self.rows_at_once())
            .define("UNROLL", self.unroll)
            .define("QUERY", self.query(query))
            .define("ZERO", self.zero())
            .define("SLOT", self.slot())
            .define("LOADS", self.loads(fast_k, fast_v))
            .define("SCORES", self.scores(fast_k, cap))
            .define("HIGHER", join(0..self.heads, " || ", |h| format!("t{h} > m{h} + 8.0")))
            .define("RESCALE", self.rescale())
            .define("WEIGHTS", self.weights())
            .define("VALUES", self.values(fast_v))
            .define("GATHER", self.gather())
            .define("POST", self.post())
            .define("SPREAD", self.spread())
    }

    /// Eights of a row that an invocation holds.
    fn chunks(&self, eights: usize) -> usize {
        eights.div_ceil(self.lanes)
    }

    /// Which eight of a row an invocation's chunk is, kept inside the row, and whether it is.
    fn eighth(&self, c: usize, eights: usize) -> (String, Option<String>) {
        let at = if c == 0 { "piece".to_string() } else { format!("(piece + {}u)", c * self.lanes) };
        if (c + 1) * self.lanes <= eights {
            (at, None)
        } else {
            (format!("min({at}, {}u)", eights - 1), Some(format!("{at} < {eights}u")))
        }
    }

    fn query(&self, query: Query) -> String {
        let at = match query {
            Query::Turned => "",
            _ => "let q_at = p.q + token * p.q1 + head0 * p.q2 + batch * p.q3;",
        };
        let loads =
            lines((0..self.heads).flat_map(|h| (0..self.chunks(self.key)).map(move |c| (h, c))), |(h, c)| {
                let (eighth, inside) = self.eighth(c, self.key);
                join(0..2, "\n  ", |e| {
                    let value = match query {
                        Query::Vectors => format!("q[q_at + {h}u * p.q2 + 2u * {eighth} + {e}u]"),
                        Query::Elements => format!("quad_q(q_at + {h}u * p.q2, 2u * {eighth} + {e}u)"),
                        Query::Turned => format!("turned[{}u + {eighth}]", (2 * h + e) * self.key),
                    };
                    let value = match &inside {
                        None => value,
                        Some(inside) => format!("select(vec4<f32>(0.0), {value}, {inside})"),
                    };
                    format!("let q{h}_{c}_{e} = {value} * p.scale;")
                })
            });
        format!("{at}\n  {loads}")
    }

    /// The newest cell, whose key and value lie in workgroup memory behind the queries, joins a subgroup's sums.
    pub(super) fn newest(&self, cap: Option<&str>) -> String {
        let behind = 2 * self.heads * self.key;
        let side = |name: &str, from: usize, eights: usize| {
            let all = (0..self.chunks(eights)).flat_map(|c| (0..2).map(move |e| (c, e)));
            lines(all, |(c, e)| {
                let (eighth, _) = self.eighth(c, eights);
                format!("let {name}_{c}_{e} = turned[{}u + {eighth}];", from + e * eights)
            })
        };
        let heads = lines(0..self.heads, |h| {
            let dot = join(0..self.chunks(self.key), " + ", |c| {
                format!("dot(q{h}_{c}_0, kn_{c}_0) + dot(q{h}_{c}_1, kn_{c}_1)")
            });
            let masks = (0..self.lanes.trailing_zeros()).map(|bit| 1u32 << bit);
            let add = join(masks, " ", |mask| format!("s{h} += subgroupShuffleXor(s{h}, {mask}u);"));
            let score = cap.map_or(format!("s{h}"), |cap| format!("{cap}(s{h})"));
            let sums = self.sums().filter(|&(head, ..)| head == h);
            let sums = join(sums, " ", |(h, c, e)| {
                format!("o{h}_{c}_{e} = o{h}_{c}_{e} * c{h} + w{h} * vn_{c}_{e};")
            });
            format!(
                "var s{h} = {dot}; {add}
    let t{h} = {score}; let n{h} = max(m{h}, t{h});
    let c{h} = exp2(m{h} - n{h}); let w{h} = exp2(t{h} - n{h});
    m{h} = n{h}; l{h} = l{h} * c{h} + w{h}; {sums}"
            )
        });
        let keys = side("kn", behind, self.key);
        let values = side("vn", behind + 2 * self.key, self.value);
        format!("{keys}\n    {values}\n    {heads}")
    }

    /// The names of the sums: head, chunk, half of it.
    fn sums(&self) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let (heads, chunks) = (self.heads, self.chunks(self.value));
        (0..heads).flat_map(move |h| (0..chunks).flat_map(move |c| (0..2).map(move |e| (h, c, e))))
    }

    fn zero(&self) -> String {
        let tops = lines(0..self.heads, |h| format!("var m{h} = -1e30; var l{h} = 0.0;"));
        let sums = lines(self.sums(), |(h, c, e)| format!("var o{h}_{c}_{e} = vec4<f32>(0.0);"));
        format!("{tops}\n  {sums}")
    }

    /// Bits of the lane decide which row is left; the first exchange halves the rows.
    fn slot(&self) -> String {
        let bits = self.unroll.trailing_zeros() as usize;
        let terms = join(0..bits, " + ", |i| format!("((lane >> {i}u) & 1u) * {}u", self.unroll >> (i + 1)));
        if bits == 0 { "0u".into() } else { terms }
    }

    /// The lane, of those that share a row, which has the scores of row `u`.
    fn holder(&self, u: usize) -> usize {
        let bits = self.unroll.trailing_zeros() as usize;
        (0..bits).map(|i| ((u >> (bits - 1 - i)) & 1) << i).sum()
    }

    fn loads(&self, fast_k: Option<&str>, fast_v: Option<&str>) -> String {
        let rows = lines(0..self.unroll, |u| {
            format!("let r{u} = min(tile + {}u + place, end - 1u);", u * self.rows_at_once())
        });
        let mask = if self.masked {
            lines(0..self.heads, |h| {
                format!(
                    "let b{h} = get_mask(mask_at + ((head0 + {h}u) % mask_heads) * mask_stride + min(mine, end - 1u));"
                )
            })
        } else {
            String::new()
        };
        let side = |name: &str, eights: usize, fast: Option<&str>| {
            let all = (0..self.unroll).flat_map(|u| (0..self.chunks(eights)).map(move |c| (u, c)));
            lines(all, |(u, c)| {
                let (eighth, _) = self.eighth(c, eights);
                let row = format!("{name}_at + r{u} * p.{name}1");
                if fast.is_some() {
                    format!("let {name}{u}_{c} = {name}[{row} + {eighth}];")
                } else {
                    join(0..2, " ", |e| {
                        format!("let {name}{u}_{c}_{e} = quad_{name}({row}, 2u * {eighth} + {e}u);")
                    })
                }
            })
        };
        let (k, v) = (side("k", self.key, fast_k), side("v", self.value, fast_v));
        format!("{rows}\n  {mask}\n  {k}\n  {v}")
    }

    /// Loaded eights as floats, two vectors each.
    fn decode(&self, name: &str, u: usize, eights: usize, fast: Option<&str>) -> String {
        match fast {
            None => String::new(),
            Some(ty) => lines(0..self.chunks(eights), |c| {
                format!(
                    "let {name}{u}_{c}_0 = even_{ty}({name}{u}_{c}); let {name}{u}_{c}_1 = odd_{ty}({name}{u}_{c});"
                )
            }),
        }
    }

    fn scores(&self, fast_k: Option<&str>, cap: Option<&str>) -> String {
        let mut text = Vec::new();
        let mut rows: Vec<Vec<String>> = Vec::new();
        for u in 0..self.unroll {
            text.push(self.decode("k", u, self.key, fast_k));
            for h in 0..self.heads {
                let dot = join(0..self.chunks(self.key), " + ", |c| {
                    format!("dot(q{h}_{c}_0, k{u}_{c}_0) + dot(q{h}_{c}_1, k{u}_{c}_1)")
                });
                text.push(format!("let s{u}_{h} = {dot};"));
            }
            rows.push((0..self.heads).map(|h| format!("s{u}_{h}")).collect());
        }
        let mut mask = 1;
        while rows.len() > 1 {
            let half = rows.len() / 2;
            text.push(format!("let upper{mask} = (lane & {mask}u) != 0u;"));
            let next = |j: usize, h: usize| format!("f{mask}_{j}_{h}");
            for j in 0..half {
                for (h, (a, b)) in rows[j].iter().zip(&rows[j + half]).enumerate() {
                    text.push(format!(
                        "let {} = select({a}, {b}, upper{mask}) + subgroupShuffleXor(select({b}, {a}, upper{mask}), {mask}u);",
                        next(j, h)
                    ));
                }
            }
            rows = (0..half).map(|j| (0..self.heads).map(|h| next(j, h)).collect()).collect();
            mask *= 2;
        }
        while mask < self.lanes {
            for (h, score) in rows[0].iter_mut().enumerate() {
                let next = format!("f{mask}_{h}");
                text.push(format!("let {next} = {score} + subgroupShuffleXor({score}, {mask}u);"));
                *score = next;
            }
            mask *= 2;
        }
        for (h, score) in rows[0].iter().enumerate() {
            let score = cap.map_or(score.clone(), |cap| format!("{cap}({score})"));
            // A hidden cell's score may be NaN.
            text.push(if self.masked {
                format!("let t{h} = select(-1e30, {score} + b{h} * 1.44269504, mine < end && b{h} >= -3e38);")
            } else {
                format!("let t{h} = select(-1e30, {score}, mine < end);")
            });
        }
        text.join("\n    ")
    }

    fn rescale(&self) -> String {
        lines(0..self.heads, |h| {
            let sums = self.sums().filter(|&(head, ..)| head == h);
            let sums = join(sums, " ", |(h, c, e)| format!("o{h}_{c}_{e} *= c{h};"));
            format!(
                "let n{h} = max(m{h}, subgroupMax(t{h})); let c{h} = exp2(m{h} - n{h}); m{h} = n{h}; l{h} *= c{h}; {sums}"
            )
        })
    }

    fn weights(&self) -> String {
        lines(0..self.heads, |h| {
            format!("let w{h} = select(exp2(t{h} - m{h}), 0.0, t{h} <= -1e30); l{h} += w{h};")
        })
    }

    fn values(&self, fast_v: Option<&str>) -> String {
        lines(0..self.unroll, |u| {
            let decode = self.decode("v", u, self.value, fast_v);
            let weights = join(0..self.heads, " ", |h| {
                format!("let w{u}_{h} = subgroupShuffle(w{h}, lane - piece + {}u);", self.holder(u))
            });
            let sums = join(self.sums(), " ", |(h, c, e)| {
                let term = format!("w{u}_{h} * v{u}_{c}_{e}");
                if self.masked {
                    format!("o{h}_{c}_{e} += select({term}, vec4<f32>(0.0), w{u}_{h} == 0.0);")
                } else {
                    format!("o{h}_{c}_{e} += {term};")
                }
            });
            format!("{decode}\n    {weights}\n    {sums}")
        })
    }

    /// Sums of the rows that lie side by side in a subgroup.
    fn gather(&self) -> String {
        let share = self.unroll as f64 / self.lanes as f64;
        let totals = lines(0..self.heads, |h| format!("l{h} = subgroupAdd(l{h}) * {share:?};"));
        let mut text = vec![totals];
        let mut mask = self.lanes;
        while mask < self.subgroup {
            text.extend(
                self.sums()
                    .map(|(h, c, e)| format!("o{h}_{c}_{e} += subgroupShuffleXor(o{h}_{c}_{e}, {mask}u);")),
            );
            mask *= 2;
        }
        text.join("\n  ")
    }

    fn post(&self) -> String {
        lines(0..self.heads, |h| {
            let at = format!("sg * {}u + {h}u", self.heads);
            format!("tops[{at}] = m{h}; totals[{at}] = l{h};")
        })
    }

    /// Sums of the heads of a pass, where the other subgroups find them.
    fn spread(&self) -> String {
        let heads = lines(0..self.heads, |h| {
            let sums = self.sums().filter(|&(head, ..)| head == h);
            let sums = join(sums, " ", |(h, c, e)| {
                let (eighth, inside) = self.eighth(c, self.value);
                let put = format!("sums[to{h} + 2u * {eighth} + {e}u] = o{h}_{c}_{e} * c{h};");
                inside.map_or(put.clone(), |inside| format!("if {inside} {{ {put} }}"))
            });
            format!(
                "if round == {}u {{
        let c{h} = exp2(m{h} - top_of({h}u));
        let to{h} = (sg * {}u + {}u) * {}u;
        {sums}
      }}",
                h / self.per_pass * self.per_pass,
                self.per_pass,
                h % self.per_pass,
                2 * self.value
            )
        });
        format!("if place == 0u {{\n      {heads}\n    }}")
    }
}

fn join<T>(items: impl IntoIterator<Item = T>, between: &str, text: impl Fn(T) -> String) -> String {
    items.into_iter().map(text).collect::<Vec<_>>().join(between)
}

fn lines<T>(items: impl IntoIterator<Item = T>, text: impl Fn(T) -> String) -> String {
    join(items, "\n    ", text)
}
