//! Llama (arXiv 2302.13971) and what is built like it: Mistral, SmolLM2 and others.

use super::{Architecture, Cache, Inputs, Layer};
use crate::error::Result;
use crate::weights::Weights;
use monel::ops::{GluKind, RopeKind};
use monel::{Graph, Value};

pub(super) static LLAMA: Architecture = Architecture {
    name: "llama",
    rope: RopeKind::Normal,
    adjust: |_| {},
    layer_tensors: super::qwen2::TENSORS,
    layers,
};

/// Pre-norm blocks: `x += attention(norm x)`, `x += ffn(norm x)`.
pub(super) fn layers(graph: &mut Graph, weights: &Weights, inputs: &Inputs, cache: &Cache) -> Result<Value> {
    let rope = &weights.hyper.rope;
    let embedding = weights.leaf(graph, "token_embd.weight")?;
    let mut x = graph.get_rows(embedding, inputs.tokens)?;
    for index in 0..weights.hyper.layers {
        let layer = Layer { weights, index };
        let y = layer.norm(graph, x, "attn_norm.weight")?;
        let y = layer.attention(graph, y, inputs, cache, rope, None)?;
        x = graph.add(x, y)?;
        let y = layer.norm(graph, x, "ffn_norm.weight")?;
        let y = layer.feed_forward(graph, y, GluKind::Swiglu)?;
        x = graph.add(x, y)?;
    }
    Ok(x)
}
