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

use super::access::{Access, Marks, conflict};
use super::gate::Gate;
use super::lane::{Lane, Poison};
use crate::cancel::CancelToken;
use crate::error::{Error, Place, Result};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

/// Chunks of one long graph that may wait on the device.
pub const WINDOW: usize = 2;

/// A place in the device's order; the first commit is 1.
pub type Seq = u64;

/// A submission, numbered in the order of the calls.
pub type SubmissionId = u64;

/// A stream's lane.
pub type LaneId = u64;

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

impl<P> Request<P> {
    /// A transfer: one chunk that nobody cancels; `None` is not encoded yet.
    pub fn transfer(lane: LaneId, name: &'static str, payload: Option<P>, access: &[Access]) -> Request<P> {
        let chunks = vec![payload];
        Request {
            lane,
            name: name.into(),
            graph: false,
            chunks,
            long: false,
            access: access.into(),
            cancel: None,
        }
    }
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
pub enum Effect<P> {
    /// Wake a future.
    Wake(Waker),
    /// Open a gate.
    Open(Arc<Gate>, Result<()>),
    /// Drop what will never run.
    Discard(P),
    /// Drop a waker that another one replaced.
    Forget(Waker),
}

pub(super) struct Submission<P> {
    pub(super) lane: LaneId,
    pub(super) name: Arc<str>,
    graph: bool,
    pub(super) chunks: Vec<Option<P>>,
    long: bool,
    pub(super) access: Arc<[Access]>,
    cancel: Option<CancelToken>,
    gates: Vec<Arc<Gate>>,
    /// A thread of the host is at its bytes: it stays in the backlog, whatever happens, until that thread says so.
    on_host: bool,
    committed: usize,
    finished: usize,
    /// Set when no further chunk will be committed.
    pub(super) verdict: Option<Result<()>>,
    pub(super) handle_alive: bool,
    pub(super) waker: Option<Waker>,
}

/// The state of one device's queue. `P` is what a device runs: commands, or nothing in a model.
pub struct State<P> {
    next_id: SubmissionId,
    next_seq: Seq,
    pub(super) next_lane: LaneId,
    pub(super) lanes: HashMap<LaneId, Lane>,
    pub(super) submissions: HashMap<SubmissionId, Submission<P>>,
    pub(super) backlog: VecDeque<SubmissionId>,
    pub(super) in_flight: VecDeque<(Seq, SubmissionId, usize)>,
    pub(super) outcomes: HashMap<SubmissionId, Result<()>>,
    pub(super) marks: Marks,
    pub(super) lost: Option<Arc<Error>>,
    pub(super) effects: Vec<Effect<P>>,
    pub(super) news: bool,
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
            marks: Marks::default(),
            lost: None,
            effects: Vec::new(),
            news: false,
        }
    }
}

