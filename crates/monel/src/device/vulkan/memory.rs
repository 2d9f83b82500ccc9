//! Device memory: few large blocks, each one buffer that kernels bind whole, cut into pieces for the engine's buffers.
//!
//! Private memory hands out virtual addresses of the same range as every other device (contract M1); shared memory
//! hands out the address at which the host sees it.

use super::gpu::Gpu;
use super::import::Imported;
use super::record::Bound;
use crate::device::addresses::{self, PrivateAddress, PrivateAddresses};
use crate::device::driver::{DriverBytes, HostMapping, Memory, Storage};
use crate::device::ranges::Ranges;
use crate::error::{Error, Result};
use ash::vk;
use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// Size of a block that several buffers share.
const BLOCK: u64 = 256 << 20;
/// Where pieces begin: more than every device's alignment of storage buffers.
pub const ALIGN: u64 = 256;
/// Where buffers begin that the host sees, so that their addresses are page-aligned.
const PAGE: u64 = addresses::PAGE as u64;

/// What a block is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Fastest for kernels.
    Private,
    /// Seen by host and device.
    Shared,
    /// On the way to or from the host, cached for its reads where possible.
    Staging,
    /// Somebody else's host memory, only read.
    Imported,
}

/// A large allocation.
pub struct Block {
    gpu: Arc<Gpu>,
    pub buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    size: u64,
    /// The host's view, or null.
    mapped: *mut u8,
    used_for: Use,
    ranges: Mutex<Ranges>,
    /// Imported memory, and how much of it has to be there.
    mapping: Option<(Arc<dyn HostMapping>, usize)>,
}

// SAFETY: handles and an address that stay valid until drop; the free ranges are behind a lock, and the bytes belong to
// the pieces that were taken.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Drop for Block {
    fn drop(&mut self) {
        if self.gpu.still_works() {
            std::mem::forget(self.mapping.take());
            return;
        }
        // SAFETY: pieces hold the block and commands hold pieces, so no work on the device uses it, but for work that was given
        // up, and then this is not reached.
        unsafe {
            self.gpu.raw.destroy_buffer(self.buffer, None);
            self.gpu.raw.free_memory(self.memory, None);
        }
        if self.memory != vk::DeviceMemory::null() && self.used_for != Use::Imported {
            self.gpu.allocated.fetch_sub(self.size, Ordering::AcqRel);
        }
    }
}

impl Block {
    fn new(gpu: &Arc<Gpu>, used_for: Use, size: u64) -> Result<Block> {
        let info = vk::BufferCreateInfo::default().size(size).usage(
            vk::BufferUsageFlags::STORAGE_BUFFER
                | vk::BufferUsageFlags::TRANSFER_SRC
                | vk::BufferUsageFlags::TRANSFER_DST,
        );
        let failed = |e| match gpu.error("allocating memory", e) {
            Error::OutOfMemory { .. } => gpu.out_of_memory("a block of memory", size),
            other => other,
        };
        // SAFETY: the structure lives through the call.
        let buffer = unsafe { gpu.raw.create_buffer(&info, None) }.map_err(failed)?;
        let mut block = Block {
            gpu: gpu.clone(),
            buffer,
            memory: vk::DeviceMemory::null(),
            size,
            mapped: std::ptr::null_mut(),
            used_for,
            ranges: Mutex::new(Ranges::new(size)),
            mapping: None,
        };
        // SAFETY: a buffer of this device.
        let needs = unsafe { gpu.raw.get_buffer_memory_requirements(buffer) };
        let mut last = vk::Result::ERROR_OUT_OF_DEVICE_MEMORY;
        for kind in memory_types(gpu, used_for, needs.memory_type_bits) {
            let mut info =
                vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(kind);
            // What kernels read stays, staging may go first.
            let share = if used_for == Use::Staging { 0.2 } else { gpu.residency.priority() };
            let mut priority = vk::MemoryPriorityAllocateInfoEXT::default().priority(share);
            if gpu.used.priority {
                info = info.push_next(&mut priority);
            }
            // SAFETY: the structure lives through the call.
            match unsafe { gpu.raw.allocate_memory(&info, None) } {
                Ok(memory) => {
                    block.memory = memory;
                    gpu.allocated.fetch_add(size, Ordering::AcqRel);
                    break;
                }
                Err(e) => last = e,
            }
        }
        if block.memory == vk::DeviceMemory::null() {
            return Err(failed(last));
        }
        // SAFETY: memory of a type that the buffer accepts, at least as large, bound once; mapped once, if at all.
        unsafe {
            gpu.raw.bind_buffer_memory(buffer, block.memory, 0).map_err(failed)?;
            if used_for != Use::Private {
                let flags = vk::MemoryMapFlags::empty();
                let mapped = gpu.raw.map_memory(block.memory, 0, vk::WHOLE_SIZE, flags).map_err(failed)?;
                block.mapped = mapped.cast();
            }
        }
        Ok(block)
    }

