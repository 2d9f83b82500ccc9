//! Architectures: a row of data and a short graph builder each.
//!
//! To add one: a file in this folder with its [`Architecture`], one line in [`ALL`]. The parts that architectures
//! share (projections, rope, attention over the cache, the feed-forward block) are in `block.rs`; a builder reads like
//! the formula in the paper.

mod block;
mod gemma3;
mod hyper;
mod llama;
mod qwen2;

pub use block::{Cache, Inputs, Layer};
pub(crate) use hyper::ABOVE_ZERO;
pub use hyper::{Hyper, RopeParams};

use crate::error::{Error, Result};
use crate::weights::Weights;
use monel::ops::RopeKind;
use monel::{Graph, Value};
use monel_gguf::Metadata;

/// What distinguishes a family of models.
pub struct Architecture {
    /// `general.architecture`.
    pub name: &'static str,
    /// How rope pairs the elements of a head.
    pub rope: RopeKind,
    /// Corrects the numbers that files of this family leave out.
    pub adjust: fn(&mut Hyper),
    /// Tensors of a layer by their suffix (`attn_q.weight`), and whether they may be absent.
    pub layer_tensors: &'static [(&'static str, bool)],
    /// The layers: from token ids to the last hidden state `[width, tokens]`, before the final norm.
    pub layers: fn(&mut Graph, &Weights, &Inputs, &Cache) -> Result<Value>,
}

/// All architectures.
pub static ALL: [&Architecture; 3] = [&llama::LLAMA, &qwen2::QWEN2, &gemma3::GEMMA3];

/// The architecture of a file and its numbers.
pub fn detect(metadata: &Metadata) -> Result<(&'static Architecture, Hyper)> {
    let found = metadata.require_str("general.architecture")?;
    let Some(architecture) = ALL.into_iter().find(|a| a.name == found) else {
        let known: Vec<&str> = ALL.iter().map(|a| a.name).collect();
        return Err(Error::Architecture { found: found.to_string(), known: known.join(", ") });
    };
    let mut hyper = Hyper::read(metadata, architecture.name, architecture.rope)?;
    (architecture.adjust)(&mut hyper);
    Ok((architecture, hyper))
}

/// The output head: logits F32 `[vocabulary, rows]` of hidden states `[width, rows]`, written into `place`.
pub fn head(graph: &mut Graph, weights: &Weights, hidden: Value, place: Value) -> Result<Value> {
    let norm = weights.leaf(graph, "output_norm.weight")?;
    let x = graph.rms_norm(hidden, Some(norm), weights.hyper.eps)?;
    let output = weights.leaf(graph, weights.output_name())?;
    let logits = graph.apply_into(monel::ops::MatMul, &[output, x], place)?;
    graph.set_name(logits, "logits");
    Ok(logits)
}
