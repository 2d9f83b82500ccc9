//! The queue's lock, condition variable and state, and the pool's door, under every interleaving that loom finds with
//! a bounded number of preemptions. A lost wake-up is a deadlock here, which loom reports.
//!
//!     RUSTFLAGS="--cfg loom" cargo test -p monel --release --test loom
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test's way to fail")]

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use monel::device::software::door::Door;
use monel::queue::{Access, Core, Effect, Gate, LaneId, Request, SubmissionId, WINDOW};
use monel::{CancelToken, Error, Result};
use std::collections::VecDeque;
use std::sync::Arc;

fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(f);
}

/// A queue over a device that is a list; its `completer` takes one job at a time.
struct Device {
    core: Core<usize>,
    jobs: Mutex<VecDeque<(u64, SubmissionId)>>,
    arrived: Condvar,
}

impl Device {
    fn new() -> Arc<Device> {
        let (jobs, arrived) = (Mutex::new(VecDeque::new()), Condvar::new());
        Arc::new(Device { core: Core::default(), jobs, arrived })
    }

    fn with<R>(&self, change: impl FnOnce(&mut monel::queue::State<usize>) -> R) -> R {
        let commit = |c: monel::queue::Commit<usize>| {
            let mut jobs = self.jobs.lock().unwrap();
            jobs.push_back((c.seq, c.id));
            let same = jobs.iter().filter(|j| j.1 == c.id).count();
            assert!(same <= WINDOW, "more than the window of one submission on the device");
            self.arrived.notify_one();
        };
        let (result, effects) = self.core.with(commit, change);
        for effect in effects {
            match effect {
                Effect::Wake(waker) => waker.wake(),
                Effect::Open(gate, result) => gate.open(result),
                Effect::Discard(_) | Effect::Forget(_) => {}
            }
        }
        result
    }

    fn submit(
        &self,
        lane: LaneId,
        chunks: usize,
        access: &[Access],
        cancel: Option<&CancelToken>,
    ) -> Result<SubmissionId> {
        self.with(|s| {
            s.submit(Request {
                lane,
                name: "graph".into(),
                graph: false,
                chunks: (0..chunks).map(Some).collect(),
                long: chunks > 1,
                access: access.into(),
                cancel: cancel.cloned(),
            })
        })
    }

    fn wait(&self, id: SubmissionId) -> Result<()> {
        self.core.wait_until(|| (), |s| s.outcome(id))
    }

    /// Completes one job; the job stays counted on the device until the state has heard of it.
    fn complete_one(&self, result: Result<(), (Option<String>, Error)>) {
        let mut jobs = self.jobs.lock().unwrap();
        while jobs.is_empty() {
            jobs = self.arrived.wait(jobs).unwrap();
        }
        let (seq, _) = jobs.pop_front().unwrap();
        drop(jobs);
        self.with(|s| s.completed(seq, result));
    }
}

#[test]
fn a2_two_submitters_and_a_completer_keep_the_window_and_wake_everybody() {
    model(3, || {
        let device = Device::new();
        let lanes = [(); 2].map(|()| device.core.look(|s| s.add_lane()));
        let submitter = {
            let device = device.clone();
            thread::spawn(move || {
                let id = device.submit(lanes[0], 3, &[], None).unwrap();
                device.wait(id)
            })
        };
        let completer = {
            let device = device.clone();
            thread::spawn(move || (0..4).for_each(|_| device.complete_one(Ok(()))))
        };
        let id = device.submit(lanes[1], 1, &[], None).unwrap();
        device.wait(id).unwrap();
        submitter.join().unwrap().unwrap();
        completer.join().unwrap();
        device.core.look(|s| {
            assert!(s.is_idle());
            assert_eq!(s.in_flight(), 0);
        });
    });
}

