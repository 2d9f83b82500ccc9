//! Buffers: device memory with an owner, an address and a number.
//!
//! A buffer is released when its last handle, tensor, recording or piece of work in flight is gone; the engine holds a
//! share for as long as the device may touch it (contract E6). Private buffers have addresses that no host access
//! survives (M1): a host that wants the bytes goes through a transfer, on every device (M2).

use crate::device::Core;
use crate::device::driver::{Memory, Storage};
use crate::error::Result;
use crate::tensor::{DType, Desc, Tensor};
use std::sync::Arc;

/// A piece of device memory. Cheap to clone; all clones are the same memory.
#[derive(Clone)]
pub struct Buffer {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub id: u64,
    pub size: usize,
    pub storage: Storage,
    /// Dropped before the device handle below.
    pub memory: Option<Arc<dyn Memory>>,
    pub core: Arc<Core>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let memory = self.memory.take();
        let address = memory.as_ref().map_or(0, |m| m.address());
        self.core.forget_buffer(self.id, address, self.storage);
    }
}

impl Buffer {
    /// Its number, different for every buffer of the process.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.inner.size
    }

    /// Private, shared or mapped.
    pub fn storage(&self) -> Storage {
        self.inner.storage
    }

    /// First byte in the device's address space: non-zero, page-aligned, stable.
    pub fn address(&self) -> u64 {
        self.memory().address()
    }

    /// Whether work may write to it; mapped memory is read only.
    pub fn is_writable(&self) -> bool {
        self.inner.storage != Storage::Mapped
    }

    /// A tensor at a byte offset of this buffer.
    pub fn tensor(&self, offset: usize, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        Tensor::new(self, offset, Desc::new(dtype, dims)?)
    }

    pub(crate) fn memory(&self) -> &Arc<dyn Memory> {
        // Only `Drop` takes the memory, and then no handle is left to call this.
        self.inner.memory.as_ref().unwrap_or_else(|| unreachable!("a live buffer has memory"))
    }

    pub(crate) fn device_id(&self) -> u64 {
        self.inner.core.id
    }

    pub(crate) fn device_name(&self) -> &str {
        &self.inner.core.driver.info().name
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Buffer({}, {:?}, {} bytes at {:#x})",
            self.id(),
            self.storage(),
            self.size(),
            self.address()
        )
    }
}
