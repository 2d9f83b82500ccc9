//! Values with rules: what a flag accepts, and what it says when it does not.

use std::str::FromStr;

use monel::DType;
use monel_llm::context::CACHE_TYPES;

/// How many tokens to generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Limit {
    /// Until the model ends or the context is full: `-1`, as in llama.cpp.
    #[default]
    Unlimited,
    /// At most this many.
    Tokens(u32),
}

impl Limit {
    /// The number, where there is a limit.
    pub fn tokens(self) -> Option<usize> {
        match self {
            Self::Unlimited => None,
            Self::Tokens(n) => Some(n as usize),
        }
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "-1" {
            return Ok(Self::Unlimited);
        }
        let what = "expected a number of tokens, or -1 for no limit";
        text.parse().map(Self::Tokens).map_err(|e| format!("{what}: {e}"))
    }
}

/// Where the random numbers of sampling start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Seed {
    /// Chosen anew, and printed so that the run can be repeated: `-1`, as in llama.cpp.
    #[default]
    Random,
    /// This one.
    Fixed(u64),
}

impl FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "-1" {
            return Ok(Self::Random);
        }
        let what = "expected a whole number from 0, or -1 for a random seed";
        text.parse().map(Self::Fixed).map_err(|e| format!("{what}: {e}"))
    }
}

fn number(text: &str, what: &str, holds: impl Fn(f32) -> bool) -> Result<f32, String> {
    match text.parse::<f32>() {
        // NaN passes no comparison, so `holds` refuses it.
        Ok(value) if value.is_finite() && holds(value) => Ok(value),
        _ => Err(format!("expected {what}")),
    }
}

/// A number of things.
pub fn count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|e| format!("expected a whole number, 0 or more: {e}"))
}

/// The tokens of a window of which the second half is predicted.
pub fn window(text: &str) -> Result<u32, String> {
    let fits = |n: &u32| *n >= 4 && n.is_multiple_of(2);
    text.parse().ok().filter(fits).ok_or_else(|| "expected an even number, 4 or more".to_string())
}

/// A number from 0, such as a temperature.
pub fn from_zero(text: &str) -> Result<f32, String> {
    number(text, "a number, 0 or more", |v| v >= 0.0)
}

/// A number over 0, such as a repeat penalty, by which logits are divided.
pub fn over_zero(text: &str) -> Result<f32, String> {
    number(text, "a number over 0", |v| v > 0.0)
}

/// A probability.
pub fn probability(text: &str) -> Result<f32, String> {
    number(text, "a number from 0 to 1", |v| (0.0..=1.0).contains(&v))
}

/// A type that the KV cache can have.
pub fn cache_type(text: &str) -> Result<DType, String> {
    let known =
        || format!("expected one of {}", CACHE_TYPES.map(|t| t.to_string().to_lowercase()).join(", "));
    DType::parse(text).filter(|t| CACHE_TYPES.contains(t)).ok_or_else(known)
}

/// Any finite number.
pub fn finite(text: &str) -> Result<f32, String> {
    number(text, "a number", |_| true)
}

/// A list of token ids as people and programs write them: separated by commas, blanks or both, with or
/// without brackets around. One comma may follow the last.
///
/// # Errors
/// Names the first part that is no id, and says where one is missing.
pub fn ids(text: &str) -> Result<Vec<u32>, String> {
    let inner = text.trim();
    let inner = inner.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(inner).trim();
    if inner.is_empty() {
        return Ok(Vec::new());
    }
    let mut ids = Vec::new();
    for part in inner.strip_suffix(',').unwrap_or(inner).split(',') {
        let before = ids.len();
        for word in part.split_whitespace() {
            let wrong = |e| format!("expected token ids such as 1,2,3, found '{word}' ({e})");
            ids.push(word.parse().map_err(wrong)?);
        }
        if ids.len() == before {
            let place = match ids.last() {
                Some(last) => format!("after {last}"),
                None => "at the start".to_string(),
            };
            return Err(format!("expected token ids such as 1,2,3, found a comma without an id {place}"));
        }
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_seeds() {
        assert_eq!("-1".parse(), Ok(Limit::Unlimited));
        assert_eq!("0".parse(), Ok(Limit::Tokens(0)));
        assert_eq!((Limit::Unlimited.tokens(), Limit::Tokens(3).tokens()), (None, Some(3)));
        assert!("-3".parse::<Limit>().is_err_and(|e| e.contains("-1 for no limit")));
        assert_eq!("18446744073709551615".parse(), Ok(Seed::Fixed(u64::MAX)));
        assert_eq!("-1".parse(), Ok(Seed::Random));
        assert!("18446744073709551616".parse::<Seed>().is_err());
    }

    #[test]
    fn numbers_keep_their_ranges() {
        assert_eq!(from_zero("0"), Ok(0.0));
        assert_eq!(probability("1"), Ok(1.0));
        assert_eq!(finite("-1.5"), Ok(-1.5));
        assert!(from_zero("-0.1").is_err());
        assert!(over_zero("0").is_err());
        assert!(probability("1.01").is_err());
        for text in ["nan", "inf", "", "x"] {
            for parse in [from_zero, over_zero, probability, finite] {
                assert!(parse(text).is_err(), "{text}");
            }
        }
    }

    #[test]
    fn windows_have_two_halves() {
        assert_eq!((window("4"), window("512")), (Ok(4), Ok(512)));
        for text in ["2", "5", "-4", "x", "4294967296"] {
            assert!(window(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ids_in_every_usual_form() {
        for text in ["1,2,3", "1 2 3", "[1, 2, 3]", " 1,\n2\t3,\r\n"] {
            assert_eq!(ids(text), Ok(vec![1, 2, 3]), "{text:?}");
        }
        assert_eq!(ids(" \n"), Ok(vec![]));
        assert!(ids("1,x,3").is_err_and(|e| e.contains("'x'")));
        assert!(ids("1,-2").is_err());
        for (text, place) in
            [("1,,2", "after 1"), ("1, ,2", "after 1"), (",1", "at the start"), ("7,,", "after 7")]
        {
            assert!(ids(text).is_err_and(|e| e.ends_with(place)), "{text}");
        }
        assert!(ids(",").is_err());
        assert_eq!(ids("[]"), Ok(vec![]));
        assert!(ids("4294967296").is_err());
    }
}