#[test]
fn e3_a_failure_is_latched_exactly_once() {
    model(3, || {
        let device = Device::new();
        let lane = device.core.look(|s| s.add_lane());
        let other = {
            let device = device.clone();
            thread::spawn(move || device.submit(lane, 1, &[], None).and_then(|id| device.wait(id)))
        };
        let completer = {
            let device = device.clone();
            thread::spawn(move || {
                device.complete_one(Err((None, Error::Kernel("first".into()))));
                // The second submission was refused, stopped in the backlog, or is on the device.
                device.with(|s| (s.in_flight() > 0).then_some(())).map(|()| device.complete_one(Ok(())));
            })
        };
        let mine = device.submit(lane, 1, &[], None).and_then(|id| device.wait(id));
        let theirs = other.join().unwrap();
        completer.join().unwrap();
        let poisoned = [&mine, &theirs].iter().filter(|r| matches!(r, Err(Error::Poisoned { .. }))).count();
        let failed = [&mine, &theirs].iter().filter(|r| matches!(r, Err(Error::Failed { .. }))).count();
        assert_eq!((failed, poisoned), (1, 1), "{mine:?} {theirs:?}");
        assert!(matches!(device.core.look(|s| s.report(lane)), Err(Error::Failed { .. })));
        assert!(device.core.look(|s| s.report(lane)).is_ok(), "reported once");
        assert!(device.submit(lane, 1, &[], None).is_err(), "still poisoned");
        device.core.look(|s| s.recover(lane)).unwrap();
        assert!(device.submit(lane, 1, &[], None).is_ok());
    });
}

#[test]
fn o2_bytes_that_the_host_writes_wait_for_it_whatever_fails() {
    for lost in [false, true] {
        model(3, move || {
            let device = Device::new();
            let lanes = [(); 2].map(|()| device.core.look(|s| s.add_lane()));
            let bytes = |buffer| Access { buffer, range: 0..8, write: true, whole: true };
            device.submit(lanes[0], 1, &[bytes(1)], None).unwrap();
            let turn = device.with(|s| s.begin_on_host(lanes[0], "upload", bytes(2))).unwrap().unwrap();
            let completer = {
                let device = device.clone();
                thread::spawn(move || {
                    let cause = if lost {
                        Error::DeviceLost { device: "model".into(), reason: "it is gone".into() }
                    } else {
                        Error::Kernel("first".into())
                    };
                    device.complete_one(Err((None, cause)));
                })
            };
            // Another lane's work on the host's bytes, and another turn on them.
            let other = device.submit(lanes[1], 1, &[bytes(2)], None);
            assert!(device.core.look(|s| !s.is_free(lanes[1], &bytes(2))));
            let reached = |id| device.jobs.lock().unwrap().iter().any(|j| j.1 == id);
            assert!(!other.as_ref().is_ok_and(|&id| reached(id)), "on the device beside the host");
            completer.join().unwrap();
            assert!(!other.as_ref().is_ok_and(|&id| reached(id)), "on the device beside the host");
            device.with(|s| s.finish_on_host(turn));
            assert!(device.wait(turn).is_err(), "what its lane failed with");
            match other {
                Ok(id) if !lost => {
                    device.complete_one(Ok(()));
                    device.wait(id).unwrap();
                }
                Ok(id) => assert!(device.wait(id).is_err()),
                Err(e) => assert!(lost, "{e}"),
            }
            assert!(device.core.look(|s| s.is_idle()));
        });
    }
}

#[test]
fn a3_the_budget_of_graphs_in_flight_holds_between_threads() {
    model(3, || {
        let device = Device::new();
        let lane = device.core.look(|s| s.add_lane());
        let inside = Arc::new(AtomicUsize::new(0));
        let work = move |device: &Device, inside: &AtomicUsize| {
            device.core.wait_until(|| (), |s| s.reserve(lane, 1).then_some(()));
            assert_eq!(inside.fetch_add(1, Ordering::AcqRel), 0, "one graph in flight");
            inside.fetch_sub(1, Ordering::AcqRel);
            let id = device.with(|s| {
                s.submit(Request {
                    lane,
                    name: "graph".into(),
                    graph: true,
                    chunks: vec![Some(0)],
                    long: false,
                    access: [].into(),
                    cancel: None,
                })
            });
            device.core.look(|s| assert!(s.graphs_in_flight(lane) <= 1));
            id.unwrap()
        };
        let other = {
            let (device, inside) = (device.clone(), inside.clone());
            thread::spawn(move || {
                let id = work(&device, &inside);
                device.wait(id)
            })
        };
        let completer = {
            let device = device.clone();
            thread::spawn(move || (0..2).for_each(|_| device.complete_one(Ok(()))))
        };
        let id = work(&device, &inside);
        device.wait(id).unwrap();
        other.join().unwrap().unwrap();
        completer.join().unwrap();
        assert_eq!(device.core.look(|s| s.graphs_in_flight(lane)), 0);
    });
}

