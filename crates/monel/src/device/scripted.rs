//! The scripted device: the software device's memory and kernels, without threads, under a test's control.
//!
//! Nothing runs until the test says so ([`Script::step`]); time is a counter that the script advances; faults happen
//! where the script puts them. So every promise about order, overlap, windows and errors can be shown exactly, without
//! sleeping and without luck.

use super::driver::{
    Commands, Done, Driver, HostMapping, Info, Job, Memory, MemoryInfo, Sink, Storage, Transfer,
};
use super::software::{self, Base, Options, Pool, base_driver, simd::Isa};
use super::{Counts, Device};
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::ops::Op;
use crate::plan::Plan;
use crate::tensor::{DType, Desc};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// What goes wrong, once.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The named graph's chunk fails in op `op` of its chunk (a name for the error) after running.
    Kernel {
        /// The graph or transfer.
        graph: String,
        /// The chunk.
        chunk: usize,
        /// The op named in the error.
        op: String,
    },
    /// The named graph's chunk does not finish: it times out after `limit_ms` of the script's time.
    Hang {
        /// The graph or transfer.
        graph: String,
        /// The chunk.
        chunk: usize,
        /// How long the device waited.
        limit_ms: u64,
    },
    /// The device is lost while it runs the named graph's chunk.
    Lost {
        /// The graph or transfer.
        graph: String,
        /// The chunk.
        chunk: usize,
    },
    /// Encoding the named graph's chunk fails.
    Encode {
        /// The graph.
        graph: String,
        /// The chunk.
        chunk: usize,
    },
    /// The n-th allocation from now fails (0 is the next).
    Allocation(usize),
}

/// A finished job in the script's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The graph or transfer.
    pub graph: String,
    /// The chunk.
    pub chunk: usize,
    /// When it began, on the script's clock.
    pub began: Duration,
    /// When it ended.
    pub ended: Duration,
    /// How many committed jobs were waiting behind it when it ended: 0 means that the device then had nothing to do.
    pub waiting: usize,
}

struct State {
    jobs: VecDeque<Job>,
    sink: Option<Weak<dyn Sink>>,
    pool: Pool,
    clock: Duration,
    job_time: Duration,
    faults: Vec<Fault>,
    log: Vec<Ran>,
    held: Vec<(String, usize)>,
}

struct Scripted {
    base: Base,
    began: Instant,
    state: Mutex<State>,
    /// Held while a job runs and is reported, so that reports keep the order when several threads step.
    turn: Mutex<()>,
    released: Condvar,
}

/// Drives a scripted device.
#[derive(Clone)]
pub struct Script {
    driver: Arc<Scripted>,
}

/// A device that does nothing until its script says so.
pub fn create(options: &Options) -> (Device, Script) {
    let counts = Arc::new(Counts::default());
    let isa = options.isa.unwrap_or_else(Isa::detect);
    let mut base = Base::new(&Options { threads: 1, ..options.clone() }, isa, &counts);
    base.info.id = "scripted".into();
    base.info.name = "scripted device".into();
    let rates = base.rates();
    let state = State {
        jobs: VecDeque::new(),
        sink: None,
        pool: Pool::new(1, base.isa, counts.clone()),
        clock: Duration::ZERO,
        job_time: Duration::from_millis(1),
        faults: Vec::new(),
        log: Vec::new(),
        held: Vec::new(),
    };
    let driver = Arc::new(Scripted {
        base,
        began: Instant::now(),
        state: Mutex::new(state),
        turn: Mutex::new(()),
        released: Condvar::new(),
    });
    let device = Device::with_driver(driver.clone(), rates, options.settings.clone(), counts);
    (device, Script { driver })
}

