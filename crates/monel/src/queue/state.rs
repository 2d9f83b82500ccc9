//! The queue's state machine: who may commit next, what a completion means, which errors go where.
//!
//! Pure: no clock, no lock, no foreign call, so the same code runs under the real devices, the scripted one and loom.
//! Its owner (`queue/mod.rs`) calls it under a lock and carries out the [`Effect`]s afterwards.
//!
//! A *submission* has one or more chunks. It enters the *backlog* in the order of the calls, and its chunks are
//! committed, each getting the next place in the device's order only at that moment (contract O3), when
//! - its chunk is encoded and everything earlier of its own lane is committed,
//! - nothing earlier in the backlog, of whatever lane, touches the same bytes with a write on either side (O2),
//! - its gates (events of other devices, O4) are open, and
//! - for a long graph, fewer than [`WINDOW`] of its chunks wait on the device (A2).
//!
//! So another lane's work runs between two chunks of a long graph unless it depends on it. The first failure poisons
//! its lane and marks what it would have written: later work of the lane is refused, and whoever reads marked bytes
//! fails with the same error instead of getting garbage (E2), until they are overwritten or the lane recovers (E3).

use super::gate::Gate;
use crate::cancel::CancelToken;
use crate::error::{Error, Place, Result};
use crate::sync::Arc;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::task::Waker;

/// Chunks of one long graph that may wait on the device.
pub const WINDOW: usize = 2;

/// A place in the device's order; the first commit is 1.
pub type Seq = u64;

/// A submission, numbered in the order of the calls.
pub type SubmissionId = u64;

/// A stream's lane.
pub type LaneId = u64;

/// Bytes of a buffer that a submission touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The buffer's number.
    pub buffer: u64,
    /// Which bytes.
    pub range: Range<usize>,
    /// Whether they are written.
    pub write: bool,
    /// Whether every byte of the range is overwritten (then older damage in it is gone).
    pub whole: bool,
}

impl Access {
    /// Whether the order of the two matters.
    pub fn conflicts(&self, other: &Access) -> bool {
        (self.write || other.write)
            && self.buffer == other.buffer
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }
}

fn conflict(a: &[Access], b: &[Access]) -> bool {
    a.iter().any(|x| b.iter().any(|y| x.conflicts(y)))
}

/// What is handed over.
pub struct Request<P> {
    /// The lane.
    pub lane: LaneId,
    /// Name for errors.
    pub name: Arc<str>,
    /// Whether it counts against the lane's budget of graphs in flight.
    pub graph: bool,
    /// One payload per chunk; `None` is not encoded yet.
    pub chunks: Vec<Option<P>>,
    /// Whether the window applies (a long graph).
    pub long: bool,
    /// The bytes it touches.
    pub access: Arc<[Access]>,
    /// Checked between chunks.
    pub cancel: Option<CancelToken>,
}

/// A chunk to hand to the device, in this order.
#[derive(Debug, PartialEq, Eq)]
pub struct Commit<P> {
    /// The submission.
    pub id: SubmissionId,
    /// Which chunk.
    pub chunk: usize,
    /// Its place in the device's order.
    pub seq: Seq,
    /// What to run.
    pub payload: P,
}

/// What the owner does after unlocking.
pub enum Effect {
    /// Wake a future.
    Wake(Waker),
    /// Open a gate.
    Open(Arc<Gate>, Result<()>),
}

struct Submission<P> {
    lane: LaneId,
    name: Arc<str>,
    graph: bool,
    chunks: Vec<Option<P>>,
    long: bool,
    access: Arc<[Access]>,
    cancel: Option<CancelToken>,
    gates: Vec<Arc<Gate>>,
    committed: usize,
    finished: usize,
    /// Set when no further chunk will be committed.
    verdict: Option<Result<()>>,
    handle_alive: bool,
    wakers: Vec<Waker>,
    opens: Vec<Arc<Gate>>,
}

#[derive(Default)]
struct Lane {
    gates: Vec<Arc<Gate>>,
    last: Option<SubmissionId>,
    outstanding: usize,
    graphs: usize,
    poison: Option<Poison>,
    unreported: Option<Error>,
}

struct Poison {
    first: std::sync::Arc<Error>,
    since: SubmissionId,
}

struct Mark {
    lane: LaneId,
    buffer: u64,
    range: Range<usize>,
    first: std::sync::Arc<Error>,
}

