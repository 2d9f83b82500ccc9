//! Qwen2 and Qwen2.5 (arXiv 2407.10671): Llama's blocks with biases on q, k and v, and rope over halves.

use super::Architecture;
use monel::ops::RopeKind;

/// Tensors of a pre-norm block, and whether they may be absent.
pub(super) const TENSORS: &[(&str, bool)] = &[
    ("attn_norm.weight", false),
    ("attn_q.weight", false),
    ("attn_q.bias", true),
    ("attn_k.weight", false),
    ("attn_k.bias", true),
    ("attn_v.weight", false),
    ("attn_v.bias", true),
    ("attn_output.weight", false),
    ("ffn_norm.weight", false),
    ("ffn_gate.weight", false),
    ("ffn_up.weight", false),
    ("ffn_down.weight", false),
];

pub(super) static QWEN2: Architecture = Architecture {
    name: "qwen2",
    rope: RopeKind::Neox,
    adjust: |_| {},
    layer_tensors: TENSORS,
    layers: super::llama::layers,
};
