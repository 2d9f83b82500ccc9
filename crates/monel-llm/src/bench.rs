//! Benchmarks of a model as the interface describes them: prompts and generation, in tokens per second.

use crate::context::{Context, Tail};
use crate::error::{Error, Result};
use crate::generate::Request;
use crate::sampling::Sampling;
use monel::CancelToken;
use std::time::Instant;

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// N random tokens, the logits of the last one on the host, behind `depth` tokens.
    Prompt {
        /// How many.
        tokens: usize,
        /// Tokens in the context before.
        depth: usize,
    },
    /// N greedy tokens one by one, through the ordinary generate path, or waiting for each token and its logits.
    Generate {
        /// How many.
        tokens: usize,
        /// Tokens in the context before.
        depth: usize,
        /// Wait for each token and read its logits.
        sync: bool,
    },
}

impl Test {
    /// `pp512`, `tg128`, `tg32 @ d2048`.
    pub fn name(&self) -> String {
        let (kind, tokens, depth) = match *self {
            Test::Prompt { tokens, depth } => ("pp", tokens, depth),
            Test::Generate { tokens, depth, .. } => ("tg", tokens, depth),
        };
        if depth == 0 { format!("{kind}{tokens}") } else { format!("{kind}{tokens} @ d{depth}") }
    }

    /// Tokens it processes or generates.
    pub fn tokens(&self) -> usize {
        match *self {
            Test::Prompt { tokens, .. } | Test::Generate { tokens, .. } => tokens,
        }
    }

    /// Positions the test needs.
    pub fn positions(&self) -> usize {
        match *self {
            Test::Prompt { tokens, depth } | Test::Generate { tokens, depth, .. } => tokens + depth + 1,
        }
    }
}

impl Context {
    /// Runs a test once, in an emptied context; tokens per second. `cancel` ends it between the engine's chunks (contract
    /// E5), as an error.
    ///
    /// # Errors
    /// [`Error::PromptTooLong`] for a test with more positions than the context has, [`Error::Engine`] where the device
    /// fails, and after a cancel ([`Error::is_cancelled`]).
    pub fn bench(&mut self, test: Test, cancel: &CancelToken) -> Result<f64> {
        if test.positions() > self.capacity() {
            return Err(Error::PromptTooLong { prompt: test.positions(), context: self.capacity() });
        }
        let (Test::Prompt { tokens, depth } | Test::Generate { tokens, depth, .. }) = test;
        let mut random = random_tokens(self.model().hyper().vocabulary);
        self.truncate(0);
        let before: Vec<u32> = random.by_ref().take(depth).collect();
        if depth > 0 {
            self.evaluate(&before, Tail::None, Some(cancel))?.wait()?;
        }
        let began;
        match test {
            Test::Prompt { .. } => {
                let ids: Vec<u32> = random.by_ref().take(tokens).collect();
                began = Instant::now();
                drop(self.evaluate(&ids, Tail::Logits, Some(cancel))?);
                self.logits()?;
            }
            Test::Generate { sync, .. } => {
                let first: Vec<u32> = random.by_ref().take(1).collect();
                self.set_sampling(&Sampling::greedy())?;
                self.stream().synchronize()?;
                began = Instant::now();
                if sync {
                    let (mut id, _) = self.prompt(&first, true, Some(cancel))?.wait()?;
                    for _ in 1..tokens {
                        self.note(&[id]);
                        (id, _) = self.step(true, Some(cancel))?.wait()?;
                    }
                } else {
                    let prompt = before.iter().copied().chain(first).collect();
                    let request = Request {
                        prompt,
                        max_tokens: Some(tokens),
                        sampling: Sampling::greedy(),
                        ignore_end: true,
                        cancel: cancel.clone(),
                        ..Request::default()
                    };
                    self.generate(&request, &mut |_| true)?;
                }
            }
        }
        let elapsed = began.elapsed();
        if cancel.is_cancelled() {
            // What was measured may be a part of the test.
            return Err(monel::Error::Cancelled.into());
        }
        Ok(tokens as f64 / elapsed.as_secs_f64())
    }
}

/// Tokens from a fixed seed (a linear congruential generator is random enough to choose rows of a table).
fn random_tokens(vocabulary: usize) -> impl Iterator<Item = u32> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    std::iter::from_fn(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some(((state >> 33) % vocabulary.max(1) as u64) as u32)
    })
}

/// The middle of the values, the mean of the two middle ones for an even number.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}
