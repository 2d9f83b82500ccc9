//! The queue's lock, condition variable and state under random schedules: several streams that submit, encode late, wait,
//! cancel, drop, fail and recover, over a device that finishes, fails and gets lost at random.
//!
//! `tests/loom.rs` tries every schedule of a few steps; this tries many schedules of many steps. A lost wake-up is a
//! deadlock, which shuttle reports with the schedule that leads to it.
//!
//!     RUSTFLAGS="--cfg shuttle" cargo test -p monel --no-default-features --release --test shuttle
#![cfg(shuttle)]
#![allow(clippy::unwrap_used, reason = "a test's way to fail")]

use monel::queue::{Access, Commit, Core, Effect, Gate, LaneId, Request, State, SubmissionId, WINDOW};
use monel::{CancelToken, Error, Result};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::{Condvar, Mutex};
use shuttle::{Config, Runner, thread};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

const STREAMS: usize = 3;
const SUBMISSIONS: usize = 5;
/// Schedules of each scheduler: together some twenty seconds on two cores.
const SCHEDULES: usize = 30_000;

/// What a chunk carries: counted by its owner, so that what is never released shows.
type Payload = Arc<()>;

/// What is known of a submission from outside.
struct Known {
    access: Vec<Access>,
    chunks: usize,
    committed: usize,
    cancel: Option<CancelToken>,
}

/// What the device and the judge remember.
#[derive(Default)]
struct Log {
    jobs: VecDeque<(u64, SubmissionId, Payload)>,
    known: HashMap<SubmissionId, Known>,
    /// Work that was committed behind conflicting earlier work with chunks that were not: those must never run.
    overtaken: Vec<SubmissionId>,
    faults: usize,
    lost: bool,
    stop: bool,
}

struct Device {
    core: Core<Payload>,
    log: Mutex<Log>,
    arrived: Condvar,
    payload: Payload,
}

impl Device {
    fn with<R>(&self, change: impl FnOnce(&mut State<Payload>) -> R) -> R {
        let (result, effects) = self.core.with(|commit| self.commit(commit), change);
        for effect in effects {
            match effect {
                Effect::Wake(waker) => waker.wake(),
                Effect::Open(gate, result) => gate.open(result),
                Effect::Discard(payload) => drop(payload),
                Effect::Forget(waker) => drop(waker),
            }
        }
        result
    }

    /// Takes a chunk, under the queue's lock, and judges whether it may come now.
    fn commit(&self, commit: Commit<Payload>) {
        let mut log = self.log.lock().unwrap();
        let Commit { id, chunk, seq, payload } = commit;
        assert!(log.jobs.back().is_none_or(|last| last.0 < seq), "O2: the order of sequence numbers");
        log.jobs.push_back((seq, id, payload));
        let mine = log.jobs.iter().filter(|job| job.1 == id).count();
        assert!(mine <= WINDOW, "A2: {mine} chunks of one submission on the device");
        let now = log.known.get_mut(&id).unwrap();
        assert_eq!(chunk, now.committed, "chunks in their order");
        now.committed += 1;
        let access = now.access.clone();
        let conflicts = |k: &Known| k.access.iter().any(|a| access.iter().any(|b| a.conflicts(b)));
        let behind = |(&other, k): (&SubmissionId, &Known)| {
            (other < id && k.committed < k.chunks && conflicts(k)).then_some(other)
        };
        let overtaken: Vec<SubmissionId> = log.known.iter().filter_map(behind).collect();
        log.overtaken.extend(overtaken);
        drop(log);
        self.arrived.notify_one();
    }

    /// Submits with the first chunk encoded, and the judge told under the same lock.
    fn submit(
        &self,
        lane: LaneId,
        chunks: usize,
        access: &[Access],
        cancel: Option<&CancelToken>,
    ) -> Result<SubmissionId> {
        self.with(|s| {
            let payloads = (0..chunks).map(|chunk| (chunk == 0).then(|| self.payload.clone())).collect();
            let id = s.submit(Request {
                lane,
                name: "graph".into(),
                graph: false,
                chunks: payloads,
                long: chunks > 1,
                access: access.into(),
                cancel: cancel.cloned(),
            })?;
            let known = Known { access: access.to_vec(), chunks, committed: 0, cancel: cancel.cloned() };
            self.log.lock().unwrap().known.insert(id, known);
            Ok(id)
        })
    }

    fn wait(&self, id: SubmissionId) -> Result<()> {
        self.core.wait_until(|| (), |s| s.outcome(id))
    }

    /// The device's thread: finishes jobs in order, one in ten with a failure, a few with a loss, until it is told to stop.
    fn run(&self) {
        loop {
            let mut log = self.log.lock().unwrap();
            while log.jobs.is_empty() && !log.stop {
                log = self.arrived.wait(log).unwrap();
            }
            let Some((seq, id, payload)) = log.jobs.front().cloned() else { return };
            let dice = thread_rng().gen_range(0..100);
            let result = match dice {
                _ if log.lost => Ok(()),
                0 => Err(Error::DeviceLost { device: "model".into(), reason: "dice".into() }),
                1..=10 => Err(Error::Kernel("dice".into())),
                _ => Ok(()),
            };
            log.lost |= dice == 0;
            log.faults += usize::from(result.is_err());
            drop(log);
            self.with(|s| {
                // The job counts as on the device until the state has heard of it, which it does under this lock.
                let front = self.log.lock().unwrap().jobs.pop_front();
                assert_eq!(front.map(|job| (job.0, job.1)), Some((seq, id)));
                s.completed(seq, result.map_err(|error| (Some("op".into()), error)));
            });
            drop(payload);
        }
    }

