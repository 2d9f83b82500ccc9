//! Gemma 3 (arXiv 2503.19786): norms before and after each part, norms on the heads of q and k, five local layers to
//! each global one, GeGLU, embeddings times the square root of the width.

use super::{Architecture, Cache, Inputs, Layer, RopeParams};
use crate::error::Result;
use crate::weights::Weights;
use monel::ops::{GluKind, RopeKind, RopeScaling};
use monel::{Graph, Value};

/// Every sixth layer sees everything.
const PERIOD: usize = 6;
/// Rope base of local layers.
const LOCAL_BASE: f32 = 10_000.0;

pub(super) static GEMMA3: Architecture = Architecture {
    name: "gemma3",
    rope: RopeKind::Neox,
    adjust: |hyper| {
        hyper.window.get_or_insert(512);
    },
    layer_tensors: &[
        ("attn_norm.weight", false),
        ("attn_q.weight", false),
        ("attn_q_norm.weight", false),
        ("attn_k.weight", false),
        ("attn_k_norm.weight", false),
        ("attn_v.weight", false),
        ("attn_output.weight", false),
        ("post_attention_norm.weight", false),
        ("ffn_norm.weight", false),
        ("ffn_gate.weight", false),
        ("ffn_up.weight", false),
        ("ffn_down.weight", false),
        ("post_ffw_norm.weight", false),
    ],
    layers,
};

fn layers(graph: &mut Graph, weights: &Weights, inputs: &Inputs, cache: &Cache) -> Result<Value> {
    let hyper = &weights.hyper;
    let global = hyper.rope.clone();
    let local = RopeParams { base: LOCAL_BASE, scaling: RopeScaling::None, ..global.clone() };
    let embedding = weights.leaf(graph, "token_embd.weight")?;
    let x = graph.get_rows(embedding, inputs.tokens)?;
    let mut x = graph.scale(x, (hyper.width as f32).sqrt(), 0.0)?;
    for index in 0..hyper.layers {
        let layer = Layer { weights, index };
        let is_local = index % PERIOD < PERIOD - 1;
        let (rope, window) = if is_local { (&local, hyper.window) } else { (&global, None) };
        let y = layer.norm(graph, x, "attn_norm.weight")?;
        let y = layer.attention(graph, y, inputs, cache, rope, window)?;
        let y = layer.norm(graph, y, "post_attention_norm.weight")?;
        x = graph.add(x, y)?;
        let y = layer.norm(graph, x, "ffn_norm.weight")?;
        let y = layer.feed_forward(graph, y, GluKind::Geglu)?;
        let y = layer.norm(graph, y, "post_ffw_norm.weight")?;
        x = graph.add(x, y)?;
    }
    Ok(x)
}
