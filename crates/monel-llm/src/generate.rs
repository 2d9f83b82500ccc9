//! The generate loop: runs ahead of the host.
//!
//! A step's token stays on the device as the next step's input, so the host submits step k+1 before it has read token
//! k, and the device never waits for it. Stopping lags behind by the steps that were submitted too many; their tokens
//! are dropped, and their cache entries are overwritten by whatever comes next at those positions.

use crate::context::{Context, Pending, Tail};
use crate::error::{Error, Result};
use crate::sampling::{Sampling, log_sum_exp};
use monel::{CancelToken, Submission};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Steps submitted beyond the one whose token is read.
const AHEAD: usize = 2;

/// What to generate.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Tokens to continue. What the context has of them already is not evaluated again.
    pub prompt: Vec<u32>,
    /// Most tokens to generate; `None` ends only with the model or the context.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Log-probabilities: `Some(n)` gives that of the chosen token and of the n most likely ones.
    pub logprobs: Option<usize>,
    /// Goes on behind a token that ends generation (for benchmarks).
    pub ignore_end: bool,
    /// Ends the generation from another thread.
    pub cancel: CancelToken,
}

/// A generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The token.
    pub id: u32,
    /// Its log-probability (raw log-softmax), where asked for.
    pub logprob: Option<f32>,
    /// The most likely tokens with theirs, most likely first.
    pub top: Vec<(u32, f32)>,
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A token that ends generation.
    End,
    /// As many tokens as asked for.
    Length,
    /// The context is full.
    Context,
    /// Cancelled, or the receiver of steps wanted no more.
    Cancelled,
}

impl Stop {
    /// The word in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Stop::End => "eog",
            Stop::Length => "length",
            Stop::Context => "context",
            Stop::Cancelled => "cancelled",
        }
    }
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The tokens, without the one that ended generation.
    pub steps: Vec<Step>,
    /// Why it ended.
    pub stop: Stop,
    /// Tokens of the prompt that were evaluated; after a cancel those of whole batches.
    pub prompt_tokens: usize,
    /// Until the first token was on the host, or without one until the prompt was evaluated.
    pub prompt_time: Duration,
    /// From then to the end.
    pub predicted_time: Duration,
}

impl Context {
    /// Generates. `on_step` hears of each token as it comes and answers whether to go on. A cancel is no error: what came
    /// before it is returned.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`], [`Error::PromptTooLong`] for a prompt that is longer than the context, [`Error::Token`]
    /// for one with a token that is not in the vocabulary, [`Error::Setting`] for sampling out of its range, and
    /// [`Error::Engine`] where the device fails or the stream refuses work after a failure. [`Context::evaluated`] then
    /// has only what is surely in the cache.
    pub fn generate(
        &mut self,
        request: &Request,
        on_step: &mut dyn FnMut(&Step) -> bool,
    ) -> Result<Generated> {
        if request.prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if request.prompt.len() > self.capacity() {
            return Err(Error::PromptTooLong { prompt: request.prompt.len(), context: self.capacity() });
        }
        let shared = self.evaluated().iter().zip(&request.prompt).take_while(|(a, b)| a == b).count();
        // The last token is evaluated in any case: its logits are wanted.
        self.truncate(shared.min(request.prompt.len() - 1));
        self.set_sampling(&request.sampling)?;
        let began = Instant::now();
        let fresh = request.prompt[self.evaluated().len()..].to_vec();
        let room = self.capacity() - request.prompt.len();
        let limit = request.max_tokens.unwrap_or(usize::MAX).min(room);
        let mut run = Run::default();
        let (kept, mut prompt_time) = (self.evaluated().len(), None);
        let result = match limit {
            0 => self
                .submit_batches(&fresh, Tail::None, Some(&request.cancel), &mut run.batches)
                .and_then(|last| Ok(last.wait().map(|()| None)?)),
            _ => self.run(request, &fresh, limit, &mut run, &mut |step| {
                prompt_time.get_or_insert_with(|| began.elapsed());
                on_step(step)
            }),
        };
        // What is surely in the cache. A step feeds the token that the one before drew, and its own token is read when
        // it is done; of the steps behind a stop that was not cancelled, all run. Those behind a cancel or a failure
        // may never have run, and as long as no token came out, neither may batches of the prompt: those before the last
        // one are asked, which the cancel was too late for.
        let steps = run.steps.len();
        match &result {
            Err(error) if steps == 0 && error.is_cancelled() => self.truncate(kept + run.evaluated()),
            Err(_) if steps == 0 => self.truncate(kept),
            Err(_) | Ok(Some(Stop::Cancelled)) => self.note_steps(&run.steps[..steps.saturating_sub(1)]),
            Ok(_) => self.note_steps(&run.steps[..steps.min(run.submitted.saturating_sub(1))]),
        }
        let stop = match result {
            Ok(Some(stop)) => stop,
            Ok(None) if request.max_tokens == Some(limit) => Stop::Length,
            Ok(None) => Stop::Context,
            Err(error) if error.is_cancelled() => Stop::Cancelled,
            Err(error) => return Err(error),
        };
        let unfinished = stop == Stop::Cancelled && run.steps.is_empty();
        let prompt_tokens = if unfinished { self.evaluated().len() - kept } else { fresh.len() };
        let prompt_time = prompt_time.unwrap_or_else(|| began.elapsed());
        Ok(Generated {
            steps: run.steps,
            stop,
            prompt_tokens,
            prompt_time,
            predicted_time: began.elapsed() - prompt_time,
        })
    }