    /// A range of somebody's mapping, rounded up to whole pages.
    fn import(gpu: &Arc<Gpu>, mapping: &Arc<dyn HostMapping>, range: Range<usize>) -> Result<Block> {
        let bytes = mapping.bytes();
        let wrong = |reason: String| Error::System {
            what: format!("using bytes {range:?} of {} in place on {}", mapping.name(), gpu.adapter.name),
            reason: format!("{reason}; with MONEL_VULKAN_WITHOUT=import it is read instead"),
        };
        let Some(part) = bytes.get(range.clone()) else {
            let (offset, wanted) = (range.start, range.end.wrapping_sub(range.start));
            return Err(Error::OutOfRange { what: mapping.name(), offset, bytes: wanted, size: bytes.len() });
        };
        // A file's last page is mapped whole.
        let (start, page) = (NonNull::from(part).cast::<u8>(), gpu.import_alignment());
        if !start.as_ptr().addr().is_multiple_of(page) {
            return Err(wrong(format!("it begins at {start:?}: expected a multiple of {page}")));
        }
        let size = part.len().next_multiple_of(page) as u64;
        // SAFETY: whole pages that the mapping's owner keeps, whom the block holds.
        let made = unsafe { Imported::new(gpu, start, size) };
        let Imported { buffer, memory } = made.map_err(|e| wrong(e.to_string()))?;
        Ok(Block {
            gpu: gpu.clone(),
            buffer,
            memory,
            size,
            mapped: std::ptr::null_mut(),
            used_for: Use::Imported,
            ranges: Mutex::new(Ranges::new(size)),
            mapping: Some((mapping.clone(), range.end)),
        })
    }

    /// All of it, as a binding; for blocks that a binding reaches.
    pub fn whole(&self) -> Bound {
        (self.buffer, 0, vk::WHOLE_SIZE)
    }

    /// A binding in which the byte `at` is seen, and where in it. All of the block, unless that is more than a binding
    /// reaches: then from `at` on, down to a multiple of what every device's offsets are.
    pub fn window(&self, at: u64) -> (Bound, u64) {
        let range = self.gpu.max_range();
        if self.size <= range {
            return (self.whole(), at);
        }
        let start = at / ALIGN * ALIGN;
        ((self.buffer, start, range.min(self.size - start)), at - start)
    }

