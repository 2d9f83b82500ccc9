//! How far a fetch has come, on stderr.
//!
//! A terminal gets a bar of bytes; anything else (a log, a pipe) gets one plain line per stage. The store
//! only knows [`Progress`], so tests can listen in and the engine's commands can be silent.

use std::io::{self, IsTerminal};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::{bytes, note};

/// Who is told how far it is. All methods may be called from any thread.
pub trait Progress: Sync {
    /// A stage begins; `total` bytes are expected, as far as that is known.
    fn stage(&self, what: &str, total: Option<u64>);
    /// The stage has come to `bytes`, counted from its start.
    fn reached(&self, bytes: u64);
    /// Something worth a line of its own.
    fn note(&self, line: &str);
    /// All stages are over.
    fn finish(&self);
}

/// A bar where stderr is a terminal, else lines.
pub fn stderr() -> Box<dyn Progress> {
    if io::stderr().is_terminal() { Box::new(Bar::default()) } else { Box::new(Lines) }
}

/// One line per stage.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lines;

impl Progress for Lines {
    fn stage(&self, what: &str, total: Option<u64>) {
        match total {
            Some(total) => note(format_args!("{what} ({})", bytes(total))),
            None => note(what),
        }
    }
    fn reached(&self, _: u64) {}
    fn note(&self, line: &str) {
        note(line);
    }
    fn finish(&self) {}
}

/// A bar that is redrawn in place.
#[derive(Debug, Default)]
struct Bar {
    current: Mutex<Option<ProgressBar>>,
}

impl Bar {
    fn with(&self, act: impl FnOnce(&mut Option<ProgressBar>)) {
        act(&mut self.current.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Progress for Bar {
    fn stage(&self, what: &str, total: Option<u64>) {
        let (template, bar) = match total {
            Some(total) => (
                "{msg} {wide_bar} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec}",
                ProgressBar::new(total),
            ),
            None => ("{spinner} {msg} {decimal_bytes}", ProgressBar::no_length()),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        self.with(|current| {
            if let Some(old) = current.replace(bar) {
                old.finish_and_clear();
            }
        });
    }

    fn reached(&self, bytes: u64) {
        self.with(|current| {
            if let Some(bar) = current {
                bar.set_position(bar.length().map_or(bytes, |total| bytes.min(total)));
            }
        });
    }

    fn note(&self, line: &str) {
        self.with(|current| match current {
            Some(bar) => bar.suspend(|| note(line)),
            None => note(line),
        });
    }

    fn finish(&self) {
        self.with(|current| {
            if let Some(bar) = current.take() {
                bar.finish_and_clear();
            }
        });
    }
}

impl Drop for Bar {
    // An error ends a stage half-way; its message must not share a line with the bar.
    fn drop(&mut self) {
        self.finish();
    }
}
