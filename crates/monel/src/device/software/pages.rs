//! Pages straight from the system: zeroed when they are first touched, not before.
//!
//! An allocator's aligned zeroed memory is written at once, which for a KV cache costs time and resident memory for
//! positions that may never be used. Large buffers ask for large pages: streaming weights through small ones costs a
//! table walk every 4 KiB.

use crate::device::addresses::PAGE;
use std::ptr::NonNull;

/// Buffers from this size on are aligned to it, the size of a large page.
#[cfg(unix)]
const HUGE: usize = 2 << 20;

/// Zeroed pages, given back on drop.
pub struct Pages {
    /// The first byte; aligned to a page.
    pub start: NonNull<u8>,
    base: NonNull<u8>,
    bytes: usize,
}

#[cfg(unix)]
impl Pages {
    /// At least `bytes`, or `None` when the system has no more.
    pub fn new(bytes: usize) -> Option<Pages> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let huge = bytes >= HUGE;
        // What comes before and after the aligned part is never touched, so it costs addresses only.
        let slack = if huge { HUGE } else { 0 };
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE)?.checked_add(slack)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) }.ok()?;
        let base = NonNull::new(base.cast::<u8>())?;
        let offset = if huge { base.as_ptr().align_offset(HUGE) } else { 0 };
        // SAFETY: the offset is below the slack, so it stays inside the mapping.
        let start = unsafe { base.add(offset) };
        #[cfg(target_os = "linux")]
        if huge {
            use rustix::mm::{Advice, madvise};
            let len = (bytes - slack) / HUGE * HUGE;
            // SAFETY: the range lies inside the mapping; this advice changes no content, and may be refused.
            let _ = unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxHugepage) };
        }
        Some(Pages { start, base, bytes })
    }
}

#[cfg(unix)]
impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, and nobody has the memory any more. It cannot fail for a whole mapping.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(not(unix))]
impl Pages {
    /// At least `bytes`, or `None` when the system has no more.
    pub fn new(bytes: usize) -> Option<Pages> {
        let layout = std::alloc::Layout::from_size_align(bytes.max(1), PAGE).ok()?;
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(Pages { start: base, base, bytes: layout.size() })
    }
}

#[cfg(not(unix))]
impl Drop for Pages {
    fn drop(&mut self) {
        if let Ok(layout) = std::alloc::Layout::from_size_align(self.bytes, PAGE) {
            // SAFETY: allocated with this layout, and nobody has the memory any more.
            unsafe { std::alloc::dealloc(self.base.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_aligned_zeroed_and_writable_to_the_end() {
        for bytes in [1, 4096, 5000, (2 << 20) - 1, 2 << 20, (5 << 20) + 7] {
            let pages = Pages::new(bytes).unwrap();
            assert_eq!(pages.start.as_ptr().align_offset(PAGE), 0);
            // SAFETY: the memory is ours alone.
            let slice = unsafe { std::slice::from_raw_parts_mut(pages.start.as_ptr(), bytes) };
            assert!(slice.iter().all(|&b| b == 0));
            slice.fill(7);
        }
        assert!(Pages::new(usize::MAX - 5).is_none());
    }
}
