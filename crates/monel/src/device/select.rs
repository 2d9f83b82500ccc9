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
    /// Bytes of its memory.
    pub memory: u64,
}

/// Every device of the machine, the software device last.
pub fn list() -> Vec<Listing> {
    #[cfg(feature = "vulkan")]
    let mut devices = super::vulkan::list();
    #[cfg(not(feature = "vulkan"))]
    let mut devices = Vec::new();
    let name = software::memory::processor_name();
    let memory = software::memory::system_memory().total;
    devices.push(Listing { id: "cpu".into(), name, kind: DeviceKind::Cpu, memory });
    devices
}

/// Why GPUs of this machine may be missing from [`list`]: a loader or driver that is not there or fails, features that a
/// device lacks.
pub fn problems() -> Vec<String> {
    #[cfg(feature = "vulkan")]
    return super::vulkan::problems();
    #[cfg(not(feature = "vulkan"))]
    vec!["this build has no Vulkan (feature `vulkan` of the crate `monel`)".into()]
}

/// Checks the environment variables that change how GPUs are opened; [`open`] does so before it looks for one.
///
/// # Errors
/// [`Error::Environment`] for the first that has a value it cannot have.
pub fn environment() -> Result<()> {
    #[cfg(feature = "vulkan")]
    super::vulkan::environment()?;
    Ok(())
}

/// Opens the device that `spec` names, or the best one: the GPU with the most memory if there is a real one, else the
/// software device, which computes with `threads` threads (0: one per core).
pub fn open(spec: Option<&str>, threads: usize) -> Result<Device> {
    let cpu = || software::open(&software::Options { threads, ..software::Options::default() });
    // Who asks for the CPU should not wait for the drivers of GPUs.
    if spec.is_some_and(|s| s.eq_ignore_ascii_case("cpu")) {
        return cpu();
    }
    environment()?;
    let devices = list();
    let found = match spec {
        Some(spec) => named(&devices, &spec.to_lowercase()),
        None => best(&devices),
    };
    match found {
        Some(found) if found.kind == DeviceKind::Cpu => cpu(),
        #[cfg(feature = "vulkan")]
        Some(found) => {
            let index = found.id.rsplit(':').next().and_then(|n| n.parse().ok()).unwrap_or(0);
            super::vulkan::open(&super::vulkan::Options { index, ..Default::default() })
        }
        _ => {
            let known: Vec<String> = devices.iter().map(|d| format!("{} ({})", d.id, d.name)).collect();
            let (wanted, problems) = (spec.unwrap_or_default().to_lowercase(), problems());
            Err(Error::NoDevice { wanted, known: known.join(", "), problems })
        }
    }
}

/// The device of that id, or the first of that kind (`vulkan`), or the first whose name contains the words.
fn named<'a>(devices: &'a [Listing], wanted: &str) -> Option<&'a Listing> {
    let first = |f: &dyn Fn(&Listing) -> bool| devices.iter().find(|d| f(d));
    first(&|d| d.id == wanted)
        .or_else(|| first(&|d| d.id.split(':').next() == Some(wanted)))
        .or_else(|| first(&|d| !wanted.is_empty() && d.name.to_lowercase().contains(wanted)))
}

/// A real GPU, discrete before integrated, the one with the most memory; else the CPU. Never a GPU interface that the
/// CPU computes: the software device is faster.
fn best(devices: &[Listing]) -> Option<&Listing> {
    let rank = |d: &Listing| match d.kind {
        DeviceKind::Discrete => 3,
        DeviceKind::Integrated => 2,
        DeviceKind::Cpu => 1,
        DeviceKind::Software => 0,
    };
    // The first of equals, so that the driver's order decides.
    devices.iter().rev().max_by_key(|d| (rank(d), d.memory))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(id: &str, name: &str, kind: DeviceKind, memory: u64) -> Listing {
        Listing { id: id.into(), name: name.into(), kind, memory }
    }

    #[test]
    fn the_best_is_a_real_gpu_and_never_a_pretended_one() {
        let cpu = listing("cpu", "A processor", DeviceKind::Cpu, 64);
        let soft = listing("vulkan:0", "llvmpipe", DeviceKind::Software, 64);
        let small = listing("vulkan:1", "Integrated", DeviceKind::Integrated, 64);
        let big = listing("vulkan:2", "Discrete", DeviceKind::Discrete, 16);
        let bigger = listing("vulkan:3", "Discrete too", DeviceKind::Discrete, 24);
        let id = |devices: &[&Listing]| {
            let devices: Vec<Listing> = devices.iter().map(|&d| d.clone()).collect();
            best(&devices).map(|d| d.id.clone())
        };
        assert_eq!(id(&[&soft, &cpu]).as_deref(), Some("cpu"));
        assert_eq!(id(&[&soft, &small, &cpu]).as_deref(), Some("vulkan:1"));
        assert_eq!(id(&[&small, &big, &bigger, &cpu]).as_deref(), Some("vulkan:3"));
        assert_eq!(
            id(&[&big, &listing("vulkan:9", "same", DeviceKind::Discrete, 16), &cpu]).as_deref(),
            Some("vulkan:2")
        );
    }

    #[test]
    fn names_are_ids_kinds_or_words() {
        let devices = [
            listing("vulkan:0", "NVIDIA H200", DeviceKind::Discrete, 140),
            listing("vulkan:1", "llvmpipe", DeviceKind::Software, 8),
            listing("cpu", "AMD EPYC", DeviceKind::Cpu, 64),
        ];
        let id = |wanted| named(&devices, wanted).map(|d| d.id.as_str());
        assert_eq!(id("vulkan:1"), Some("vulkan:1"));
        assert_eq!(id("vulkan"), Some("vulkan:0"));
        assert_eq!(id("llvm"), Some("vulkan:1"));
        assert_eq!(id("cpu"), Some("cpu"));
        assert_eq!(id(""), None);
        assert_eq!(id("metal"), None);
    }
}