/// The state of one device's queue. `P` is what a device runs: commands, or nothing in a model.
pub struct State<P> {
    next_id: SubmissionId,
    next_seq: Seq,
    next_lane: LaneId,
    lanes: HashMap<LaneId, Lane>,
    submissions: HashMap<SubmissionId, Submission<P>>,
    backlog: VecDeque<SubmissionId>,
    in_flight: VecDeque<(Seq, SubmissionId, usize)>,
    outcomes: HashMap<SubmissionId, Result<()>>,
    marks: Vec<Mark>,
    lost: Option<Error>,
    effects: Vec<Effect>,
}

impl<P> Default for State<P> {
    fn default() -> Self {
        State {
            next_id: 1,
            next_seq: 1,
            next_lane: 1,
            lanes: HashMap::new(),
            submissions: HashMap::new(),
            backlog: VecDeque::new(),
            in_flight: VecDeque::new(),
            outcomes: HashMap::new(),
            marks: Vec::new(),
            lost: None,
            effects: Vec::new(),
        }
    }
}

impl<P> State<P> {
    /// A new lane.
    pub fn add_lane(&mut self) -> LaneId {
        let id = self.next_lane;
        self.next_lane += 1;
        self.lanes.insert(id, Lane::default());
        id
    }

    /// Forgets an idle lane and its marks.
    pub fn remove_lane(&mut self, lane: LaneId) {
        self.lanes.remove(&lane);
        self.marks.retain(|m| m.lane != lane);
    }

