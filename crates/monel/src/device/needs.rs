//! What a model needs before it is loaded (contract M7): a list, a table, and a refusal up front.

use super::Device;
use crate::error::{Error, Result};
use std::fmt;

/// One line: what for, how many bytes, and whether they have to stay in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// What for: `weights`, `KV cache`, `scratch`, `staging`.
    pub what: String,
    /// Bytes.
    pub bytes: u64,
    /// Used in place from a file: the system can drop and read them again.
    pub mapped: bool,
}

/// Everything a model needs on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The lines.
    pub lines: Vec<Need>,
}

impl Needs {
    /// Adds a line.
    pub fn add(&mut self, what: impl Into<String>, bytes: u64, mapped: bool) {
        self.lines.push(Need { what: what.into(), bytes, mapped });
    }

    /// Bytes that have to stay in memory.
    pub fn resident(&self) -> u64 {
        self.lines.iter().filter(|l| !l.mapped).fold(0, |n, l| n.saturating_add(l.bytes))
    }

    /// Refuses what cannot fit, with wanted and free bytes.
    pub fn check(&self, device: &Device) -> Result<()> {
        let free = device.memory().free;
        if self.resident() <= free {
            return Ok(());
        }
        let device = device.info().name.clone();
        let list: Vec<String> = self.lines.iter().map(|l| format!("{} {}", l.what, l.bytes)).collect();
        Err(Error::OutOfMemory {
            device,
            what: format!("the model ({})", list.join(", ")),
            wanted: self.resident(),
            free,
        })
    }
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.lines.iter().map(|l| l.what.len()).max().unwrap_or(0).max(8);
        for l in &self.lines {
            let note = if l.mapped { "  (mapped from the file)" } else { "" };
            writeln!(f, "{:width$}  {:>10.1} MB{note}", l.what, l.bytes as f64 / 1e6)?;
        }
        write!(f, "{:width$}  {:>10.1} MB", "resident", self.resident() as f64 / 1e6)
    }
}
