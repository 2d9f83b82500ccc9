//! Ctrl-C: the first one asks, the second one ends.
//!
//! The first Ctrl-C sets a flag ([`flag`]) and runs the callbacks registered with [`on_first`] (a generate
//! loop cancels its token there), so that a command ends in an orderly way: what is on the device is
//! drained, partial downloads stay usable. A user who presses it again does not want to wait: the terminal
//! is put back and the process ends with 130, without exit handlers, which may belong to a driver that hangs.
//! SIGTERM does the same with 143, and it always ends the program: what Ctrl-C only stops a part of (an answer of
//! `chat`) is left for good.
//!
//! A flag does not end a write that blocks, as into a pipe that nobody reads. So whoever writes says so ([`writing`]), and once a
//! Ctrl-C was heard, a write that goes nowhere for a moment ends the process, as the second Ctrl-C would.
//!
//! Callbacks run on a thread of their own, not inside a signal handler, so they may lock and allocate.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

type Callback = Box<dyn Fn() + Send>;

/// What was heard, and whom to tell.
struct Signals {
    requested: AtomicBool,
    terminated: AtomicBool,
    on_first: Mutex<Vec<Callback>>,
    scoped: Mutex<Vec<(u64, Callback)>>,
}

/// The process's own.
static SIGNALS: Signals = Signals::new();
static ON_SECOND: Mutex<Vec<Callback>> = Mutex::new(Vec::new());

/// Set from the first Ctrl-C on. Loops that wait (a download, a lock) look at it.
pub fn flag() -> &'static AtomicBool {
    &SIGNALS.requested
}

/// Whether the user asked to stop.
pub fn requested() -> bool {
    SIGNALS.requested()
}

/// Whether it was SIGTERM that asked: there is nothing to go on with.
pub fn terminated() -> bool {
    SIGNALS.terminated()
}

/// What the program ends with when it was stopped: 128 and the signal's number, as shells have it.
pub fn exit_code() -> u8 {
    SIGNALS.exit_code()
}

/// Forgets a Ctrl-C that has been dealt with: `chat` stops an answer and goes on. A SIGTERM is not forgotten.
pub fn clear() {
    SIGNALS.clear();
}

/// Runs `callback` at the first Ctrl-C; at once if that has already come. It must not wait for anything:
/// the second Ctrl-C is heard by the same thread.
pub fn on_first(callback: impl Fn() + Send + 'static) {
    SIGNALS.on_first(callback);
}

/// Runs `callback` at a Ctrl-C while the guard lives: for one answer of many.
#[must_use = "the callback is gone with the guard"]
pub fn while_here(callback: impl Fn() + Send + 'static) -> Guard {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    SIGNALS.scoped.lock().unwrap_or_else(PoisonError::into_inner).push((id, Box::new(callback)));
    Guard(id)
}

/// Ends the process at the first Ctrl-C while the guard lives: where there is nothing to stop in an orderly way, such as
/// a wait for stdin, which a flag does not end.
#[must_use = "with the guard gone, the first Ctrl-C asks again"]
pub fn ends_here() -> Guard {
    let guard = while_here(end);
    if requested() {
        end();
    }
    guard
}

/// Ends the process at SIGTERM while the guard lives: a wait for a line that is being edited, where a typed Ctrl-C is a
/// key like others and one that is late for the answer before means nothing.
#[must_use = "with the guard gone, SIGTERM asks again"]
pub fn terminates_here() -> Guard {
    let end_if_terminated = || {
        if terminated() {
            end();
        }
    };
    let guard = while_here(end_if_terminated);
    end_if_terminated();
    guard
}

/// Writes that were begun and not ended, and how many were ended in all.
static WRITING: AtomicUsize = AtomicUsize::new(0);
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// Says that the caller writes to stdout or stderr while the guard lives: a piece that a reader takes at once.
#[must_use = "with the guard gone, nobody knows of the write"]
pub fn writing() -> Writing {
    WRITING.fetch_add(1, Ordering::AcqRel);
    Writing(())
}

/// Keeps a write known, see [`writing`].
#[derive(Debug)]
pub struct Writing(());

impl Drop for Writing {
    fn drop(&mut self) {
        WRITTEN.fetch_add(1, Ordering::AcqRel);
        WRITING.fetch_sub(1, Ordering::AcqRel);
    }
}

/// How often, and how many times, a write is looked at before it counts as blocked. Looks are counted and no time is taken, as
/// a process that was stopped for a while (Ctrl-Z) has written nothing meanwhile.
const LOOK: Duration = Duration::from_millis(50);
const LOOKS: u32 = 10;

/// Ends the process if a write blocks while a Ctrl-C is pending.
#[cfg(unix)]
fn watch_writes() {
    let mut last = WRITTEN.load(Ordering::Acquire);
    let mut looks = 0;
    while requested() {
        std::thread::sleep(LOOK);
        let written = WRITTEN.load(Ordering::Acquire);
        let same = WRITING.load(Ordering::Acquire) > 0 && written == last;
        (last, looks) = (written, if same { looks + 1 } else { 0 });
        if looks >= LOOKS && requested() {
            end();
        }
    }
}

/// How long the terminal may take to be put back.
const PATIENCE: Duration = Duration::from_millis(200);

