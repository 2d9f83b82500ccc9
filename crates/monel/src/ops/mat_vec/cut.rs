//! How a product with few columns is cut into work, and the text of its inner loop.
//!
//! Weights come from memory, so what counts is how many of their bytes are on the way at any time: the loop asks for some
//! groups of some rows before it uses any of them, and what it reads of x serves all of its rows. Everything has a name of
//! its own, as arrays leave registers where a compiler does not see through their indices.

use super::{Product, unit};
use crate::gpu::Limits;
use crate::tensor::DType;
use std::fmt::Write;

/// Invocations that keep a large device busy with reading: 132 multiprocessors with 32 subgroups each.
const BUSY: usize = 132 * 32 * 32;
/// Sets of lanes that share a row, at most.
const MOST_SETS: usize = 4;

/// Who does what. All five are powers of two, but for `steps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Rows of the weights (of both matrices of a gated product) that a set of lanes makes together.
    pub rows: usize,
    /// Groups of each row that a lane asks for before it uses the first one.
    pub steps: usize,
    /// Invocations, of one subgroup, that share a row.
    pub lanes: usize,
    /// Sets of lanes that share a row, each with turns of its own; their sums meet in the workgroup's memory.
    pub sets: usize,
    /// Invocations of a workgroup.
    pub threads: usize,
}

impl Cut {
    /// The best cut for a product.
    pub fn best(limits: &Limits, product: &Product<'_>) -> Cut {
        let (w, cols) = (&product.w.desc, product.x.desc.rows().max(1));
        let (n, groups) = (w.ne[1], w.ne[0] / unit(w));
        let quantizes = product.y.desc.dtype == DType::Q8P;
        let lanes = (limits.subgroup as usize).min(groups.next_power_of_two()).max(1);
        if limits.software {
            let threads = if quantizes { lanes.max(8) } else { lanes };
            return Cut { rows: 1, steps: 1, lanes, sets: 1, threads };
        }
        let gated = product.gated.is_some();
        let matrices = if gated { 2 } else { 1 };
        let planar = matches!(w.dtype, DType::Planar(_));
        // Measured on an H200 with one column. Floats are bound by reading, whatever the rows; of codes more rows share
        // what taking x apart costs, and two turns or more let one row's reduction hide behind the next one's reads. Of a
        // small gated product two rows to sixteen subgroups are better than one to thirty-two.
        let small = quantizes && n <= 4096;
        let rows = match n * lanes / BUSY {
            _ if cols > 2 || gated && !planar => 1,
            _ if small && gated => 2,
            2.. => 2,
            _ => 1,
        };
        let turns = groups.div_ceil(lanes).max(1);
        // Nothing but a bias or a residual is fused in.
        let alone = !gated && !quantizes && product.normed.is_none();
        let most = match cols {
            1..=2 if planar && !gated && rows == 1 => 1,
            1..=2 if planar && !gated => 2.min(turns / 2).max(1),
            1..=2 => 8 / (rows * matrices),
            3..=4 => 2,
            _ => 1,
        };
        // As many turns as with the most steps, but evenly filled.
        let steps = turns.div_ceil(turns.div_ceil(most.min(if alone { 8 } else { 4 })));
        // Few rows leave multiprocessors half empty; then a row is the work of several sets, of two turns each at least.
        // Floats have enough on the way without (8B F16 lost 1.5 us of 39).
        let mut sets = 1;
        if alone && planar && cols <= 2 && rows == 1 {
            while sets < MOST_SETS
                && 2 * lanes * sets <= limits.largest_group()
                && n * lanes * sets < 2 * BUSY * 3 / 4
                && turns >= 4 * sets * steps
            {
                sets *= 2;
            }
        }
        let threads = match quantizes {
            true if small && rows == 1 => 32 * lanes,
            // Sixteen subgroups: four such workgroups fill a multiprocessor with reads in flight.
            true => 512.max(lanes),
            false => 128.max(lanes),
        };
        let threads = if sets > 1 { threads.max(lanes * sets) } else { threads }.min(limits.largest_group());
        Cut { rows, steps, lanes, sets, threads }
    }

    /// Whether it can run.
    pub fn fits(&self, limits: &Limits) -> bool {
        [self.rows, self.lanes, self.sets, self.threads].iter().all(|v| v.is_power_of_two())
            && self.steps > 0
            && self.lanes <= limits.subgroup as usize
            && (self.lanes * self.sets..=limits.largest_group()).contains(&self.threads)
    }

    /// The names of the sums: `s` of the first matrix and `t` of the second, by row and column.
    fn sums(&self, cols: usize, gated: bool) -> impl Iterator<Item = String> {
        let rows = self.rows;
        let names = if gated { &["s", "t"][..] } else { &["s"] };
        names.iter().flat_map(move |name| {
            (0..cols).flat_map(move |c| (0..rows).map(move |r| format!("{name}{r}_{c}")))
        })
    }

