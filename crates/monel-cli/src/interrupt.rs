//! Ctrl-C: the first one asks, the second one ends.
//!
//! The first Ctrl-C sets a flag ([`flag`]) and runs the callbacks registered with [`on_first`] (a generate
//! loop cancels its token there), so that a command ends in an orderly way: what is on the device is
//! drained, partial downloads stay usable. A user who presses it again does not want to wait: the terminal
//! is put back and the process ends with 130, without exit handlers, which may belong to a driver that hangs.
//! SIGTERM does the same with 143, and it always ends the program: what Ctrl-C only stops a part of (an answer of
//! `chat`) is left for good.
//!
//! Callbacks run on a thread of their own, not inside a signal handler, so they may lock and allocate.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

static REQUESTED: AtomicBool = AtomicBool::new(false);
static TERMINATED: AtomicBool = AtomicBool::new(false);

type Callback = Box<dyn Fn() + Send>;
static ON_FIRST: Mutex<Vec<Callback>> = Mutex::new(Vec::new());
static SCOPED: Mutex<Vec<(u64, Callback)>> = Mutex::new(Vec::new());
static ON_SECOND: Mutex<Vec<Callback>> = Mutex::new(Vec::new());

/// Set from the first Ctrl-C on. Loops that wait (a download, a lock) look at it.
pub fn flag() -> &'static AtomicBool {
    &REQUESTED
}

/// Whether the user asked to stop.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Acquire)
}

/// Whether it was SIGTERM that asked: there is nothing to go on with.
pub fn terminated() -> bool {
    TERMINATED.load(Ordering::Acquire)
}

/// What the program ends with when it was stopped: 128 and the signal's number, as shells have it.
pub fn exit_code() -> u8 {
    if terminated() { 143 } else { 130 }
}

/// Forgets a Ctrl-C that has been dealt with: `chat` stops an answer and goes on. A SIGTERM is not forgotten.
pub fn clear() {
    REQUESTED.store(false, Ordering::Release);
    if terminated() {
        REQUESTED.store(true, Ordering::Release);
    }
}

/// Runs `callback` at the first Ctrl-C; at once if that has already come. It must not wait for anything:
/// the second Ctrl-C is heard by the same thread.
pub fn on_first(callback: impl Fn() + Send + 'static) {
    let mut callbacks = ON_FIRST.lock().unwrap_or_else(PoisonError::into_inner);
    if requested() {
        callback();
    }
    callbacks.push(Box::new(callback));
}

/// Runs `callback` at a Ctrl-C while the guard lives: for one answer of many.
#[must_use = "the callback is gone with the guard"]
pub fn while_here(callback: impl Fn() + Send + 'static) -> Guard {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    SCOPED.lock().unwrap_or_else(PoisonError::into_inner).push((id, Box::new(callback)));
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
        SCOPED.lock().unwrap_or_else(PoisonError::into_inner).retain(|(id, _)| *id != self.0);
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
            if heard(signal == SIGTERM) {
                end();
            }
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

/// Notes a Ctrl-C or SIGTERM; true if one was already pending.
#[cfg_attr(not(unix), allow(dead_code))]
fn heard(terminate: bool) -> bool {
    // The lock orders this against `on_first`: a callback is either in the list or sees the flag.
    let callbacks = ON_FIRST.lock().unwrap_or_else(PoisonError::into_inner);
    TERMINATED.fetch_or(terminate, Ordering::AcqRel);
    let again = REQUESTED.swap(true, Ordering::AcqRel);
    if !again {
        callbacks.iter().for_each(|callback| callback());
        SCOPED.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|(_, callback)| callback());
    }
    again
}

/// Shows the cursor, ends colours and starts a new line, where stderr is a terminal.
fn restore_terminal() {
    // `try_lock`: whoever holds it may be stuck, and this must end.
    if let Ok(callbacks) = ON_SECOND.try_lock() {
        callbacks.iter().for_each(|callback| callback());
    }
    if io::stderr().is_terminal() {
        let _ = io::stderr().write_all(b"\x1b[0m\x1b[?25h\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    // One test: the state belongs to the process.
    #[test]
    fn the_first_asks_and_the_second_is_told_apart() {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = |calls: &Arc<AtomicUsize>| {
            let calls = Arc::clone(calls);
            move || {
                calls.fetch_add(1, Ordering::Relaxed);
            }
        };
        on_first(count(&calls));
        assert!(!requested());
        assert!(!heard(false), "nothing was pending");
        assert!(requested());
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        on_first(count(&calls));
        assert_eq!(calls.load(Ordering::Relaxed), 2, "a late callback runs at once");
        assert!(heard(false), "the second finds the first pending");
        assert_eq!(calls.load(Ordering::Relaxed), 2, "callbacks run once");
        clear();
        assert!(!heard(false), "after `clear` the next one is a first one again");
        clear();
        assert_eq!(exit_code(), 130);
        assert!(!heard(true));
        clear();
        assert!(requested() && terminated() && exit_code() == 143, "SIGTERM is not forgotten");
    }
}
