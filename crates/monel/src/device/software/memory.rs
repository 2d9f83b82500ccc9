//! Memory of the software device: shared, private, mapped.
//!
//! Shared memory is plain memory. Private memory lies in plain memory too, but its address is one that no process can
//! touch (`device/addresses.rs`, contract M1). Mapped memory is somebody else's bytes, rounded out to pages, read only
//! (M4).

use super::pages::Pages;
use crate::device::addresses::{PrivateAddress, PrivateAddresses};
use crate::device::driver::{HostMapping, Memory, MemoryInfo, Storage};
use crate::error::{Error, Result};
use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Allocations from this size on ask the system what it has left; asking costs more than a small one.
const ASK_SYSTEM: usize = 1 << 20;

/// Allocates and counts.
pub struct Allocator {
    name: String,
    limit: Option<u64>,
    used: AtomicU64,
    addresses: Arc<PrivateAddresses>,
}

impl Allocator {
    /// An allocator for a device of this name.
    pub fn new(name: String, limit: Option<u64>) -> Allocator {
        Allocator { name, limit, used: AtomicU64::new(0), addresses: PrivateAddresses::new() }
    }

    /// Memory in all, and what can still be had.
    pub fn info(&self) -> MemoryInfo {
        let system = system_memory();
        match self.limit {
            None => system,
            Some(limit) => {
                let total = limit.min(system.total);
                MemoryInfo {
                    total,
                    free: total.saturating_sub(self.used.load(Ordering::Acquire)).min(system.free),
                }
            }
        }
    }

    /// Zeroed memory, page-aligned.
    pub fn allocate(self: &Arc<Self>, storage: Storage, bytes: usize) -> Result<Arc<dyn Memory>> {
        let refuse = || Error::OutOfMemory {
            device: self.name.clone(),
            what: format!("a {} buffer", if storage == Storage::Private { "private" } else { "shared" }),
            wanted: bytes as u64,
            free: self.info().free,
        };
        if bytes >= ASK_SYSTEM && self.info().free < bytes as u64 {
            return Err(refuse());
        }
        let before = self.used.fetch_add(bytes as u64, Ordering::AcqRel);
        let over = self.limit.is_some_and(|limit| before + bytes as u64 > limit);
        let pages = if over { None } else { Pages::new(bytes) };
        let Some(pages) = pages else {
            self.used.fetch_sub(bytes as u64, Ordering::AcqRel);
            return Err(refuse());
        };
        let ptr = pages.start;
        let mut memory = HostMemory {
            ptr,
            len: bytes,
            storage,
            private: None,
            owner: Owner::Allocated { _pages: pages, allocator: self.clone() },
        };
        if storage == Storage::Private {
            memory.private = Some(self.addresses.take(bytes).ok_or_else(refuse)?);
        }
        Ok(Arc::new(memory))
    }
}

enum Owner {
    Allocated { _pages: Pages, allocator: Arc<Allocator> },
    Mapped(Arc<dyn HostMapping>, usize),
}

/// Bytes that the device's kernels reach.
pub struct HostMemory {
    ptr: NonNull<u8>,
    len: usize,
    /// Of private memory: the address until it goes.
    private: Option<PrivateAddress>,
    storage: Storage,
    owner: Owner,
}

// SAFETY: an address and a length; the queue orders all accesses through it.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if let Owner::Allocated { allocator, .. } = &self.owner {
            allocator.used.fetch_sub(self.len as u64, Ordering::AcqRel);
        }
    }
}

impl HostMemory {
    /// The memory behind a buffer of this device.
    pub fn of(memory: &Arc<dyn Memory>) -> Result<&HostMemory> {
        let any: &dyn Any = memory.as_ref();
        any.downcast_ref::<HostMemory>().ok_or_else(|| Error::Foreign {
            what: "a buffer".into(),
            expected: "the software device".into(),
            found: "another device".into(),
        })
    }

    /// A pointer to `range`, which has been checked to lie inside.
    pub fn at(&self, range: Range<usize>) -> Result<*mut u8> {
        if range.start > range.end || range.end > self.len {
            let (offset, bytes) = (range.start, range.end.wrapping_sub(range.start));
            return Err(Error::OutOfRange { what: "memory".into(), offset, bytes, size: self.len });
        }
        // SAFETY: inside the allocation.
        Ok(unsafe { self.ptr.as_ptr().add(range.start) })
    }

    /// For mapped memory: the mapping, and how many of its bytes have to be there.
    pub fn mapping(&self) -> Option<(&Arc<dyn HostMapping>, usize)> {
        match &self.owner {
            Owner::Mapped(mapping, end) => Some((mapping, *end)),
            Owner::Allocated { .. } => None,
        }
    }
}

impl Memory for HostMemory {
    fn address(&self) -> u64 {
        self.private.as_ref().map_or(self.ptr.as_ptr() as u64, PrivateAddress::first)
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Option<()> {
        if self.storage != Storage::Shared {
            return None;
        }
        let to = self.at(offset..offset.checked_add(bytes.len())?).ok()?;
        // SAFETY: the range lies inside, and the queue gave this thread its turn on it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Some(())
    }
}

/// A range of a mapping, used in place.
pub fn import(mapping: &Arc<dyn HostMapping>, range: Range<usize>) -> Result<Arc<dyn Memory>> {
    let bytes = mapping.bytes();
    if range.start > range.end || range.end > bytes.len() {
        let (offset, wanted) = (range.start, range.end.wrapping_sub(range.start));
        return Err(Error::OutOfRange { what: mapping.name(), offset, bytes: wanted, size: bytes.len() });
    }
    // Read only: `Buffer::is_writable` is false for mapped memory, so the pointer is never written through.
    let ptr = NonNull::from(&bytes[range.clone()]).cast::<u8>();
    let (len, end) = (range.len(), range.end);
    let owner = Owner::Mapped(mapping.clone(), end);
    Ok(Arc::new(HostMemory { ptr, len, private: None, storage: Storage::Mapped, owner }))
}

/// Memory of the machine: what the system says is available, or the control group allows.
pub fn system_memory() -> MemoryInfo {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let field = |text: &str, key: &str| {
        let line = text.lines().find(|l| l.starts_with(key))?;
        line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
    };
    let meminfo = read("/proc/meminfo").unwrap_or_default();
    let Some(mut total) = field(&meminfo, "MemTotal:") else {
        // Systems without /proc: the system refuses by itself what it cannot give.
        return MemoryInfo { total: 1 << 46, free: 1 << 46 };
    };
    let mut free = field(&meminfo, "MemAvailable:").unwrap_or(total);
    let number = |path: &str| read(path)?.trim().parse::<u64>().ok();
    if let Some(limit) = number("/sys/fs/cgroup/memory.max") {
        let used = number("/sys/fs/cgroup/memory.current").unwrap_or(0);
        (total, free) = (total.min(limit), free.min(limit.saturating_sub(used)));
    }
    MemoryInfo { total, free }
}

/// The processor's name for people.
pub fn processor_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|l| l.strip_prefix("model name")?.split_once(':').map(|(_, n)| n.trim().to_string()));
    name.filter(|n| !n.is_empty()).unwrap_or_else(|| format!("CPU ({})", std::env::consts::ARCH))
}