impl Script {
    /// Runs the next committed job, kernels and all, and reports it. `false` if there is none.
    pub fn step(&self) -> bool {
        let _turn = self.driver.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.driver.lock();
        let Some(job) = state.jobs.pop_front() else { return false };
        let (graph, chunk, seq) = (job.label.0.to_string(), job.label.1, job.seq);
        let fault = state.take_fault(|f| match f {
            Fault::Kernel { graph: g, chunk: c, .. }
            | Fault::Hang { graph: g, chunk: c, .. }
            | Fault::Lost { graph: g, chunk: c } => *g == graph && *c == chunk,
            _ => false,
        });
        let began = state.clock;
        let took = match &fault {
            Some(Fault::Hang { limit_ms, .. }) => Duration::from_millis(*limit_ms),
            _ => state.job_time,
        };
        state.clock += took;
        let result = match fault {
            Some(Fault::Hang { limit_ms, .. }) => {
                Err((None, Error::Timeout { device: self.driver.base.info.name.clone(), limit_ms }))
            }
            Some(Fault::Lost { .. }) => {
                let device = self.driver.base.info.name.clone();
                Err((None, Error::DeviceLost { device, reason: "the script said so".into() }))
            }
            other => {
                let ran = software::execute(job, &mut state.pool, "scripted").result;
                match other {
                    Some(Fault::Kernel { op, .. }) => {
                        Err((Some(op), Error::Kernel("the script said so".into())))
                    }
                    _ => ran,
                }
            }
        };
        let waiting = state.jobs.len();
        let ended = state.clock;
        state.log.push(Ran { graph, chunk, began, ended, waiting });
        let sink = state.sink.as_ref().and_then(Weak::upgrade);
        drop(state);
        let at = |d: Duration| self.driver.began + d;
        if let Some(sink) = sink {
            sink.completed(Done { seq, result, began: at(began), ended: at(ended) });
        }
        true
    }

    /// Runs jobs until none is committed; how many there were.
    pub fn run_all(&self) -> usize {
        std::iter::from_fn(|| self.step().then_some(())).count()
    }

    /// Runs jobs on a thread of its own until the returned guard is dropped: for calls that block.
    pub fn run_in_background(&self) -> Background {
        let (script, stop) = (self.clone(), Arc::new(std::sync::atomic::AtomicBool::new(false)));
        let flag = stop.clone();
        let thread = std::thread::spawn(move || {
            while !flag.load(std::sync::atomic::Ordering::Acquire) {
                if !script.step() {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
            script.run_all();
        });
        Background { stop, thread: Some(thread) }
    }

    /// Committed jobs that have not run: graph or transfer, and chunk.
    pub fn pending(&self) -> Vec<(String, usize)> {
        self.driver.lock().jobs.iter().map(|j| (j.label.0.to_string(), j.label.1)).collect()
    }

    /// What ran so far.
    pub fn log(&self) -> Vec<Ran> {
        self.driver.lock().log.clone()
    }

    /// How long every job takes on the script's clock from now on.
    pub fn set_job_time(&self, time: Duration) {
        self.driver.lock().job_time = time;
    }

    /// Puts a fault in.
    pub fn fault(&self, fault: Fault) {
        self.driver.lock().faults.push(fault);
    }

    /// Makes encoding of a chunk wait until [`Script::release`].
    pub fn hold_encode(&self, graph: &str, chunk: usize) {
        self.driver.lock().held.push((graph.to_string(), chunk));
    }

    /// Lets all held encoders go on.
    pub fn release(&self) {
        self.driver.lock().held.clear();
        self.driver.released.notify_all();
    }
}

/// Runs a script's jobs until dropped.
pub struct Background {
    stop: Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl State {
    fn take_fault(&mut self, matches: impl Fn(&Fault) -> bool) -> Option<Fault> {
        let at = self.faults.iter().position(matches)?;
        Some(self.faults.remove(at))
    }
}

impl Scripted {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts down to an allocation fault.
    fn allocation_fails(&self) -> bool {
        let mut state = self.lock();
        for fault in &mut state.faults {
            if let Fault::Allocation(left) = fault
                && *left > 0
            {
                *left -= 1;
                return false;
            }
        }
        state.take_fault(|f| matches!(f, Fault::Allocation(0))).is_some()
    }
}

impl Driver for Scripted {
    base_driver!(
        base,
        allocate = |this: &Scripted, storage, bytes| {
            if this.allocation_fails() {
                return Err(Error::OutOfMemory {
                    device: this.base.info.name.clone(),
                    what: "a buffer".into(),
                    wanted: bytes as u64,
                    free: 0,
                });
            }
            this.base.allocator.allocate(storage, bytes)
        },
        encode = |this: &Scripted, plan: &Plan, chunk: usize, scratch| {
            let mut state = this.lock();
            let mine = (plan.name.to_string(), chunk);
            while state.held.contains(&mine) {
                state = this.released.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let fails =
                |f: &Fault| matches!(f, Fault::Encode { graph, chunk: c } if *graph == mine.0 && *c == chunk);
            if state.take_fault(fails).is_some() {
                return Err(Error::Kernel("the script let encoding fail".into()));
            }
            drop(state);
            this.base.encoder.chunk(plan, chunk, scratch)
        }
    );

    fn attach(&self, sink: Weak<dyn Sink>) {
        self.lock().sink = Some(sink);
    }

    fn commit(&self, job: Job) {
        self.lock().jobs.push_back(job);
    }
}
