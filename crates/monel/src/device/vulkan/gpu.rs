//! The logical device: everything else in this folder holds it, so it goes last.

use super::instance::{Adapter, Instance};
use crate::device::driver::MemoryInfo;
use crate::error::{Error, Result};
use crate::gpu::{Limits, MAX_BINDINGS, MAX_IMMEDIATES};
use ash::vk;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A device with its queue and what never changes.
pub struct Gpu {
    pub adapter: Adapter,
    /// What `--device` takes.
    pub id: String,
    pub raw: ash::Device,
    pub queue: vk::Queue,
    /// Counts submissions: its value is the number of the last one that is finished.
    pub timeline: vk::Semaphore,
    /// Every kernel's bindings: storage buffers 0 to 7, of which it uses the first few.
    pub set_layout: vk::DescriptorSetLayout,
    /// Every kernel's layout: the set above and 128 bytes of immediates.
    pub layout: vk::PipelineLayout,
    /// Bytes of device memory that are allocated.
    pub allocated: AtomicU64,
    lost: AtomicBool,
    instance: Arc<Instance>,
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: all objects made from the device hold it and are gone; work that nobody waited for is waited for here.
        unsafe {
            let _ = self.raw.device_wait_idle();
            self.raw.destroy_pipeline_layout(self.layout, None);
            self.raw.destroy_descriptor_set_layout(self.set_layout, None);
            self.raw.destroy_semaphore(self.timeline, None);
            self.raw.destroy_device(None);
        }
    }
}

impl Gpu {
    /// Opens an adapter, or says what it lacks.
    pub fn new(instance: Arc<Instance>, adapter: Adapter) -> Result<Arc<Gpu>> {
        let what = format!("opening {}", adapter.name);
        if !adapter.lacks.is_empty() {
            let reason = format!("it has no support for {}", adapter.lacks.join(", "));
            return Err(Error::System { what, reason });
        }
        let failed = |e: vk::Result| Error::System { what: what.clone(), reason: e.to_string() };
        let priorities = [1.0];
        let queues = [vk::DeviceQueueCreateInfo::default()
            .queue_family_index(adapter.queue_family)
            .queue_priorities(&priorities)];
        let features = vk::PhysicalDeviceFeatures::default().shader_int16(true).shader_int64(adapter.int64);
        let mut f11 = vk::PhysicalDeviceVulkan11Features::default()
            .storage_buffer16_bit_access(true)
            // Declared by every kernel with 16-bit memory, whether it has uniform buffers or not.
            .uniform_and_storage_buffer16_bit_access(true);
        let mut f12 = vk::PhysicalDeviceVulkan12Features::default()
            .shader_int8(true)
            .timeline_semaphore(true)
            .vulkan_memory_model(true)
            .vulkan_memory_model_device_scope(true);
        let mut f13 = vk::PhysicalDeviceVulkan13Features::default().synchronization2(true);
        let mut extensions = Vec::new();
        if adapter.has_budget {
            extensions.push(ash::ext::memory_budget::NAME.as_ptr());
        }
        let info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_features(&features)
            .enabled_extension_names(&extensions)
            .push_next(&mut f11)
            .push_next(&mut f12)
            .push_next(&mut f13);
        // SAFETY: the adapter is of this instance and has these features; the structures live through the call.
        let raw = unsafe { instance.raw.create_device(adapter.raw, &info, None) }.map_err(failed)?;
        // SAFETY: the family and the only queue asked for above.
        let queue = unsafe { raw.get_device_queue(adapter.queue_family, 0) };
        let mut gpu = Gpu {
            id: format!("vulkan:{}", adapter.index),
            adapter,
            raw,
            queue,
            timeline: vk::Semaphore::null(),
            set_layout: vk::DescriptorSetLayout::null(),
            layout: vk::PipelineLayout::null(),
            allocated: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            instance,
        };
        // From here on a failure drops `gpu`, and destroying a null handle does nothing.
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let bindings: Vec<_> = (0..MAX_BINDINGS as u32)
            .map(|n| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(n)
                    .descriptor_count(1)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .collect();
        let constants = [vk::PushConstantRange::default()
            .stage_flags(vk::ShaderStageFlags::COMPUTE)
            .size(4 * MAX_IMMEDIATES as u32)];
        let set = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        // SAFETY: the structures live through the calls.
        unsafe {
            let semaphore = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
            gpu.timeline = gpu.raw.create_semaphore(&semaphore, None).map_err(failed)?;
            gpu.set_layout = gpu.raw.create_descriptor_set_layout(&set, None).map_err(failed)?;
            let sets = [gpu.set_layout];
            let layout =
                vk::PipelineLayoutCreateInfo::default().set_layouts(&sets).push_constant_ranges(&constants);
            gpu.layout = gpu.raw.create_pipeline_layout(&layout, None).map_err(failed)?;
        }
        Ok(Arc::new(gpu))
    }

    /// A driver's error as ours. Losing the device is remembered.
    pub fn error(&self, what: &str, result: vk::Result) -> Error {
        match result {
            vk::Result::ERROR_DEVICE_LOST => self.lose(what),
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_HOST_MEMORY => {
                self.out_of_memory(what, 0)
            }
            other => {
                Error::System { what: format!("{what} on {}", self.adapter.name), reason: other.to_string() }
            }
        }
    }

    /// The error for memory that could not be had.
    pub fn out_of_memory(&self, what: &str, wanted: u64) -> Error {
        let device = self.adapter.name.clone();
        Error::OutOfMemory { device, what: what.to_string(), wanted, free: self.memory().free }
    }

    /// The device is gone: everything from now on fails with this.
    pub fn lose(&self, what: &str) -> Error {
        self.lost.store(true, Ordering::Release);
        Error::DeviceLost {
            device: self.adapter.name.clone(),
            reason: format!("the driver reported it while {what}"),
        }
    }

    /// Whether the device is gone.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Device memory in all and what can still be had.
    pub fn memory(&self) -> MemoryInfo {
        let total = self.adapter.heap;
        let used = self.allocated.load(Ordering::Acquire);
        let mut free = total.saturating_sub(used);
        if self.adapter.has_budget {
            let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
            let mut properties = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
            // SAFETY: the extension is there, and the structures live through the call.
            unsafe {
                self.instance.raw.get_physical_device_memory_properties2(self.adapter.raw, &mut properties);
            }
            let heaps = &self.adapter.memory.memory_heaps[..self.adapter.memory.memory_heap_count as usize];
            let largest = heaps
                .iter()
                .position(|h| h.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL) && h.size == total);
            if let Some(heap) = largest {
                let left = budget.heap_budget[heap].saturating_sub(budget.heap_usage[heap]);
                free = free.min(left);
            }
        }
        MemoryInfo { total, free }
    }

    /// What kernels may count on.
    pub fn limits(&self) -> Limits {
        Limits {
            subgroup: self.adapter.subgroup.1,
            shared_memory: self.adapter.limits.max_compute_shared_memory_size,
            groups: self.adapter.limits.max_compute_work_group_count,
            int64: self.adapter.int64,
            f16: false,
            dot4: false,
            matrix: None,
            subgroup_fixed: None,
            software: self.adapter.kind == crate::device::DeviceKind::Software,
        }
    }

    /// Bytes of the largest buffer: what one binding reaches.
    pub fn max_buffer(&self) -> u64 {
        // Allocations end at multiples of 256 bytes, which have to fit as well.
        let range = u64::from(self.adapter.limits.max_storage_buffer_range) / 256 * 256;
        range.min(self.adapter.max_allocation)
    }
}