#[test]
fn o4_an_event_lets_the_waiting_lane_go_on() {
    model(3, || {
        let device = Device::new();
        let (a, b) = device.core.look(|s| (s.add_lane(), s.add_lane()));
        let first = device.submit(a, 1, &[], None).unwrap();
        let completer = {
            let device = device.clone();
            thread::spawn(move || (0..2).for_each(|_| device.complete_one(Ok(()))))
        };
        let gate = Arc::new(Gate::default());
        device.with(|s| s.record(a, gate.clone()));
        device.with(|s| s.wait_for(b, gate.clone()));
        let weak = Arc::downgrade(&device);
        gate.on_open(move || weak.upgrade().map_or((), |d| d.with(|_| ())));
        let second = device.submit(b, 1, &[], None).unwrap();
        device.wait(second).unwrap();
        assert!(device.core.look(|s| s.outcome(first)).is_some(), "the event came after the first");
        completer.join().unwrap();
    });
}

#[test]
fn e5_cancelling_while_the_device_completes_always_resolves() {
    model(3, || {
        let device = Device::new();
        let lane = device.core.look(|s| s.add_lane());
        let token = CancelToken::new();
        let id = device.submit(lane, 3, &[], Some(&token)).unwrap();
        let canceller = {
            let device = device.clone();
            thread::spawn(move || {
                token.cancel();
                device.with(|_| ());
            })
        };
        let completer = {
            let device = device.clone();
            thread::spawn(move || {
                (0..2).for_each(|_| device.complete_one(Ok(())));
                if !device.jobs.lock().unwrap().is_empty() {
                    device.complete_one(Ok(()));
                }
            })
        };
        canceller.join().unwrap();
        completer.join().unwrap();
        let result = device.wait(id);
        assert!(matches!(result, Ok(()) | Err(Error::Cancelled)), "{result:?}");
        assert!(device.core.look(|s| s.is_idle() && !s.is_poisoned(lane)));
    });
}

/// Work that two threads may add to, and that its owner takes back between openings.
struct Work {
    owned: UnsafeCell<usize>,
    visits: AtomicUsize,
}

// SAFETY: loom checks the accesses to `owned`.
unsafe impl Sync for Work {}
// SAFETY: as above.
unsafe impl Send for Work {}

#[test]
fn the_door_shuts_everybody_out_before_the_work_is_reused() {
    model(5, || {
        let door: Arc<Door<Work>> = Arc::new(Door::new(1));
        let worker = {
            let door = door.clone();
            thread::spawn(move || {
                door.serve(0, thread::park, |work| {
                    // SAFETY: only read while the door is open; loom reports a writer at the same time.
                    work.owned.with(|p| assert_ne!(unsafe { *p }, 0));
                    work.visits.fetch_add(1, Ordering::Relaxed);
                });
            })
        };
        let work = Work { owned: UnsafeCell::new(0), visits: AtomicUsize::new(0) };
        for round in 1..3 {
            // SAFETY: nobody is inside; loom reports it otherwise.
            work.owned.with_mut(|p| unsafe { *p = round });
            door.run(&work, |_| worker.thread().unpark(), || ());
            assert!(work.visits.load(Ordering::Relaxed) <= round, "at most one visit for each opening");
        }
        work.owned.with_mut(|p| unsafe { *p = 0 });
        door.stop();
        worker.thread().unpark();
        worker.join().unwrap();
    });
}

#[test]
fn a_parked_worker_hears_the_door() {
    model(5, || {
        let door: Arc<Door<AtomicUsize>> = Arc::new(Door::new(1));
        let worker = {
            let door = door.clone();
            thread::spawn(move || {
                door.serve(0, thread::park, |visits| {
                    visits.fetch_add(1, Ordering::Release);
                });
            })
        };
        let visits = AtomicUsize::new(0);
        // The owner leaves the work to the worker: if it slept on, this would never end.
        door.run(
            &visits,
            |_| worker.thread().unpark(),
            || {
                while visits.load(Ordering::Acquire) == 0 {
                    thread::yield_now();
                }
            },
        );
        door.stop();
        worker.thread().unpark();
        worker.join().unwrap();
    });
}