    fn take(&self, size: u64, align: u64) -> Option<u64> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner).take(size, align)
    }

    fn is_empty(&self) -> bool {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

/// Types of memory for a use, the best first.
fn memory_types(gpu: &Gpu, used_for: Use, allowed: u32) -> Vec<u32> {
    use vk::MemoryPropertyFlags as F;
    let visible = F::HOST_VISIBLE | F::HOST_COHERENT;
    let wishes = match used_for {
        Use::Private => [F::DEVICE_LOCAL, F::empty()],
        Use::Shared => [visible | F::DEVICE_LOCAL, visible],
        Use::Staging => [visible | F::HOST_CACHED, visible],
        // The driver says which types such memory has.
        Use::Imported => [F::empty(), F::empty()],
    };
    let types = &gpu.adapter.memory.memory_types[..gpu.adapter.memory.memory_type_count as usize];
    let mut list = Vec::new();
    for wish in wishes {
        for (i, t) in types.iter().enumerate() {
            let fits = t.property_flags.contains(wish) && allowed & (1 << i) != 0;
            // Memory that is only for other purposes (lazily allocated, protected) is left out.
            let odd = t.property_flags.intersects(F::LAZILY_ALLOCATED | F::PROTECTED);
            if fits && !odd && !list.contains(&(i as u32)) {
                list.push(i as u32);
            }
        }
    }
    list
}

/// Allocates pieces of blocks.
pub struct Allocator {
    gpu: Arc<Gpu>,
    blocks: Mutex<Vec<Arc<Block>>>,
    addresses: Arc<PrivateAddresses>,
}

impl Allocator {
    pub fn new(gpu: Arc<Gpu>) -> Arc<Allocator> {
        Arc::new(Allocator { gpu, blocks: Mutex::default(), addresses: PrivateAddresses::new() })
    }

    /// A piece of `bytes` (at least 1) with arbitrary content.
    pub fn piece(self: &Arc<Self>, used_for: Use, what: &str, bytes: usize) -> Result<GpuMemory> {
        let align = if used_for == Use::Shared { PAGE } else { ALIGN };
        let size = (bytes.max(1) as u64).next_multiple_of(ALIGN);
        let refuse = || self.gpu.out_of_memory(what, bytes as u64);
        if size > self.gpu.max_buffer() {
            return Err(refuse());
        }
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let found = blocks
            .iter()
            .filter(|b| b.used_for == used_for)
            .find_map(|b| b.take(size, align).map(|offset| (b.clone(), offset)));
        let (block, offset) = match found {
            Some(found) => found,
            None => {
                // Staging comes and goes with transfers: smaller blocks do. A small heap is not taken by one block.
                let usual = if used_for == Use::Staging { BLOCK / 16 } else { BLOCK };
                let usual = usual.min(self.gpu.max_range()).min(self.gpu.adapter.heap / 16 / ALIGN * ALIGN);
                let block = Block::new(&self.gpu, used_for, size.max(usual)).or_else(|e| {
                    // Perhaps a smaller one still fits.
                    if size < usual { Block::new(&self.gpu, used_for, size) } else { Err(e) }
                });
                let block = Arc::new(block.map_err(|e| match e {
                    Error::OutOfMemory { .. } => refuse(),
                    other => other,
                })?);
                let offset = block.take(size, align).ok_or_else(refuse)?;
                blocks.push(block.clone());
                (block, offset)
            }
        };
        // A piece that is dropped takes the lock.
        drop(blocks);
        let mut memory = GpuMemory {
            host: block.mapped as u64 + offset,
            private: None,
            block,
            offset,
            bytes,
            size,
            allocator: self.clone(),
        };
        if used_for == Use::Private {
            memory.private = Some(self.addresses.take(bytes).ok_or_else(refuse)?);
        }
        Ok(memory)
    }

    /// A range of a mapping, which begins at a page, read where it lies.
    pub fn import(
        self: &Arc<Self>,
        mapping: &Arc<dyn HostMapping>,
        range: Range<usize>,
    ) -> Result<GpuMemory> {
        let bytes = range.len();
        let address = mapping.bytes().as_ptr().addr() + range.start;
        let block = Arc::new(Block::import(&self.gpu, mapping, range)?);
        let size = block.size;
        let offset = block.take(size, ALIGN).unwrap_or(0);
        let (host, allocator) = (address as u64, self.clone());
        Ok(GpuMemory { block, offset, bytes, size, host, private: None, allocator })
    }

    /// Drops a block that has become empty, except for one of each use that is kept for the next time, and as much
    /// staging as a stream of uploads has on the way.
    fn tidy(&self, block: &Arc<Block>) {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        if !block.is_empty() {
            return;
        }
        let spare = |b: &Arc<Block>| b.used_for == block.used_for && b.is_empty() && b.size <= BLOCK;
        let kept = if block.used_for == Use::Staging { 6 } else { 1 };
        if block.size > BLOCK || blocks.iter().filter(|b| spare(b)).count() > kept {
            blocks.retain(|b| !Arc::ptr_eq(b, block));
        }
    }
}

/// A piece of a block.
pub struct GpuMemory {
    pub block: Arc<Block>,
    /// Bytes from the block's beginning.
    pub offset: u64,
    /// Bytes asked for.
    pub bytes: usize,
    size: u64,
    /// Where the host sees it, if it does.
    host: u64,
    /// Of private memory: the address until it goes.
    private: Option<PrivateAddress>,
    allocator: Arc<Allocator>,
}

impl Drop for GpuMemory {
    fn drop(&mut self) {
        self.block.ranges.lock().unwrap_or_else(PoisonError::into_inner).give(self.offset, self.size);
        self.allocator.tidy(&self.block);
    }
}

impl GpuMemory {
    /// The memory behind a buffer of a Vulkan device.
    pub fn of<'a>(memory: &'a Arc<dyn Memory>, gpu: &Gpu) -> Result<&'a GpuMemory> {
        let any: &dyn Any = memory.as_ref();
        match any.downcast_ref::<GpuMemory>() {
            Some(memory) if memory.is_of(gpu) => Ok(memory),
            _ => Err(Error::Foreign {
                what: "a buffer".into(),
                expected: gpu.adapter.name.clone(),
                found: "another device".into(),
            }),
        }
    }

    /// For memory of somebody else's: whose, and how many bytes of it have to be there.
    pub fn mapping(&self) -> Option<&(Arc<dyn HostMapping>, usize)> {
        self.block.mapping.as_ref()
    }

    /// Whether it is memory of this device.
    pub fn is_of(&self, gpu: &Gpu) -> bool {
        std::ptr::eq(self.block.gpu.as_ref(), gpu)
    }

    /// The offset in the block of a range of this piece, which has to lie inside.
    pub fn at(&self, range: Range<usize>) -> Result<u64> {
        if range.start > range.end || range.end > self.bytes {
            let (offset, bytes) = (range.start, range.end.wrapping_sub(range.start));
            return Err(Error::OutOfRange { what: "memory".into(), offset, bytes, size: self.bytes });
        }
        Ok(self.offset + range.start as u64)
    }

    /// Bytes that may be written: whole words, and nobody else's.
    pub fn padded(&self) -> u64 {
        self.size
    }

    /// The host's view. `None` for private memory.
    pub fn view(&self) -> Option<*mut u8> {
        if self.block.mapped.is_null() {
            return None;
        }
        // SAFETY: inside the mapping of the block.
        Some(unsafe { self.block.mapped.add(self.offset as usize) })
    }

    /// Copies host bytes in.
    pub fn put(&self, offset: usize, bytes: &[u8]) -> Option<()> {
        let end = offset.checked_add(bytes.len()).filter(|&end| end <= self.bytes)?;
        debug_assert!(end <= self.bytes);
        let to = self.view()?;
        // SAFETY: the range lies inside the piece, whose turn this is: it is new, or the queue said so.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.add(offset), bytes.len()) };
        Some(())
    }

    /// Copies bytes out to the host.
    pub fn get(&self, out: &mut [u8]) -> Option<()> {
        let from = self.view().filter(|_| out.len() <= self.bytes)?;
        // SAFETY: as above; the device's writes are finished and were made visible to the host.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        Some(())
    }
}