    /// Takes a submission into the backlog, or refuses it: the device is lost, or the lane poisoned.
    pub fn submit(&mut self, request: Request<P>) -> Result<SubmissionId> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        let lane = self.lanes.entry(request.lane).or_default();
        if let Some(poison) = &lane.poison {
            return Err(Error::Poisoned { first: poison.first.clone() });
        }
        let id = self.next_id;
        self.next_id += 1;
        lane.outstanding += 1;
        lane.graphs += usize::from(request.graph);
        lane.last = Some(id);
        let gates = std::mem::take(&mut lane.gates);
        let Request { lane, name, graph, chunks, long, access, cancel } = request;
        let submission = Submission {
            lane,
            name,
            graph,
            chunks,
            long,
            access,
            cancel,
            gates,
            committed: 0,
            finished: 0,
            verdict: None,
            handle_alive: true,
            wakers: Vec::new(),
            opens: Vec::new(),
        };
        self.submissions.insert(id, submission);
        self.backlog.push_back(id);
        Ok(id)
    }

    /// A chunk is encoded.
    pub fn encoded(&mut self, id: SubmissionId, chunk: usize, payload: P) {
        if let Some(s) = self.submissions.get_mut(&id) {
            s.chunks[chunk] = Some(payload);
        }
    }

    /// A chunk could not be encoded: what was committed drains, the rest never runs.
    pub fn encode_failed(&mut self, id: SubmissionId, chunk: usize, cause: Error) {
        if let Some(s) = self.submissions.get(&id) {
            let error = failed(&s.name, chunk, None, cause);
            self.fail(id, error);
        }
    }

    /// The next chunk to hand to the device, if one may be. Also drops what was cancelled.
    pub fn next_commit(&mut self) -> Option<Commit<P>> {
        let mut at = 0;
        'backlog: while at < self.backlog.len() {
            let id = self.backlog[at];
            let s = &self.submissions[&id];
            if s.cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
                self.stop(id, Err(Error::Cancelled));
                continue;
            }
            for gate in &s.gates {
                match gate.get() {
                    None => {
                        at += 1;
                        continue 'backlog;
                    }
                    Some(Err(error)) => {
                        self.fail(id, error);
                        continue 'backlog;
                    }
                    Some(Ok(())) => {}
                }
            }
            let blocked = s.chunks.get(s.committed).is_none_or(Option::is_none)
                || s.long && s.committed - s.finished >= WINDOW
                || self.backlog.iter().take(at).any(|earlier| {
                    let e = &self.submissions[earlier];
                    e.lane == s.lane || conflict(&e.access, &s.access)
                });
            if blocked {
                at += 1;
                continue;
            }
            let seq = self.next_seq;
            self.next_seq += 1;
            let s = self.submissions.get_mut(&id)?;
            let chunk = s.committed;
            let payload = s.chunks[chunk].take()?;
            s.committed += 1;
            if s.committed == s.chunks.len() {
                s.verdict = Some(Ok(()));
                self.backlog.remove(at);
            }
            self.in_flight.push_back((seq, id, chunk));
            return Some(Commit { id, chunk, seq, payload });
        }
        None
    }

    /// Work that needs no commit is done (a plain copy into shared memory by the calling thread).
    pub fn finish_on_host(&mut self, id: SubmissionId) {
        self.stop(id, Ok(()));
    }

    /// The device finished the chunk at `seq`; completions come in the order of commits. `op` names the failing op.
    pub fn completed(&mut self, seq: Seq, result: Result<(), (Option<String>, Error)>) {
        let Some(position) = self.in_flight.iter().position(|f| f.0 == seq) else { return };
        let Some((_, id, chunk)) = self.in_flight.remove(position) else { return };
        let Some(s) = self.submissions.get_mut(&id) else { return };
        s.finished += 1;
        let lane = s.lane;
        match result {
            Err((_, error @ Error::DeviceLost { .. })) => self.lose(error),
            Err((op, cause)) => {
                let error = failed(&s.name, chunk, op, cause);
                self.fail(id, error);
            }
            Ok(()) => {
                let poison = self.lanes.get(&lane).and_then(|l| l.poison.as_ref());
                let earlier = poison.filter(|p| p.since < id).map(|p| p.first.clone());
                let damage = earlier.or_else(|| self.damage(id));
                if let Some(first) = damage {
                    self.fail(id, Error::Poisoned { first });
                }
            }
        }
        self.settle(id);
    }

    /// Checks a cancelled token again; a wait ended; a gate opened: the backlog may move.
    pub fn cancel(&mut self, id: SubmissionId) {
        if self.backlog.contains(&id) {
            self.stop(id, Err(Error::Cancelled));
        }
    }

    /// The device is gone: everything resolves, every lane is poisoned.
    pub fn lose(&mut self, error: Error) {
        if self.lost.is_some() {
            return;
        }
        self.lost = Some(error.clone());
        self.in_flight.clear();
        let mut ids: Vec<SubmissionId> = self.submissions.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            if let Some(s) = self.submissions.get_mut(&id) {
                s.finished = s.committed;
                let place = failed(&s.name, s.committed.saturating_sub(1), None, error.clone());
                self.fail(id, place);
            }
        }
        for lane in self.lanes.values_mut() {
            let first = std::sync::Arc::new(error.clone());
            lane.poison.get_or_insert(Poison { first, since: 0 });
        }
    }

    /// Later submissions of the lane wait for the gate.
    pub fn wait_for(&mut self, lane: LaneId, gate: Arc<Gate>) {
        self.lanes.entry(lane).or_default().gates.push(gate);
    }

    /// The gate opens when everything of the lane so far is finished.
    pub fn record(&mut self, lane: LaneId, gate: Arc<Gate>) {
        let last = self.lanes.get(&lane).and_then(|l| l.last);
        match last.and_then(|id| self.submissions.get_mut(&id)) {
            Some(s) => s.opens.push(gate),
            None => {
                let poison = self.lanes.get(&lane).and_then(|l| l.poison.as_ref());
                let result = poison.map_or(Ok(()), |p| Err(Error::Poisoned { first: p.first.clone() }));
                self.effects.push(Effect::Open(gate, result));
            }
        }
    }

    /// The outcome, when there is one. Stays until [`State::release`].
    pub fn outcome(&self, id: SubmissionId) -> Option<Result<()>> {
        self.outcomes.get(&id).cloned()
    }

    /// As [`State::outcome`]; without one, remembers whom to wake.
    pub fn poll(&mut self, id: SubmissionId, waker: &Waker) -> Option<Result<()>> {
        if let Some(s) = self.submissions.get_mut(&id) {
            s.wakers.retain(|w| !w.will_wake(waker));
            s.wakers.push(waker.clone());
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

    /// Graphs of the lane that are not finished.
    pub fn graphs_in_flight(&self, lane: LaneId) -> usize {
        self.lanes.get(&lane).map_or(0, |l| l.graphs)
    }

    /// Submissions of the lane that are not finished.
    pub fn outstanding(&self, lane: LaneId) -> usize {
        self.lanes.get(&lane).map_or(0, |l| l.outstanding)
    }

    /// What failed since the last call (contract E3): once, then Ok.
    pub fn report(&mut self, lane: LaneId) -> Result<()> {
        self.lanes.get_mut(&lane).and_then(|l| l.unreported.take()).map_or(Ok(()), Err)
    }

    /// Clears the lane's poison and its marks; a lost device cannot be recovered, only opened again.
    pub fn recover(&mut self, lane: LaneId) -> Result<()> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        if let Some(l) = self.lanes.get_mut(&lane) {
            (l.poison, l.unreported) = (None, None);
        }
        self.marks.retain(|m| m.lane != lane);
        Ok(())
    }

    /// Whether the lane refuses work.
    pub fn is_poisoned(&self, lane: LaneId) -> bool {
        self.lost.is_some() || self.lanes.get(&lane).is_some_and(|l| l.poison.is_some())
    }

    /// Whether anything unfinished touches the same bytes with a write on either side.
    pub fn is_busy(&self, access: &Access) -> bool {
        self.submissions.values().any(|s| s.access.iter().any(|a| a.conflicts(access)))
    }

    /// Chunks on the device.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether nothing is unfinished.
    pub fn is_idle(&self) -> bool {
        self.submissions.is_empty()
    }

    /// What the owner has to do now that the lock is released.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// The first damage among the bytes the submission reads.
    fn damage(&self, id: SubmissionId) -> Option<std::sync::Arc<Error>> {
        let s = self.submissions.get(&id)?;
        let hit = |m: &&Mark| {
            let reads = |a: &Access| {
                !(a.write && a.whole)
                    && a.buffer == m.buffer
                    && a.range.start < m.range.end
                    && m.range.start < a.range.end
            };
            s.access.iter().any(reads)
        };
        self.marks.iter().find(hit).map(|m| m.first.clone())
    }

    /// The submission failed: poison its lane, mark its results, refuse what comes after it on the lane.
    fn fail(&mut self, id: SubmissionId, error: Error) {
        let Some(s) = self.submissions.get(&id) else { return };
        let (lane_id, access) = (s.lane, s.access.clone());
        let first = match &error {
            Error::Poisoned { first } => first.clone(),
            other => std::sync::Arc::new(other.clone()),
        };
        let lane = self.lanes.entry(lane_id).or_default();
        let known = lane.poison.is_some();
        if !known {
            lane.poison = Some(Poison { first: first.clone(), since: id });
            lane.unreported = Some(error.clone());
        }
        for a in access.iter().filter(|a| a.write) {
            self.marks.push(Mark {
                lane: lane_id,
                buffer: a.buffer,
                range: a.range.clone(),
                first: first.clone(),
            });
        }
        self.stop(id, Err(error));
        if !known {
            let later: Vec<SubmissionId> = self.backlog.iter().copied().filter(|&b| b > id).collect();
            for b in later {
                if self.submissions.get(&b).is_some_and(|s| s.lane == lane_id) {
                    self.fail(b, Error::Poisoned { first: first.clone() });
                }
            }
        }
    }

    /// No further chunk will be committed; resolves once what is on the device has drained.
    fn stop(&mut self, id: SubmissionId, verdict: Result<()>) {
        self.backlog.retain(|&b| b != id);
        if let Some(s) = self.submissions.get_mut(&id) {
            match &s.verdict {
                Some(Err(_)) => {}
                _ => s.verdict = Some(verdict),
            }
            s.chunks.clear();
        }
        self.settle(id);
    }

    fn settle(&mut self, id: SubmissionId) {
        let done = |s: &Submission<P>| s.verdict.is_some() && s.finished == s.committed;
        if !self.submissions.get(&id).is_some_and(done) {
            return;
        }
        let Some(s) = self.submissions.remove(&id) else { return };
        let outcome = s.verdict.unwrap_or(Ok(()));
        if outcome.is_ok() && !self.marks.is_empty() {
            for a in s.access.iter().filter(|a| a.write && a.whole) {
                self.marks.retain(|m| {
                    m.buffer != a.buffer || m.range.start < a.range.start || m.range.end > a.range.end
                });
            }
        }
        if let Some(lane) = self.lanes.get_mut(&s.lane) {
            lane.outstanding -= 1;
            lane.graphs -= usize::from(s.graph);
        }
        self.effects.extend(s.wakers.into_iter().map(Effect::Wake));
        self.effects.extend(s.opens.into_iter().map(|g| Effect::Open(g, outcome.clone())));
        if s.handle_alive {
            self.outcomes.insert(id, outcome);
        }
    }
}

fn failed(name: &Arc<str>, chunk: usize, op: Option<String>, cause: Error) -> Error {
    let place = Place { graph: name.to_string(), chunk, op };
    Error::Failed { place, cause: std::sync::Arc::new(cause) }
}
