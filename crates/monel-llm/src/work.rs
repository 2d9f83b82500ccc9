//! What a graph asks of the machine at the least: products, and bytes that have to come from memory.
//!
//! Taken from the graph itself, so that it holds for every architecture: each matrix is read once however many columns it
//! meets, attention reads the keys and values of the positions it sees, and what lies between (norms, activations, the
//! result of each step) stays in caches and is not counted. Beside the machine's ceilings this says how far a speed is from
//! what it could be.

use crate::bench::Test;
use crate::context::{BATCH, Context, Tail};
use crate::error::Result;
use monel::Graph;
use monel::ops::{FlashAttention, Masking, MatMul};
use std::any::Any;

/// Work that cannot be avoided.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Operations of products with quantized weights; a multiply-add counts as two.
    pub int8: f64,
    /// Operations of products with float weights.
    pub float: f64,
    /// Bytes of weights, and of cached keys and values.
    pub bytes: f64,
}

impl std::ops::AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.int8 += other.int8;
        self.float += other.float;
        self.bytes += other.bytes;
    }
}

impl Work {
    /// The work of a graph, after which `end` positions of the cache are filled.
    pub fn of(graph: &Graph, end: usize) -> Work {
        let mut work = Work::default();
        for (value, node) in graph.nodes() {
            let op: &dyn Any = &*node.op;
            let input = |i: usize| node.inputs.get(i).map(|&v| *graph.desc(v));
            if op.is::<MatMul>() {
                let Some(weights) = input(0) else { continue };
                let operations = 2.0 * weights.ne[0] as f64 * graph.desc(value).elements() as f64;
                if weights.dtype.is_quantized() {
                    work.int8 += operations;
                } else {
                    work.float += operations;
                }
                work.bytes += weights.span() as f64;
            } else if let Some(attention) = op.downcast_ref::<FlashAttention>() {
                let Some(tokens) = input(0).map(|q| q.ne[1]) else { continue };
                for cells in [input(1), input(2)].into_iter().flatten() {
                    let seen = match attention.masking {
                        Masking::Causal { window: Some(w) } => end.min(w + tokens - 1),
                        Masking::Causal { window: None } => end,
                        Masking::None | Masking::Mask => cells.ne[1],
                    };
                    let row = cells.dtype.row_bytes(cells.ne[0]);
                    work.bytes += (seen.min(cells.ne[1]) * row * cells.ne[2] * cells.ne[3]) as f64;
                }
            }
        }
        work
    }
}

impl Context {
    /// The work of a benchmark's test, without the tokens that are there before it.
    ///
    /// # Errors
    /// Those of [`Context::graph`].
    pub fn work(&mut self, test: Test) -> Result<Work> {
        let mut work = Work::default();
        match test {
            Test::Prompt { tokens, depth } => {
                for done in (0..tokens).step_by(BATCH) {
                    let count = BATCH.min(tokens - done);
                    let end = done + count;
                    let tail = if end == tokens { Tail::Logits } else { Tail::None };
                    work += Work::of(&self.graph(count, tail)?, depth + end);
                }
            }
            Test::Generate { tokens, depth, .. } => {
                let graph = self.graph(1, Tail::Sample)?;
                (0..tokens).for_each(|n| work += Work::of(&graph, depth + n + 1));
            }
        }
        Ok(work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use monel::{DType, device};

    #[test]
    fn products_and_what_attention_sees() -> monel::Result<()> {
        let device = device::open_cpu()?;
        let eight = device.tensor(DType::Q8_0, &[64, 10])?;
        let floats = device.tensor(DType::F32, &[10, 6])?;
        let x = device.tensor(DType::F32, &[64, 3])?;
        let mut graph = Graph::new("products");
        let (a, b, x) = (graph.leaf(&eight), graph.leaf(&floats), graph.leaf(&x));
        let y = graph.mat_mul(a, x)?;
        graph.mat_mul(b, y)?;
        let expected = Work { int8: 2.0 * 64.0 * 30.0, float: 2.0 * 10.0 * 18.0, bytes: 10.0 * 68.0 + 240.0 };
        assert_eq!(Work::of(&graph, 5), expected);

        // Two tokens of four heads over two KV heads of a cache of 32 positions.
        let q = device.tensor(DType::F32, &[64, 2, 4])?;
        let k = device.tensor(DType::F16, &[64, 32, 2])?;
        let v = device.tensor(DType::Q8_0, &[64, 32, 2])?;
        let positions = device.tensor(DType::I32, &[2])?;
        // A query's window of 8 cells and the one before it.
        for (window, end, seen) in [(None, 20, 20), (Some(8), 20, 9), (Some(8), 5, 5), (None, 40, 32)] {
            let mut graph = Graph::new("attention");
            let [q, k, v, at] = [&q, &k, &v, &positions].map(|t| graph.leaf(t));
            let op = FlashAttention { scale: 1.0, softcap: None, masking: Masking::Causal { window } };
            graph.flash_attention([q, k, v], Some(at), op)?;
            let bytes = (seen * 2 * (128 + 68)) as f64;
            assert_eq!(Work::of(&graph, end), Work { bytes, ..Work::default() });
        }
        Ok(())
    }
}
