//! What streams, submissions and buffers ask of the state machine, and the small notes they leave in it.

use super::access::Access;
use super::gate::Gate;
use super::state::{Effect, LaneId, State, SubmissionId};
use crate::error::{Error, Result};
use std::sync::Arc;
use std::task::Waker;

impl<P> State<P> {
    /// A new lane.
    pub fn add_lane(&mut self) -> LaneId {
        let id = self.next_lane;
        self.next_lane += 1;
        self.lanes.insert(id, Default::default());
        id
    }

    /// Forgets an idle lane. What it damaged stays marked until it is overwritten or freed.
    pub fn remove_lane(&mut self, lane: LaneId) {
        self.lanes.remove(&lane);
    }

    /// The buffer is freed: what was said about its bytes says nothing about the next buffer's.
    pub fn forget_buffer(&mut self, buffer: u64) {
        self.marks.forget_buffer(buffer);
    }

    /// Whether a submission still takes encoded chunks: false once it failed, was cancelled or resolved.
    pub fn wants_chunks(&self, id: SubmissionId) -> bool {
        self.submissions.get(&id).is_some_and(|s| s.verdict.is_none())
    }

    /// Reserves one of the lane's `budget` graphs in flight. A lane that refuses work lets everybody in, so that
    /// [`State::submit`] can say why.
    pub fn reserve(&mut self, lane: LaneId, budget: usize) -> bool {
        let refuses = self.is_poisoned(lane);
        let lane = self.lanes.entry(lane).or_default();
        let free = refuses || lane.graphs < budget;
        lane.graphs += usize::from(free);
        free
    }

    /// Gives a reservation back: there will be no submission.
    pub fn unreserve(&mut self, lane: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.graphs -= 1;
            self.news = true;
        }
    }

    /// Later submissions of the lane wait for the gate.
    pub fn wait_for(&mut self, lane: LaneId, gate: Arc<Gate>) {
        self.lanes.entry(lane).or_default().gates.push(gate);
    }

    /// The gate opens when everything of the lane so far is finished.
    pub fn record(&mut self, lane: LaneId, gate: Arc<Gate>) {
        if let Some((gate, result)) = self.lanes.entry(lane).or_default().record(gate) {
            self.effects.push(Effect::Open(gate, result));
        }
    }

    /// The outcome, when there is one. Stays until [`State::release`].
    pub fn outcome(&self, id: SubmissionId) -> Option<Result<()>> {
        self.outcomes.get(&id).cloned()
    }

    /// The name and the last chunk of a submission that is not finished: what a wait for it waits for.
    pub fn last_chunk(&self, id: SubmissionId) -> Option<(Arc<str>, usize)> {
        self.submissions.get(&id).map(|s| (s.name.clone(), s.chunks.len().saturating_sub(1)))
    }

    /// As [`State::outcome`]; without one, remembers whom to wake: whoever polled last, as futures want it.
    pub fn poll(&mut self, id: SubmissionId, waker: &Waker) -> Option<Result<()>> {
        if let Some(s) = self.submissions.get_mut(&id)
            && !s.waker.as_ref().is_some_and(|known| known.will_wake(waker))
        {
            self.effects.extend(s.waker.replace(waker.clone()).map(Effect::Forget));
        }
        self.outcome(id)
    }

    /// The handle is gone; nobody will ask for the outcome.
    pub fn release(&mut self, id: SubmissionId) {
        self.outcomes.remove(&id);
        if let Some(s) = self.submissions.get_mut(&id) {
            s.handle_alive = false;
        }
    }

    /// Graphs of the lane that are reserved or not finished.
    pub fn graphs_in_flight(&self, lane: LaneId) -> usize {
        self.lanes.get(&lane).map_or(0, |l| l.graphs)
    }

    /// Submissions of the lane that are not finished.
    pub fn outstanding(&self, lane: LaneId) -> usize {
        self.lanes.get(&lane).map_or(0, |l| l.outstanding())
    }

    /// What failed since the last call (contract E3): once, then Ok.
    pub fn report(&mut self, lane: LaneId) -> Result<()> {
        self.lanes.get_mut(&lane).and_then(|l| l.unreported.take()).map_or(Ok(()), Err)
    }

    /// Clears the lane's poison and its marks; a lost device cannot be recovered, only opened again.
    pub fn recover(&mut self, lane: LaneId) -> Result<()> {
        if let Some(lost) = &self.lost {
            return Err(Error::clone(lost));
        }
        if let Some(l) = self.lanes.get_mut(&lane) {
            (l.poison, l.unreported) = (None, None);
        }
        self.marks.forget_lane(lane);
        Ok(())
    }

    /// Whether the lane refuses work.
    pub fn is_poisoned(&self, lane: LaneId) -> bool {
        self.lost.is_some() || self.lanes.get(&lane).is_some_and(|l| l.poison.is_some())
    }

    /// Whether the host may do the lane's access itself, now: no event is waited for, and nothing unfinished touches
    /// the same bytes with a write on either side.
    pub fn is_free(&self, lane: LaneId, access: &Access) -> bool {
        let open = |l: &super::lane::Lane| l.gates.iter().all(|g| matches!(g.get(), Some(Ok(()))));
        self.lanes.get(&lane).is_none_or(open)
            && !self.submissions.values().any(|s| s.access.iter().any(|a| a.conflicts(access)))
    }

    /// Chunks on the device.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether nothing is unfinished.
    pub fn is_idle(&self) -> bool {
        self.submissions.is_empty()
    }

    /// Marks of damaged bytes: bounded by what was in flight at failures.
    pub fn marks(&self) -> usize {
        self.marks.len()
    }

    /// What the owner has to do now that the lock is released.
    pub fn take_effects(&mut self) -> Vec<Effect<P>> {
        std::mem::take(&mut self.effects)
    }

    /// Whether something happened that a sleeping thread may wait for.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }
}
