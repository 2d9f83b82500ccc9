//! The parts of a transformer block that architectures share.
//!
//! Shapes: the residual stream is `[width, tokens]`; heads are `[head, heads, tokens]`; the cache of a layer is
//! `[head, context, kv_heads]` per keys and values: a head's positions lie together, so attention streams through them.

use super::{Hyper, RopeParams};
use crate::error::Result;
use crate::weights::Weights;
use monel::ops::{FlashAttention, GluKind, Masking, Rope};
use monel::{Graph, Tensor, Value};

/// What changes from step to step, read from memory by the kernels.
pub struct Inputs {
    /// Token ids, I32 `[tokens]`.
    pub tokens: Value,
    /// Their positions, I32 `[tokens]`; also the rows of the cache they go to.
    pub positions: Value,
    /// How many there are.
    pub count: usize,
}

/// Keys and values of the positions so far, one pair of tensors per layer.
pub struct Cache {
    /// `[key_head, context, kv_heads]`.
    pub keys: Vec<Tensor>,
    /// `[value_head, context, kv_heads]`.
    pub values: Vec<Tensor>,
}

/// A layer under construction.
pub struct Layer<'a> {
    /// The weights of the model.
    pub weights: &'a Weights,
    /// Which layer.
    pub index: usize,
}

impl Layer<'_> {
    /// A tensor of this layer.
    pub fn weight(&self, graph: &mut Graph, suffix: &str) -> Result<Value> {
        self.weights.leaf(graph, &format!("blk.{}.{suffix}", self.index))
    }

    fn optional(&self, graph: &mut Graph, suffix: &str) -> Option<Value> {
        self.weights.get(&format!("blk.{}.{suffix}", self.index)).map(|t| graph.leaf(t))
    }

    fn hyper(&self) -> &Hyper {
        &self.weights.hyper
    }

    fn name(&self, graph: &mut Graph, value: Value, name: &str) {
        graph.set_name(value, format!("{name} {}", self.index));
    }

    /// RMS norm by the weight `suffix`.
    pub fn norm(&self, graph: &mut Graph, x: Value, suffix: &str) -> Result<Value> {
        let weight = self.weight(graph, suffix)?;
        let y = graph.rms_norm(x, Some(weight), self.hyper().eps)?;
        self.name(graph, y, suffix.trim_end_matches(".weight"));
        Ok(y)
    }

    /// `W x`, plus the bias where the file has one.
    fn project(&self, graph: &mut Graph, x: Value, name: &str) -> Result<Value> {
        let weight = self.weight(graph, &format!("{name}.weight"))?;
        let y = graph.mat_mul(weight, x)?;
        self.name(graph, y, name);
        Ok(y)
    }

    fn biased(&self, graph: &mut Graph, y: Value, name: &str) -> Result<Value> {
        match self.optional(graph, &format!("{name}.bias")) {
            Some(bias) => Ok(graph.add(y, bias)?),
            None => Ok(y),
        }
    }

    /// Attention of x `[width, tokens]`: project, norm heads where the file has norms, rotate, write keys and values
    /// to the cache, attend, project back.
    pub fn attention(
        &self,
        graph: &mut Graph,
        x: Value,
        inputs: &Inputs,
        cache: &Cache,
        rope: &RopeParams,
        window: Option<usize>,
    ) -> Result<Value> {
        let h = self.hyper().clone();
        let n = inputs.count;
        // All three products stand together, so that they share a phase.
        let q = self.project(graph, x, "attn_q")?;
        let k = self.project(graph, x, "attn_k")?;
        let v = self.project(graph, x, "attn_v")?;
        let q = self.biased(graph, q, "attn_q")?;
        let k = self.biased(graph, k, "attn_k")?;
        let v = self.biased(graph, v, "attn_v")?;
        let mut q = graph.reshape(q, &[h.key_head, h.heads, n])?;
        let mut k = graph.reshape(k, &[h.key_head, h.kv_heads, n])?;
        if let Some(weight) = self.optional(graph, "attn_q_norm.weight") {
            q = graph.rms_norm(q, Some(weight), h.eps)?;
        }
        if let Some(weight) = self.optional(graph, "attn_k_norm.weight") {
            k = graph.rms_norm(k, Some(weight), h.eps)?;
        }
        let factors = self.weights.get("rope_freqs.weight").map(|t| graph.leaf(t));
        let op = Rope { kind: rope.kind, dims: rope.dims, base: rope.base, scaling: rope.scaling };
        let q = graph.rope(q, inputs.positions, factors, op)?;
        let k = graph.rope(k, inputs.positions, factors, op)?;
        let v = graph.reshape(v, &[h.value_head, h.kv_heads, n])?;

        let (keys, values) = (&cache.keys[self.index], &cache.values[self.index]);
        let (keys, values) = (graph.leaf(keys), graph.leaf(values));
        let k = graph.permute(k, [0, 2, 1, 3])?;
        let v = graph.permute(v, [0, 2, 1, 3])?;
        let keys = graph.set_rows(keys, k, inputs.positions)?;
        let values = graph.set_rows(values, v, inputs.positions)?;
        let q = graph.permute(q, [0, 2, 1, 3])?;
        let attention = FlashAttention {
            scale: 1.0 / (h.key_head as f32).sqrt(),
            softcap: None,
            masking: Masking::Causal { window },
        };
        let y = graph.flash_attention([q, keys, values], Some(inputs.positions), attention)?;
        self.name(graph, y, "attention");
        let y = graph.reshape(y, &[h.value_head * h.heads, n])?;
        self.project(graph, y, "attn_output")
    }

    /// The gated feed-forward block: `down(act(gate x) * up x)`.
    pub fn feed_forward(&self, graph: &mut Graph, x: Value, kind: GluKind) -> Result<Value> {
        let gate = self.project(graph, x, "ffn_gate")?;
        let up = self.project(graph, x, "ffn_up")?;
        let y = graph.glu(kind, gate, up)?;
        self.project(graph, y, "ffn_down")
    }
}