    /// Holds that an outcome has a cause.
    fn judge(&self, id: SubmissionId, outcome: &Result<()>) {
        let log = self.log.lock().unwrap();
        let known = &log.known[&id];
        match outcome {
            Ok(()) => assert_eq!(known.committed, known.chunks, "done without having run"),
            Err(Error::Cancelled) => {
                assert!(known.cancel.as_ref().is_some_and(CancelToken::is_cancelled), "nobody cancelled it");
            }
            Err(Error::Failed { .. } | Error::Poisoned { .. } | Error::DeviceLost { .. }) => {
                assert!(log.faults > 0, "a failure without a fault: {outcome:?}");
            }
            Err(other) => panic!("no error of this model: {other:?}"),
        }
    }
}

fn access() -> Vec<Access> {
    let mut random = thread_rng();
    let one = |_| {
        let start = random.gen_range(0..4);
        let range = start..start + random.gen_range(1..3);
        Access { buffer: random.gen_range(1..3), range, write: random.r#gen(), whole: random.r#gen() }
    };
    (0..2).map(one).collect()
}

/// One stream's life.
fn stream(device: &Arc<Device>, lane: LaneId, other: LaneId) {
    let mut kept = Vec::new();
    for _ in 0..SUBMISSIONS {
        let chunks = thread_rng().gen_range(1..5);
        let token = thread_rng().gen_bool(0.3).then(CancelToken::new);
        if thread_rng().gen_bool(0.2) {
            // An event of another stream.
            let gate = Arc::new(Gate::default());
            device.with(|s| s.record(other, gate.clone()));
            device.with(|s| s.wait_for(lane, gate.clone()));
            let weak = Arc::downgrade(device);
            gate.on_open(move || weak.upgrade().map_or((), |d| d.with(|_| ())));
        }
        let id = match device.submit(lane, chunks, &access(), token.as_ref()) {
            Ok(id) => id,
            Err(Error::Poisoned { .. }) => {
                assert!(device.core.look(|s| s.is_poisoned(lane)), "E3: refused by a poisoned lane");
                let reported = device.core.look(|s| s.report(lane));
                assert!(
                    device.core.look(|s| s.report(lane)).is_ok(),
                    "E3: reported once, then Ok: {reported:?}"
                );
                match device.with(|s| s.recover(lane)) {
                    Ok(()) => continue,
                    Err(_) => {
                        assert!(device.log.lock().unwrap().lost, "only a lost device stays so");
                        break;
                    }
                }
            }
            Err(other) => panic!("refused with {other:?}"),
        };
        let canceller = token.map(|token| {
            let device = device.clone();
            thread::spawn(move || {
                token.cancel();
                device.with(|_| ());
            })
        });
        for chunk in 1..chunks {
            if device.core.look(|s| s.wants_chunks(id)) {
                device.with(|s| s.encoded(id, chunk, device.payload.clone()));
            }
        }
        match thread_rng().gen_range(0..3) {
            0 => device.judge(id, &device.wait(id)),
            1 => device.with(|s| s.release(id)),
            _ => kept.push(id),
        }
        if let Some(canceller) = canceller {
            canceller.join().unwrap();
        }
    }
    for id in kept {
        device.judge(id, &device.wait(id));
        assert!(device.core.look(|s| s.outcome(id)).is_some(), "an outcome stays until it is released");
        device.with(|s| s.release(id));
    }
    // E6: the stream is dropped when nothing of it is left on the device.
    device.core.wait_until(|| (), |s| (s.outstanding(lane) == 0).then_some(()));
}

fn lives() {
    let device = Arc::new(Device {
        core: Core::default(),
        log: Mutex::new(Log::default()),
        arrived: Condvar::new(),
        payload: Arc::new(()),
    });
    let lanes: Vec<LaneId> = (0..STREAMS).map(|_| device.core.look(|s| s.add_lane())).collect();
    let runner = {
        let device = device.clone();
        thread::spawn(move || device.run())
    };
    let streams: Vec<_> = (0..STREAMS)
        .map(|i| {
            let (device, lane, other) = (device.clone(), lanes[i], lanes[(i + 1) % STREAMS]);
            thread::spawn(move || stream(&device, lane, other))
        })
        .collect();
    streams.into_iter().for_each(|s| s.join().unwrap());
    device.log.lock().unwrap().stop = true;
    device.arrived.notify_one();
    runner.join().unwrap();
    device.with(|s| lanes.iter().for_each(|&lane| s.remove_lane(lane)));
    device.core.look(|s| assert!(s.is_idle() && s.in_flight() == 0));
    let log = device.log.lock().unwrap();
    // O2: what was overtaken by work that touches the same bytes was stopped and stayed where it was.
    for id in &log.overtaken {
        let known = &log.known[id];
        assert!(known.committed < known.chunks, "conflicting work ran out of order");
    }
    assert_eq!(Arc::strong_count(&device.payload), 1, "E6: payloads that nobody released");
}

fn explore(scheduler: impl Scheduler + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 17;
    Runner::new(scheduler, config).run(lives);
}

#[test]
fn streams_live_and_die_under_random_schedules() {
    explore(RandomScheduler::new(SCHEDULES));
}

#[test]
fn streams_live_and_die_where_few_switches_matter() {
    explore(PctScheduler::new(4, SCHEDULES));
}