impl Memory for GpuMemory {
    fn address(&self) -> u64 {
        self.private.as_ref().map_or(self.host, PrivateAddress::first)
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Option<()> {
        if self.block.used_for == Use::Shared { self.put(offset, bytes) } else { None }
    }

    fn host(&self, range: Range<usize>) -> Option<NonNull<u8>> {
        let inside = range.start <= range.end && range.end <= self.bytes;
        let start = self.view().filter(|_| inside && self.block.used_for == Use::Shared)?;
        NonNull::new(start.wrapping_add(range.start))
    }
}

/// Staging memory, which one upload has to itself until the device has passed it.
impl DriverBytes for GpuMemory {
    fn bytes(&self) -> &[u8] {
        match self.view() {
            // SAFETY: the piece has as many bytes, mapped for as long as the block lives, which the piece holds; they
            // are written through the one owner of the piece, or by the device once the owner has handed it over.
            Some(start) => unsafe { std::slice::from_raw_parts(start, self.bytes) },
            None => &[],
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self.view() {
            // SAFETY: as above, and this is the owner.
            Some(start) => unsafe { std::slice::from_raw_parts_mut(start, self.bytes) },
            None => &mut [],
        }
    }
}

/// The use that serves a kind of storage.
pub fn used_for(storage: Storage) -> Use {
    match storage {
        Storage::Private => Use::Private,
        Storage::Shared | Storage::Mapped => Use::Shared,
    }
}
