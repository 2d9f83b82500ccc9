//! A stream's lane: what of it is unfinished, what it waits for, whether it is poisoned.

use super::gate::Gate;
use super::state::SubmissionId;
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::sync::Arc;

/// Why a lane refuses work, and since which submission.
pub(super) struct Poison {
    pub first: Arc<Error>,
    pub since: SubmissionId,
}

/// An event of the lane that is not reached yet.
struct Recorded {
    upto: SubmissionId,
    gate: Arc<Gate>,
    result: Result<()>,
}

#[derive(Default)]
pub(super) struct Lane {
    /// Gates that the next submission waits for.
    pub gates: Vec<Arc<Gate>>,
    /// Submissions in the order of the calls. They may finish out of it: cancelled before they ran, written by the
    /// host.
    unfinished: VecDeque<SubmissionId>,
    recorded: Vec<Recorded>,
    /// Graphs that are reserved or unfinished.
    pub graphs: usize,
    pub poison: Option<Poison>,
    /// What `synchronize` will report.
    pub unreported: Option<Error>,
}

impl Lane {
    pub fn begin(&mut self, id: SubmissionId) {
        self.unfinished.push_back(id);
    }

    /// How many submissions are unfinished.
    pub fn outstanding(&self) -> usize {
        self.unfinished.len()
    }

    /// Notes an event. Gives the gate back when it opens at once, with the result.
    pub fn record(&mut self, gate: Arc<Gate>) -> Option<(Arc<Gate>, Result<()>)> {
        let Some(&upto) = self.unfinished.back() else {
            let poison = self.poison.as_ref();
            return Some((gate, poison.map_or(Ok(()), |p| Err(Error::Poisoned { first: p.first.clone() }))));
        };
        self.recorded.push(Recorded { upto, gate, result: Ok(()) });
        None
    }

    /// A submission is finished: `open` is called for the events that are reached by it. Cancelled work counts as
    /// finished, as it does for what comes after it on its own lane.
    pub fn finish(
        &mut self,
        id: SubmissionId,
        outcome: &Result<()>,
        mut open: impl FnMut(Arc<Gate>, Result<()>),
    ) {
        if let Some(at) = self.unfinished.iter().position(|&u| u == id) {
            self.unfinished.remove(at);
        }
        if self.recorded.is_empty() {
            return;
        }
        if let Err(error) = outcome
            && !matches!(error, Error::Cancelled)
        {
            for event in self.recorded.iter_mut().filter(|e| e.upto >= id && e.result.is_ok()) {
                event.result = Err(error.clone());
            }
        }
        let oldest = self.unfinished.front().copied().unwrap_or(SubmissionId::MAX);
        for event in self.recorded.extract_if(.., |e| e.upto < oldest) {
            open(event.gate, event.result);
        }
    }
}