impl<P> State<P> {
    /// Takes a submission into the backlog, or refuses it: the device is lost, or the lane poisoned. A graph uses up
    /// a reservation ([`State::reserve`]), also when it is refused.
    pub fn submit(&mut self, request: Request<P>) -> Result<SubmissionId> {
        let lane = self.lanes.entry(request.lane).or_default();
        let refused = self.lost.as_ref().or(lane.poison.as_ref().map(|p| &p.first));
        if let Some(first) = refused {
            lane.graphs -= usize::from(request.graph);
            let refused = Err(Error::Poisoned { first: first.clone() });
            // Dropped after unlocking, as all payloads are: they own device memory and mappings.
            self.effects.extend(request.chunks.into_iter().flatten().map(Effect::Discard));
            return refused;
        }
        let id = self.next_id;
        self.next_id += 1;
        lane.begin(id);
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
            on_host: false,
            committed: 0,
            finished: 0,
            verdict: None,
            handle_alive: true,
            waker: None,
        };
        self.submissions.insert(id, submission);
        self.backlog.push_back(id);
        Ok(id)
    }

    /// A chunk is encoded. Encoders may be late: of a submission that was stopped nothing is kept.
    pub fn encoded(&mut self, id: SubmissionId, chunk: usize, payload: P) {
        match self.submissions.get_mut(&id).and_then(|s| s.chunks.get_mut(chunk)) {
            Some(place) => *place = Some(payload),
            None => self.effects.push(Effect::Discard(payload)),
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
            if s.on_host {
                at += 1;
                continue;
            }
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

    /// Gives the calling thread a turn of its own on bytes that nobody uses, in the order of the calls: what conflicts with
    /// it waits until [`State::finish_on_host`], also when the turn's lane fails or the device is lost meanwhile. `None`
    /// where the bytes are used, or the lane waits for an event; refused as [`State::submit`] is.
    pub fn begin_on_host(
        &mut self,
        lane: LaneId,
        name: &'static str,
        access: Access,
    ) -> Result<Option<SubmissionId>> {
        if !self.is_free(lane, &access) {
            return Ok(None);
        }
        let id = self.submit(Request::transfer(lane, name, None, &[access]))?;
        if let Some(s) = self.submissions.get_mut(&id) {
            s.on_host = true;
        }
        Ok(Some(id))
    }

    /// The turn of [`State::begin_on_host`] ends.
    pub fn finish_on_host(&mut self, id: SubmissionId) {
        if let Some(s) = self.submissions.get_mut(&id) {
            s.on_host = false;
            self.stop(id, Ok(()));
        }
    }

    /// The device finished the chunk at `seq`; completions come in the order of commits. `op` names the failing op.
    pub fn completed(&mut self, seq: Seq, result: Result<(), (Option<String>, Error)>) {
        let Some(position) = self.in_flight.iter().position(|f| f.0 == seq) else { return };
        let Some((_, id, chunk)) = self.in_flight.remove(position) else { return };
        let Some(s) = self.submissions.get_mut(&id) else { return };
        s.finished += 1;
        match result {
            Err((op, cause)) => {
                let lost = matches!(cause, Error::DeviceLost { .. });
                let error = failed(&s.name, chunk, op, cause);
                if lost { self.lose(id, error) } else { self.fail(id, error) }
            }
            // What drains after its own failure has its verdict.
            Ok(()) if matches!(s.verdict, Some(Err(_))) => {}
            Ok(()) => {
                let poison = self.lanes.get(&s.lane).and_then(|l| l.poison.as_ref());
                let earlier = poison.filter(|p| p.since < id).map(|p| p.first.clone());
                if let Some(first) = earlier.or_else(|| self.damage(id)) {
                    self.fail(id, Error::Poisoned { first });
                }
            }
        }
        self.settle(id);
    }

    /// The device is gone while it ran `id`: everything resolves, every lane is poisoned.
    fn lose(&mut self, id: SubmissionId, error: Error) {
        let first = Arc::new(error.clone());
        self.lost = Some(first.clone());
        self.news = true;
        self.in_flight.clear();
        self.submissions.values_mut().for_each(|s| s.finished = s.committed);
        self.fail(id, error);
        let mut ids: Vec<SubmissionId> = self.submissions.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.fail(id, Error::Poisoned { first: first.clone() });
        }
        for lane in self.lanes.values_mut() {
            lane.poison.get_or_insert(Poison { first: first.clone(), since: 0 });
        }
    }

    /// The first damage among the bytes the submission reads.
    fn damage(&self, id: SubmissionId) -> Option<Arc<Error>> {
        self.submissions.get(&id).and_then(|s| self.marks.hit(&s.access))
    }

    /// The submission failed: poison its lane, mark its results, refuse what comes after it on the lane.
    fn fail(&mut self, id: SubmissionId, error: Error) {
        let Some(s) = self.submissions.get(&id) else { return };
        let lane_id = s.lane;
        let first = match &error {
            Error::Poisoned { first } => first.clone(),
            other => Arc::new(other.clone()),
        };
        self.marks.add(lane_id, &s.access, &first);
        let lane = self.lanes.entry(lane_id).or_default();
        let known = lane.poison.is_some();
        if !known {
            lane.poison = Some(Poison { first: first.clone(), since: id });
            lane.unreported = Some(error.clone());
            self.news = true;
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
        if let Some(s) = self.submissions.get_mut(&id) {
            if !matches!(s.verdict, Some(Err(_))) {
                s.verdict = Some(verdict);
            }
            if s.on_host {
                return;
            }
            self.backlog.retain(|&b| b != id);
            self.effects.extend(s.chunks.drain(..).flatten().map(Effect::Discard));
            let (lane, gates) = (s.lane, std::mem::take(&mut s.gates));
            self.pass_gates_on(id, lane, gates);
        }
        self.settle(id);
    }

    /// Work that was stopped before its events came no longer waits for them, but what follows it on the lane does.
    fn pass_gates_on(&mut self, id: SubmissionId, lane: LaneId, mut gates: Vec<Arc<Gate>>) {
        gates.retain(|gate| gate.get().is_none());
        if gates.is_empty() {
            return;
        }
        let waits = |s: &Submission<P>| s.lane == lane && !s.on_host;
        let is_next = |b: &&SubmissionId| **b > id && self.submissions.get(b).is_some_and(waits);
        let next = self.backlog.iter().find(is_next).copied();
        match next.and_then(|next| self.submissions.get_mut(&next)) {
            Some(s) => s.gates.append(&mut gates),
            None => self.lanes.entry(lane).or_default().gates.append(&mut gates),
        }
    }

    fn settle(&mut self, id: SubmissionId) {
        let done = |s: &Submission<P>| s.verdict.is_some() && s.finished == s.committed;
        if !self.submissions.get(&id).is_some_and(done) {
            return;
        }
        let Some(s) = self.submissions.remove(&id) else { return };
        self.news = true;
        let outcome = s.verdict.unwrap_or(Ok(()));
        if outcome.is_ok() {
            self.marks.overwritten(&s.access);
        }
        if let Some(lane) = self.lanes.get_mut(&s.lane) {
            lane.graphs -= usize::from(s.graph);
            lane.finish(id, &outcome, |gate, result| self.effects.push(Effect::Open(gate, result)));
        }
        self.effects.extend(s.waker.map(Effect::Wake));
        if s.handle_alive {
            self.outcomes.insert(id, outcome);
        }
    }
}

fn failed(name: &Arc<str>, chunk: usize, op: Option<String>, cause: Error) -> Error {
    let place = Place { graph: name.to_string(), chunk, op };
    Error::Failed { place, cause: Arc::new(cause) }
}