    fn note_steps(&mut self, steps: &[Step]) {
        let ids: Vec<u32> = steps.iter().map(|s| s.id).collect();
        self.note(&ids);
    }

    /// Submits ahead and reads behind; `None` when `limit` tokens are there.
    fn run(
        &mut self,
        request: &Request,
        fresh: &[u32],
        limit: usize,
        run: &mut Run,
        on_step: &mut dyn FnMut(&Step) -> bool,
    ) -> Result<Option<Stop>> {
        let (logits, cancel) = (request.logprobs.is_some(), Some(&request.cancel));
        let last = self.submit_batches(fresh, Tail::Sample, cancel, &mut run.batches)?;
        run.pending.push_back(self.pending(last, logits)?);
        run.submitted = 1;
        while run.steps.len() < limit {
            while run.pending.len() <= AHEAD && run.submitted < limit {
                run.pending.push_back(self.step(logits, cancel)?);
                run.submitted += 1;
            }
            let Some(pending) = run.pending.pop_front() else { break };
            let (id, logits) = pending.wait()?;
            if self.model().tokenizer.is_eog(id) && !request.ignore_end {
                return Ok(Some(Stop::End));
            }
            let step = match (request.logprobs, logits) {
                (Some(n), Some(logits)) => log_probabilities(id, &logits, n),
                _ => Step { id, logprob: None, top: Vec::new() },
            };
            let go_on = on_step(&step);
            run.steps.push(step);
            if !go_on || request.cancel.is_cancelled() {
                return Ok(Some(Stop::Cancelled));
            }
        }
        Ok(None)
    }
}

#[derive(Default)]
struct Run {
    /// Those of the prompt before the last one, with the tokens of each.
    batches: Vec<(usize, Submission)>,
    pending: VecDeque<Pending>,
    submitted: usize,
    steps: Vec<Step>,
}

impl Run {
    /// Tokens of the batches that ran before the first that did not.
    fn evaluated(&mut self) -> usize {
        let ran = |(tokens, batch): (usize, Submission)| batch.wait().ok().map(|()| tokens);
        self.batches.drain(..).map_while(ran).sum()
    }
}

/// The raw log-softmax of `logits` (one for each token of the vocabulary) at `id`, none for an id past them, and the `n`
/// largest.
pub fn log_probabilities(id: u32, logits: &[f32], n: usize) -> Step {
    let norm = log_sum_exp(logits);
    let logprob = |l: f32| (f64::from(l) - norm) as f32;
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let by_logit = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let n = n.min(order.len());
    if n > 0 && n < order.len() {
        order.select_nth_unstable_by(n - 1, by_logit);
    }
    order.truncate(n);
    order.sort_unstable_by(by_logit);
    let top = order.into_iter().map(|i| (i, logprob(logits[i as usize]))).collect();
    Step { id, logprob: logits.get(id as usize).map(|&l| logprob(l)), top }
}