/// Puts the terminal back and ends with [`exit_code`], without exit handlers.
fn end() {
    // From a thread that nobody has to wait for: a terminal that was stopped (Ctrl-S) takes nothing.
    let (done, restored) = mpsc::channel();
    let restore = move || {
        restore_terminal();
        let _ = done.send(());
    };
    let _ = std::thread::Builder::new().name("restore terminal".into()).spawn(restore);
    let _ = restored.recv_timeout(PATIENCE);
    let code = i32::from(exit_code());
    #[cfg(unix)]
    signal_hook::low_level::exit(code);
    #[cfg(not(unix))]
    std::process::exit(code);
}

/// Keeps a callback of [`while_here`].
#[derive(Debug)]
pub struct Guard(u64);

impl Drop for Guard {
    fn drop(&mut self) {
        SIGNALS.scoped.lock().unwrap_or_else(PoisonError::into_inner).retain(|(id, _)| *id != self.0);
    }
}

/// Runs `callback` before the second Ctrl-C ends the process: for whoever changed the terminal's mode.
pub fn on_second(callback: impl Fn() + Send + 'static) {
    ON_SECOND.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(callback));
}

/// Starts to listen. Called once, first thing in `main`.
///
/// # Errors
/// When the system refuses a signal handler or a thread.
#[cfg(unix)]
pub fn install() -> io::Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};

    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    std::thread::Builder::new().name("interrupt".into()).spawn(move || {
        for signal in signals.forever() {
            if SIGNALS.heard(signal == SIGTERM) {
                end();
            }
            // Without this thread a second Ctrl-C is needed.
            let _ = std::thread::Builder::new().name("blocked writes".into()).spawn(watch_writes);
        }
    })?;
    Ok(())
}

/// Starts to listen. Elsewhere the system's own Ctrl-C stands: the process ends at once.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub fn install() -> io::Result<()> {
    Ok(())
}

impl Signals {
    const fn new() -> Self {
        Self {
            requested: AtomicBool::new(false),
            terminated: AtomicBool::new(false),
            on_first: Mutex::new(Vec::new()),
            scoped: Mutex::new(Vec::new()),
        }
    }

    fn requested(&self) -> bool {
        self.requested.load(Ordering::Acquire)
    }

    fn terminated(&self) -> bool {
        self.terminated.load(Ordering::Acquire)
    }

    fn exit_code(&self) -> u8 {
        if self.terminated() { 143 } else { 130 }
    }

    fn clear(&self) {
        self.requested.store(false, Ordering::Release);
        if self.terminated() {
            self.requested.store(true, Ordering::Release);
        }
    }

    fn on_first(&self, callback: impl Fn() + Send + 'static) {
        let mut callbacks = self.on_first.lock().unwrap_or_else(PoisonError::into_inner);
        if self.requested() {
            callback();
        }
        callbacks.push(Box::new(callback));
    }

    /// Notes a Ctrl-C or SIGTERM; true if one was already pending.
    #[cfg_attr(not(unix), allow(dead_code))]
    fn heard(&self, terminate: bool) -> bool {
        // The lock orders this against `on_first`: a callback is either in the list or sees the flag.
        let callbacks = self.on_first.lock().unwrap_or_else(PoisonError::into_inner);
        self.terminated.fetch_or(terminate, Ordering::AcqRel);
        let again = self.requested.swap(true, Ordering::AcqRel);
        if !again {
            callbacks.iter().for_each(|callback| callback());
            self.scoped
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .iter()
                .for_each(|(_, callback)| callback());
        }
        again
    }
}

/// Shows the cursor, ends colours and starts a new line, where stderr is a terminal.
fn restore_terminal() {
    // `try_lock`: whoever holds it may be stuck, and this must end.
    if let Ok(callbacks) = ON_SECOND.try_lock() {
        callbacks.iter().for_each(|callback| callback());
    }
    if io::stderr().is_terminal() {
        let _ = io::stderr().write_all(RESTORED);
    }
}

/// No colours, the cursor shown, a new line.
pub(crate) const RESTORED: &[u8] = b"\x1b[0m\x1b[?25h\n";

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn the_first_asks_and_the_second_is_told_apart() {
        // Not the process's own: other tests read files beside this one, and a SIGTERM ends what reads.
        let signals = Signals::new();
        let calls = Arc::new(AtomicUsize::new(0));
        let count = |calls: &Arc<AtomicUsize>| {
            let calls = Arc::clone(calls);
            move || {
                calls.fetch_add(1, Ordering::Relaxed);
            }
        };
        signals.on_first(count(&calls));
        assert!(!signals.requested());
        assert!(!signals.heard(false), "nothing was pending");
        assert!(signals.requested());
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        signals.on_first(count(&calls));
        assert_eq!(calls.load(Ordering::Relaxed), 2, "a late callback runs at once");
        assert!(signals.heard(false), "the second finds the first pending");
        assert_eq!(calls.load(Ordering::Relaxed), 2, "callbacks run once");
        signals.clear();
        assert!(!signals.heard(false), "after `clear` the next one is a first one again");
        signals.clear();
        assert_eq!(signals.exit_code(), 130);
        assert!(!signals.heard(true));
        signals.clear();
        assert!(
            signals.requested() && signals.terminated() && signals.exit_code() == 143,
            "SIGTERM is not forgotten"
        );
    }
}
