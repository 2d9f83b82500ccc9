//! Perplexity of a text, as llama-perplexity forms it.
//!
//! Windows of `c` tokens that do not overlap, the last incomplete one dropped; the first token of each window is
//! replaced by the token for the begin where the model adds one; only the predictions of tokens c/2 + 1 .. c - 1 count.

use crate::context::{BATCH, Context, Tail};
use crate::error::{Error, Result};
use crate::model::ModelFile;
use crate::sampling::log_sum_exp;
use crate::weights::vocabulary;
use monel::{CancelToken, Needs};

/// Rows of logits computed at once: bounds the memory, 67 MB for the largest vocabularies.
const ROWS: usize = 64;

/// Adds what perplexity needs on the device beside a model and its context: hidden states of a batch, and rows of
/// logits with the head that computes them.
///
/// # Errors
/// [`Error::Gguf`] when the file has no embedding.
pub fn add_needs(file: &ModelFile, window: usize, needs: &mut Needs) -> Result<()> {
    let width = file.hyper().width;
    let vocabulary = vocabulary(file.gguf())?;
    let (batch, rows) = (BATCH.min(window), ROWS.min(window / 2));
    needs.add("logits", (4 * (width * BATCH + rows * (vocabulary + 3 * width))) as u64, false);
    // A batch's graph ends with its hidden states, beside the one of a prompt, whose scratch it does not share.
    needs.add("batch", (4 * width * batch) as u64, false);
    Ok(())
}

/// A result, also after every window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Perplexity {
    /// exp of the mean negative log-likelihood.
    pub ppl: f64,
    /// Standard error, in units of perplexity.
    pub stderr: f64,
    /// Windows so far.
    pub chunks: usize,
    /// Tokens predicted.
    pub tokens: usize,
}

impl Context {
    /// Perplexity over `ids`. `on_window` hears of each window and how many there are. `cancel` is checked between the
    /// engine's chunks (contract E5): what comes back then is the result of the windows that were finished, perhaps of
    /// none, and the context is empty.
    ///
    /// # Errors
    /// [`Error::Setting`] for a window or a text of the wrong size, [`Error::Token`] for one that is not in the vocabulary,
    /// [`Error::Logits`] where the model gives no number for a token, and [`Error::Engine`] where the device fails.
    pub fn perplexity(
        &mut self,
        ids: &[u32],
        window: usize,
        cancel: &CancelToken,
        on_window: &mut dyn FnMut(&Perplexity, usize),
    ) -> Result<Perplexity> {
        if window < 4 || window > self.capacity() || !window.is_multiple_of(2) {
            let expected = "an even number from 4 to the context's size";
            return Err(Error::Setting { name: "the window (-c)", found: window.to_string(), expected });
        }
        let windows = ids.len() / window;
        if windows == 0 {
            let found = format!("{} tokens", ids.len());
            return Err(Error::Setting {
                name: "the text",
                found,
                expected: "at least one window (-c) of tokens",
            });
        }
        let tokenizer = &self.model().tokenizer;
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        let mut sums = Sums::default();
        let mut result = Perplexity { ppl: f64::NAN, stderr: f64::NAN, chunks: 0, tokens: 0 };
        for (chunk, ids) in ids.chunks_exact(window).enumerate() {
            let mut ids = ids.to_vec();
            if let Some(bos) = bos {
                ids[0] = bos;
            }
            match self.window(chunk + 1, &ids, cancel, &mut sums) {
                Ok(()) => {}
                Err(error) if error.is_cancelled() => {
                    // Some of its batches may never have run.
                    self.truncate(0);
                    break;
                }
                Err(error) => return Err(error),
            }
            result = sums.result(chunk + 1);
            on_window(&result, windows);
        }
        Ok(result)
    }

    /// Adds the predictions of one window, or fails as cancelled.
    fn window(&mut self, number: usize, ids: &[u32], cancel: &CancelToken, sums: &mut Sums) -> Result<()> {
        let (window, vocabulary) = (ids.len(), self.model().hyper().vocabulary);
        self.truncate(0);
        for (b, batch) in ids.chunks(BATCH).enumerate() {
            drop(self.evaluate(batch, Tail::Hidden, Some(cancel))?);
            // Position p predicts token p + 1: from c/2 to c - 2.
            let (start, end) = (b * BATCH, b * BATCH + batch.len());
            let (mut at, last) = ((window / 2).max(start), (window - 1).min(end));
            // Always as many rows, so that one head serves all: the last ones begin earlier, and what they have
            // again does not count.
            let rows = ROWS.min(window / 2).min(batch.len());
            while at < last {
                let first = at.min(end - rows);
                let logits = self.logits_of(first - start, rows, Some(cancel))?;
                let taken = rows.min(last - first);
                for p in at..first + taken {
                    let row = &logits[(p - first) * vocabulary..][..vocabulary];
                    let nll = negative_log_likelihood(row, ids[p + 1]);
                    if !nll.is_finite() {
                        return Err(Error::Logits { window: number, position: p });
                    }
                    sums.add(nll);
                }
                at = first + taken;
            }
        }
        Ok(())
    }
}

/// Sums of negative log-likelihoods and of their squares.
#[derive(Default)]
struct Sums {
    sum: f64,
    squares: f64,
    count: usize,
}

impl Sums {
    fn add(&mut self, nll: f64) {
        self.sum += nll;
        self.squares += nll * nll;
        self.count += 1;
    }

    fn result(&self, chunks: usize) -> Perplexity {
        let n = self.count as f64;
        let mean = self.sum / n;
        let variance = (self.squares / n - mean * mean).max(0.0);
        let ppl = mean.exp();
        let stderr = ppl * (variance / (n - 1.0).max(1.0)).sqrt();
        Perplexity { ppl, stderr, chunks, tokens: self.count }
    }
}

fn negative_log_likelihood(logits: &[f32], id: u32) -> f64 {
    log_sum_exp(logits) - logits.get(id as usize).map_or(f64::NEG_INFINITY, |&l| f64::from(l))
}
