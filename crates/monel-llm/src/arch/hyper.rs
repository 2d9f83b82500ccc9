//! The numbers of a model: read from `ARCH.name` keys, checked once, so that nothing later divides by zero, on whatever
//! device.

use crate::error::{Error, Result};
use monel::ops::{RopeKind, RopeScaling};
use monel_gguf::Metadata;

/// Sizes and constants of a transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct Hyper {
    /// The architecture's name.
    pub arch: String,
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a key head.
    pub key_head: usize,
    /// Elements of a value head.
    pub value_head: usize,
    /// Width of the feed-forward block.
    pub ffn: usize,
    /// Positions the model was trained for.
    pub context: usize,
    /// Epsilon of the RMS norms.
    pub eps: f32,
    /// Rope of layers that see everything.
    pub rope: RopeParams,
    /// Sliding window of local layers, in positions.
    pub window: Option<usize>,
    /// Tokens in the vocabulary, by the embedding's shape; filled in when the weights are known.
    pub vocabulary: usize,
}

/// Rotary position embedding as a file describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeParams {
    /// Which elements form pairs.
    pub kind: RopeKind,
    /// Elements of a head that are rotated.
    pub dims: usize,
    /// Base of the frequencies.
    pub base: f32,
    /// Stretching to longer contexts.
    pub scaling: RopeScaling,
}

impl Hyper {
    /// Reads the numbers of architecture `arch`.
    pub fn read(metadata: &Metadata, arch: &str, rope_kind: RopeKind) -> Result<Hyper> {
        let key = |name: &str| format!("{arch}.{name}");
        let positive = |name: &str, value: u32| -> Result<usize> {
            if value == 0 || value > 1 << 24 {
                let expected = "a number from 1 to 16777216".to_string();
                return Err(Error::Metadata { key: key(name), found: value.to_string(), expected });
            }
            Ok(value as usize)
        };
        let required = |name: &str| positive(name, metadata.require_u32(&key(name))?);
        let optional = |name: &str, default: usize| match metadata.get_u32(&key(name))? {
            Some(value) => positive(name, value),
            None => Ok(default),
        };
        let (width, heads) = (required("embedding_length")?, required("attention.head_count")?);
        let kv_heads = optional("attention.head_count_kv", heads)?;
        if !heads.is_multiple_of(kv_heads) {
            let expected = format!("a divisor of {heads} query heads");
            return Err(Error::Metadata {
                key: key("attention.head_count_kv"),
                found: kv_heads.to_string(),
                expected,
            });
        }
        let key_head = optional("attention.key_length", (width / heads).max(1))?;
        let dims = optional("rope.dimension_count", key_head)?;
        if dims > key_head || !dims.is_multiple_of(2) {
            let expected = format!("an even number up to the head's {key_head}");
            return Err(Error::Metadata {
                key: key("rope.dimension_count"),
                found: dims.to_string(),
                expected,
            });
        }
        let context = required("context_length")?;
        let base = metadata.get_f32(&key("rope.freq_base"))?.unwrap_or(10_000.0);
        let base = above_zero(key("rope.freq_base"), base)?;
        let eps = key("attention.layer_norm_rms_epsilon");
        let scaling = scaling(metadata, arch, context)?;
        Ok(Hyper {
            arch: arch.to_string(),
            layers: required("block_count")?,
            width,
            heads,
            kv_heads,
            key_head,
            value_head: optional("attention.value_length", key_head)?,
            ffn: required("feed_forward_length")?,
            context,
            eps: above_zero(eps.clone(), metadata.require_f32(&eps)?)?,
            rope: RopeParams { kind: rope_kind, dims, base, scaling },
            window: metadata
                .get_u32(&key("attention.sliding_window"))?
                .filter(|&w| w > 0)
                .map(|w| w as usize),
            vocabulary: 0,
        })
    }
}

/// The number, if it is finite and above 0; NaN is neither.
fn above_zero(key: String, value: f32) -> Result<f32> {
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    Err(Error::Metadata { key, found: value.to_string(), expected: ABOVE_ZERO.to_string() })
}

/// What numbers have to be that something is divided by.
pub(crate) const ABOVE_ZERO: &str = "a finite number above 0";

/// `rope.scaling.*`: none, linear, or yarn (arXiv 2309.00071).
fn scaling(metadata: &Metadata, arch: &str, context: usize) -> Result<RopeScaling> {
    let key = |name: &str| format!("{arch}.rope.scaling.{name}");
    let number = |name: &str, default: f32| -> Result<f32> {
        above_zero(key(name), metadata.get_f32(&key(name))?.unwrap_or(default))
    };
    let factor = number("factor", 1.0)?;
    let kind = metadata.get_str(&key("type"))?.unwrap_or("none");
    match kind {
        "none" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear(factor)),
        "yarn" => {
            let original = metadata.get_u32(&key("original_context_length"))?.map_or(context, |n| n as usize);
            if original == 0 {
                let (key, expected) =
                    (key("original_context_length"), "a number of tokens above 0".to_string());
                return Err(Error::Metadata { key, found: original.to_string(), expected });
            }
            // Its share; 0 is plain interpolation.
            let ext_factor = match metadata.get_f32(&key("yarn_ext_factor"))? {
                Some(0.0) => 0.0,
                _ => number("yarn_ext_factor", 1.0)?,
            };
            Ok(RopeScaling::Yarn {
                factor,
                original_context: original,
                beta_fast: number("yarn_beta_fast", 32.0)?,
                beta_slow: number("yarn_beta_slow", 1.0)?,
                ext_factor,
                attn_factor: number("attn_factor", 1.0)?,
            })
        }
        other => Err(Error::Metadata {
            key: key("type"),
            found: other.to_string(),
            expected: "none, linear or yarn".to_string(),
        }),
    }
}
