//! Host memory of others that the device reads where it lies, such as a mapped file (contract M4).
//!
//! Drivers that offer this for memory in general may still refuse the pages of files (NVIDIA's and AMD's do), so a
//! device that is opened tries one.

use super::gpu::Gpu;
use ash::vk;
use std::ptr::NonNull;

/// What imported memory is to Vulkan.
pub const HANDLE: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;

/// What is done with it: kernels and copies read it.
pub const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw() | vk::BufferUsageFlags::TRANSFER_SRC.as_raw(),
);

/// A buffer over host memory.
pub struct Imported {
    pub buffer: vk::Buffer,
    pub memory: vk::DeviceMemory,
}

impl Imported {
    /// The buffer over `bytes` from `start` on, both multiples of [`Gpu::import_alignment`].
    ///
    /// # Safety
    /// The bytes can be read until the buffer is destroyed.
    pub unsafe fn new(gpu: &Gpu, start: NonNull<u8>, bytes: u64) -> Result<Imported, vk::Result> {
        let Some(functions) = &gpu.host else { return Err(vk::Result::ERROR_EXTENSION_NOT_PRESENT) };
        let pointer = start.as_ptr().cast();
        let mut found = vk::MemoryHostPointerPropertiesEXT::default();
        let ask = functions.fp().get_memory_host_pointer_properties_ext;
        // SAFETY: the device has the extension; the pointer is aligned and its bytes are readable.
        unsafe { ask(gpu.raw.handle(), HANDLE, pointer, &mut found) }.result()?;
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(HANDLE);
        let info = vk::BufferCreateInfo::default().size(bytes).usage(USAGE).push_next(&mut external);
        // SAFETY: the structures live through the call.
        let buffer = unsafe { gpu.raw.create_buffer(&info, None) }?;
        let mut imported = Imported { buffer, memory: vk::DeviceMemory::null() };
        let bound = imported.bind(gpu, pointer, bytes, found.memory_type_bits);
        if bound.is_err() {
            // SAFETY: made above, and nobody else knows of it.
            unsafe { imported.destroy(gpu) };
        }
        bound.map(|()| imported)
    }

    fn bind(
        &mut self,
        gpu: &Gpu,
        pointer: *mut std::ffi::c_void,
        bytes: u64,
        kinds: u32,
    ) -> Result<(), vk::Result> {
        // SAFETY: a buffer of this device.
        let needs = unsafe { gpu.raw.get_buffer_memory_requirements(self.buffer) };
        let kinds = kinds & needs.memory_type_bits;
        if kinds == 0 || needs.size > bytes {
            return Err(vk::Result::ERROR_INVALID_EXTERNAL_HANDLE);
        }
        let mut host =
            vk::ImportMemoryHostPointerInfoEXT::default().handle_type(HANDLE).host_pointer(pointer);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(bytes)
            .memory_type_index(kinds.trailing_zeros())
            .push_next(&mut host);
        // SAFETY: the type is one of those the driver gave for these bytes, which the caller keeps; the buffer is as large
        // and is bound once.
        unsafe {
            self.memory = gpu.raw.allocate_memory(&info, None)?;
            gpu.raw.bind_buffer_memory(self.buffer, self.memory, 0)
        }
    }

    /// # Safety
    /// No work on the device uses it, nor does anything afterwards.
    unsafe fn destroy(&self, gpu: &Gpu) {
        // SAFETY: as the caller says; a null handle is nothing.
        unsafe {
            gpu.raw.destroy_buffer(self.buffer, None);
            gpu.raw.free_memory(self.memory, None);
        }
    }
}

/// Whether the driver takes a file's pages, by trying one of this program's own.
#[cfg(unix)]
pub fn takes_files(gpu: &Gpu) -> bool {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let bytes = gpu.import_alignment();
    // A file's last page is mapped whole, but not what a device that wants more than a page would ask for behind it.
    if bytes > rustix::param::page_size() {
        return false;
    }
    let opened = std::env::current_exe().and_then(std::fs::File::open);
    let Ok(file) = opened else { return false };
    let long_enough = file.metadata().is_ok_and(|m| m.len() >= bytes as u64);
    if !long_enough {
        return false;
    }
    // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
    let mapped = unsafe { mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, &file, 0) };
    let Ok(mapped) = mapped else { return false };
    let aligned = NonNull::new(mapped.cast::<u8>()).filter(|p| p.as_ptr().addr().is_multiple_of(bytes));
    let imported = aligned.map(|start| {
        // SAFETY: the mapping stays until after the buffer is destroyed.
        unsafe { Imported::new(gpu, start, bytes as u64) }
    });
    if let Some(Ok(imported)) = &imported {
        // SAFETY: nothing was done with it.
        unsafe { imported.destroy(gpu) };
    }
    // SAFETY: the mapping made above, which nobody uses any more.
    let _ = unsafe { munmap(mapped, bytes) };
    matches!(imported, Some(Ok(_)))
}

/// Whether the driver takes a file's pages: not tried here, so files are read.
#[cfg(not(unix))]
pub fn takes_files(_: &Gpu) -> bool {
    false
}
