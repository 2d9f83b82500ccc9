//! How the next token is chosen: the settings people know from llama.cpp, with its defaults; and what logits say of the
//! probability of one.

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
    ///
    /// # Errors
    /// [`Error::Setting`] for the first that is out of its range, by the name of its flag.
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

/// What is subtracted from logits to make them log-probabilities: the logarithm of the sum of their exponentials, in f64.
/// Not a number where one of them is none.
pub(crate) fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    // Of the largest: nothing overflows, and the sum is at least 1.
    max + logits.iter().map(|&l| (f64::from(l) - max).exp()).sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::log_sum_exp;

    #[test]
    fn log_probabilities_add_up_to_one_whatever_the_size_of_the_logits() {
        let row: Vec<f32> = (0..50_000).map(|i| (i as f32 * 0.37).sin() * 20.0).collect();
        for offset in [-1e4, 0.0, 1e4] {
            // Exact in f32.
            let row: Vec<f32> = row.iter().map(|&l| (l * 64.0).round() / 64.0 + offset).collect();
            let norm = log_sum_exp(&row);
            let sum: f64 = row.iter().map(|&l| (f64::from(l) - norm).exp()).sum();
            assert!((sum - 1.0).abs() < 1e-11, "{sum} with {offset}");
            // Small ones count, however many there are: f32 would lose digits of each.
            let shifted = log_sum_exp(&row.iter().map(|&l| l - offset).collect::<Vec<_>>());
            assert!((norm - f64::from(offset) - shifted).abs() < 1e-11, "{norm} and {shifted}");
        }
        assert!((log_sum_exp(&[0.0; 8]) - 8f64.ln()).abs() < 1e-15);
        assert!(log_sum_exp(&[0.0, f32::NAN]).is_nan() && !log_sum_exp(&[f32::INFINITY, 0.0]).is_finite());
    }
}
