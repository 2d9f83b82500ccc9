//! Helper threads that encode chunks beside the calling thread (contract A2).

use super::Counts;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

type Task = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Shared {
    tasks: Mutex<(VecDeque<Task>, bool)>,
    ready: Condvar,
}

/// A few threads that run encode tasks, started with the first one.
pub(crate) struct Encoders {
    helpers: usize,
    counts: Arc<Counts>,
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Encoders {
    pub fn new(helpers: usize, counts: Arc<Counts>) -> Encoders {
        Encoders { helpers, counts, shared: Arc::default(), threads: Mutex::new(Vec::new()) }
    }

    /// Whether there are helpers at all.
    pub fn any(&self) -> bool {
        self.helpers > 0
    }

    /// Runs a task on a helper. When no thread can be started, the task runs here.
    pub fn spawn(&self, task: Task) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        while threads.len() < self.helpers {
            let (shared, counts) = (self.shared.clone(), self.counts.clone());
            let name = format!("monel encode {}", threads.len());
            let body = move || {
                run(&shared);
                counts.threads.fetch_sub(1, Ordering::AcqRel);
            };
            self.counts.threads.fetch_add(1, Ordering::AcqRel);
            match std::thread::Builder::new().name(name).spawn(body) {
                Ok(thread) => threads.push(thread),
                Err(_) => {
                    self.counts.threads.fetch_sub(1, Ordering::AcqRel);
                    break;
                }
            }
        }
        if threads.is_empty() {
            drop(threads);
            return task();
        }
        self.shared.tasks.lock().unwrap_or_else(PoisonError::into_inner).0.push_back(task);
        self.shared.ready.notify_one();
    }

    /// Ends the threads after what was handed over.
    pub fn shut_down(&self) {
        self.shared.tasks.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.shared.ready.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        let me = std::thread::current().id();
        for thread in threads {
            // The last handle may be dropped by a task on a helper: a thread cannot join itself.
            if thread.thread().id() != me {
                let _ = thread.join();
            }
        }
    }
}

fn run(shared: &Shared) {
    let mut guard = shared.tasks.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(task) = guard.0.pop_front() {
            drop(guard);
            task();
            guard = shared.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        } else if guard.1 {
            return;
        } else {
            guard = shared.ready.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
