//! How the next token is chosen: the settings people know from llama.cpp, with its defaults.

use crate::error::{Error, Result};
use monel::ops::SampleParams;

/// Sampling settings. The order is penalties, top-k, top-p, min-p, temperature, draw.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits before the draw; 0 always takes the most likely token.
    pub temperature: f32,
    /// Only the k most likely tokens; 0 means all.
    pub top_k: u32,
    /// Only the most likely tokens whose probabilities reach this sum; 1 means all.
    pub top_p: f32,
    /// Only tokens at least this likely, relative to the most likely; 0 means all.
    pub min_p: f32,
    /// Divides the logits of tokens seen lately; 1 means off.
    pub repeat_penalty: f32,
    /// Subtracted from the logits of tokens seen lately; 0 means off.
    pub presence_penalty: f32,
    /// Subtracted per time that a token was seen lately; 0 means off.
    pub frequency_penalty: f32,
    /// How many tokens count as lately.
    pub penalty_last_n: u32,
    /// Same seed, same text.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last_n: 64,
            seed: 0,
        }
    }
}

impl Sampling {
    /// Always the most likely token.
    pub fn greedy() -> Sampling {
        Sampling { temperature: 0.0, ..Sampling::default() }
    }

    /// Checked, as the device's op takes them.
    pub fn params(&self) -> Result<SampleParams> {
        let check = |name, value: f32, fine: bool, expected| {
            if fine && value.is_finite() {
                return Ok(value);
            }
            Err(Error::Setting { name, found: value.to_string(), expected })
        };
        let s = self;
        check("--temp", s.temperature, s.temperature >= 0.0, "0 or more")?;
        check("--top-p", s.top_p, (0.0..=1.0).contains(&s.top_p), "a number from 0 to 1")?;
        check("--min-p", s.min_p, (0.0..=1.0).contains(&s.min_p), "a number from 0 to 1")?;
        check("--repeat-penalty", s.repeat_penalty, s.repeat_penalty > 0.0, "more than 0")?;
        check("--presence-penalty", s.presence_penalty, true, "a finite number")?;
        check("--frequency-penalty", s.frequency_penalty, true, "a finite number")?;
        Ok(SampleParams {
            temperature: s.temperature,
            top_k: s.top_k,
            top_p: s.top_p,
            min_p: s.min_p,
            repeat_penalty: s.repeat_penalty,
            presence_penalty: s.presence_penalty,
            frequency_penalty: s.frequency_penalty,
            penalty_last_n: s.penalty_last_n,
            seed: s.seed,
        })
    }
}