    /// Text that makes the sums of rows from `first` on, of which those past the end repeat the last. `early` is done while
    /// the first weights are on their way, by all invocations; only where each has a first group ([`Self::all_begin`]).
    pub fn product(&self, cols: usize, groups: usize, gated: bool, early: Option<&str>) -> String {
        let Cut { rows, steps, lanes, sets, .. } = *self;
        let mut text = String::new();
        let out = &mut text;
        for sum in self.sums(cols, gated) {
            let _ = writeln!(out, "var {sum} = 0.0;");
        }
        for r in 0..rows {
            let _ = writeln!(out, "let row{r} = min(first + {r}u, p.n - 1u) * p.row;");
        }
        let mut begin = match sets {
            1 => "inner".to_string(),
            _ => format!("inner + part * {}u", lanes * steps),
        };
        if let Some(early) = early {
            let _ = writeln!(out, "{{ let g0 = inner;");
            self.turn(out, cols, groups, gated, early);
            out.push_str("}\n");
            begin = format!("inner + {}u", lanes * steps);
        }
        let _ = writeln!(out, "for (var g0 = {begin}; g0 < p.groups; g0 += {}u) {{", lanes * steps * sets);
        self.turn(out, cols, groups, gated, "");
        out.push_str("}\n");
        let mut other = lanes / 2;
        while other > 0 {
            for sum in self.sums(cols, gated) {
                let _ = writeln!(out, "{sum} += subgroupShuffleXor({sum}, {other}u);");
            }
            other /= 2;
        }
        if sets > 1 {
            let sums: Vec<String> = self.sums(cols, gated).collect();
            let at =
                |i: usize, set: usize| format!("met[(thread / {lanes}u + {set}u) * {}u + {i}u]", sums.len());
            out.push_str("if inner == 0u {\n");
            for (i, sum) in sums.iter().enumerate() {
                let _ = writeln!(out, "{} = {sum};", at(i, 0));
            }
            out.push_str("}\nworkgroupBarrier();\nif part == 0u {\n");
            for (i, sum) in sums.iter().enumerate() {
                for set in 1..sets {
                    let _ = writeln!(out, "{sum} += {};", at(i, set));
                }
            }
            out.push_str("}\n");
        }
        text
    }

    /// The memory in which sets meet, and the loop over a workgroup's rows: one round of them where they do.
    pub fn rounds(&self, cols: usize, gated: bool) -> (String, String) {
        let Cut { rows, lanes, sets, threads, .. } = *self;
        let (first, step) =
            (format!("thread / {}u * {rows}u", lanes * sets), threads / (lanes * sets) * rows);
        match sets {
            1 => (String::new(), format!("for (var r = {first}; r < $ROWSu; r += {step}u) {{")),
            _ => {
                let words = threads / lanes * self.sums(cols, gated).count();
                (format!("var<workgroup> met: array<f32, {words}>;"), format!("{{ let r = {first};"))
            }
        }
    }

    /// Whether every lane has a group of each row.
    pub fn all_begin(&self, groups: usize) -> bool {
        groups >= self.lanes
    }

    /// The groups from g0 on that a lane takes at once: asks for all of them, does what is between, and uses them.
    fn turn(&self, out: &mut String, cols: usize, groups: usize, gated: bool, between: &str) {
        let Cut { rows, steps, lanes, .. } = *self;
        let whole = groups.is_multiple_of(lanes * steps);
        let matrices = if gated { &[("w", "s"), ("u", "t")][..] } else { &[("w", "s")] };
        for i in 1..steps {
            let _ = match whole {
                true => writeln!(out, "let g{i} = g0 + {}u;", i * lanes),
                // What lies past the row's end is read from its last group and not added.
                false => writeln!(
                    out,
                    "let in{i} = g0 + {at}u < p.groups; let g{i} = min(g0 + {at}u, p.groups - 1u);",
                    at = i * lanes
                ),
            };
        }
        for i in 0..steps {
            for r in 0..rows {
                for (m, _) in matrices {
                    let _ = writeln!(out, "let {m}{r}_{i} = load_{m}(p.{m}4 + row{r}, g{i});");
                }
            }
        }
        out.push_str(between);
        for i in 0..steps {
            for r in 0..rows {
                for (m, _) in matrices {
                    let _ = writeln!(out, "let {m}{r}_{i}v = group_{m}({m}{r}_{i}, g{i});");
                }
            }
            for c in 0..cols {
                let _ = writeln!(out, "let x{i}_{c} = acts_of({c}u, g{i});");
                for r in 0..rows {
                    for (m, s) in matrices {
                        let product = format!("dot_group({m}{r}_{i}v, x{i}_{c})");
                        let _ = match whole || i == 0 {
                            true => writeln!(out, "{s}{r}_{c} += {product};"),
                            false => writeln!(out, "{s}{r}_{c} += select(0.0, {product}, in{i});"),
                        };
                    }
                }
            }
        }
    }

    /// Text that takes sum j of row j mod `rows` as `v`, and that of the second matrix as `up`.
    pub fn sum(&self, cols: usize, gated: bool) -> String {
        let names = self.sums(cols, false).enumerate();
        names
            .map(|(j, v)| {
                let up = v.replacen('s', "t", 1);
                match (j, gated) {
                    (0, false) => format!("var v = {v};\n"),
                    (0, true) => format!("var v = {v}; var up = {up};\n"),
                    (_, false) => format!("if j == {j}u {{ v = {v}; }}\n"),
                    (_, true) => format!("if j == {j}u {{ v = {v}; up = {up}; }}\n"),
                }
            })
            .collect()
    }
}
