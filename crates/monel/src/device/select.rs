//! Choosing a device by what people type: `cpu`, a kind with a number, or part of a name.

use super::{Device, DeviceKind, software};
use crate::error::{Error, Result};

/// A device that can be opened.
#[derive(Clone, Debug)]
pub struct Listing {
    /// What `--device` takes.
    pub id: String,
    /// The hardware's name.
    pub name: String,
    /// What it is.
    pub kind: DeviceKind,
}

/// Every device of the machine, the software device last.
pub fn list() -> Vec<Listing> {
    let name = software::memory::processor_name();
    vec![Listing { id: "cpu".into(), name, kind: DeviceKind::Cpu }]
}

/// Opens the device that `spec` names, or the best one: the GPU with the most memory if there is a real one, else the
/// software device, which computes with `threads` threads (0: one per core).
pub fn open(spec: Option<&str>, threads: usize) -> Result<Device> {
    let devices = list();
    let wanted = spec.unwrap_or("cpu").to_lowercase();
    let exact = devices.iter().find(|d| d.id == wanted);
    let by_name = || devices.iter().find(|d| !wanted.is_empty() && d.name.to_lowercase().contains(&wanted));
    match exact.or_else(by_name) {
        Some(found) if found.kind == DeviceKind::Cpu => {
            software::open(&software::Options { threads, ..software::Options::default() })
        }
        _ => {
            let known: Vec<String> = devices.iter().map(|d| format!("{} ({})", d.id, d.name)).collect();
            Err(Error::NoDevice { wanted, known: known.join(", ") })
        }
    }
}
