//! The logical device: everything else in this folder holds it, so it goes last.

use super::adapter::{Adapter, text};
use super::features::Used;
use super::import;
use super::instance::Instance;
use crate::device::driver::MemoryInfo;
use crate::error::{Error, Result};
use crate::gpu::{Limits, MAX_BINDINGS, MAX_IMMEDIATES};
use ash::vk;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// What the driver should do with memory when it runs out (contract M6), where it can evict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residency {
    /// Weights and caches stay, whoever else wants memory: the next token comes without delay.
    #[default]
    Latency,
    /// Nothing is held more firmly than other programs' memory.
    Battery,
}

impl Residency {
    /// The priority of allocations: 0.5 is what drivers assume.
    pub fn priority(self) -> f32 {
        match self {
            Residency::Latency => 1.0,
            Residency::Battery => 0.5,
        }
    }
}

/// Reads the device's clock and the host's together.
enum Clock {
    Khr(ash::khr::calibrated_timestamps::Device),
    Ext(ash::ext::calibrated_timestamps::Device),
}

/// A device with its queue and what never changes.
pub struct Gpu {
    pub adapter: Adapter,
    /// What `--device` takes.
    pub id: String,
    pub raw: ash::Device,
    pub queue: vk::Queue,
    /// Counts submissions: its value is the number of the last one that is finished.
    pub timeline: vk::Semaphore,
    /// Every kernel's bindings: storage buffers, of which it uses the first few.
    pub set_layout: vk::DescriptorSetLayout,
    /// Every kernel's layout: the set above and 128 bytes of immediates.
    pub layout: vk::PipelineLayout,
    /// How hard memory clings to the device.
    pub residency: Residency,
    /// What is used of the device beyond the floor.
    pub used: Used,
    /// Bytes of device memory that are allocated.
    pub allocated: AtomicU64,
    /// Query pools that nobody uses, with their sizes. They are kept until the device goes: Mesa's software driver
    /// may hang when one is destroyed while its queue works.
    pub queries: Mutex<Vec<(vk::QueryPool, u32)>>,
    clock: Option<Clock>,
    fault: Option<ash::ext::device_fault::Device>,
    /// Imports host memory, where the driver takes files.
    pub host: Option<ash::ext::external_memory_host::Device>,
    /// Why the device is gone, once it is.
    lost: OnceLock<String>,
    /// The timeline's value behind all work that was submitted.
    pub submitted: AtomicU64,
    /// Whether the queue gave up waiting for some of it.
    given_up: AtomicBool,
    /// Whether something that such work uses was left to the process.
    left: AtomicBool,
    instance: Arc<Instance>,
}

/// How long a device that is closed may take to end work that was given up.
const GRACE: Duration = Duration::from_secs(1);

/// Whether the driver had no memory, which may pass.
pub fn is_short_of_memory(result: vk::Result) -> bool {
    matches!(result, vk::Result::ERROR_OUT_OF_HOST_MEMORY | vk::Result::ERROR_OUT_OF_DEVICE_MEMORY)
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let patience = Instant::now() + GRACE;
        while self.is_working() && Instant::now() < patience {
            std::thread::sleep(GRACE / 100);
        }
        if self.left.load(Ordering::Acquire) || self.is_working() {
            // With what is left of it the device stays too, and so does the instance.
            std::mem::forget(self.instance.clone());
            return;
        }
        // SAFETY: all objects made from the device hold it and are gone; work that nobody waited for is waited for here.
        unsafe {
            let _ = self.raw.device_wait_idle();
            for (pool, _) in self.queries.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
                self.raw.destroy_query_pool(pool, None);
            }
            self.raw.destroy_pipeline_layout(self.layout, None);
            self.raw.destroy_descriptor_set_layout(self.set_layout, None);
            self.raw.destroy_semaphore(self.timeline, None);
            self.raw.destroy_device(None);
        }
    }
}

/// Storage buffers of a kernel.
fn bindings(adapter: &Adapter) -> u32 {
    adapter.limits.max_per_stage_descriptor_storage_buffers.min(MAX_BINDINGS as u32)
}

impl Gpu {
    /// Opens an adapter, or says what it lacks.
    pub fn new(instance: Arc<Instance>, adapter: Adapter, residency: Residency) -> Result<Arc<Gpu>> {
        let what = format!("opening {}", adapter.name);
        let used = match &adapter.used {
            Ok(used) => used.clone(),
            Err(_) => {
                let reason = format!("it has no support for {}", adapter.lacks());
                return Err(Error::System { what, reason });
            }
        };
        let failed = |e: vk::Result| {
            let reason = format!("{e}; without it there is the software device, `--device cpu`");
            Error::System { what: what.clone(), reason }
        };
        let priorities = [1.0];
        let queues = [vk::DeviceQueueCreateInfo::default()
            .queue_family_index(adapter.queue_family)
            .queue_priorities(&priorities)];
        let features = vk::PhysicalDeviceFeatures::default().shader_int16(true).shader_int64(used.int64);
        let mut f11 = vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(true);
        let matrix = used.matrix.is_some();
        let mut f12 = vk::PhysicalDeviceVulkan12Features::default()
            .shader_int8(used.int8)
            .shader_float16(used.f16)
            .timeline_semaphore(true)
            .vulkan_memory_model(matrix)
            .vulkan_memory_model_device_scope(matrix);
        let mut sizes = vk::PhysicalDeviceSubgroupSizeControlFeatures::default()
            .subgroup_size_control(true)
            .compute_full_subgroups(true);
        let mut dot =
            vk::PhysicalDeviceShaderIntegerDotProductFeatures::default().shader_integer_dot_product(true);
        let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
        let mut priority = vk::PhysicalDeviceMemoryPriorityFeaturesEXT::default().memory_priority(true);
        let mut fault = vk::PhysicalDeviceFaultFeaturesEXT::default().device_fault(true);
        let mut info =
            vk::DeviceCreateInfo::default().queue_create_infos(&queues).enabled_features(&features);
        let modern = adapter.api >= vk::API_VERSION_1_3;
        let mut extensions = Vec::new();
        let mut ask = |wanted: bool, name: &CStr| {
            if wanted {
                extensions.push(name.as_ptr());
            }
            wanted
        };
        info = info.push_next(&mut f11).push_next(&mut f12);
        ask(used.subgroup_fixed.is_some() && !modern, ash::ext::subgroup_size_control::NAME);
        if used.subgroup_fixed.is_some() {
            info = info.push_next(&mut sizes);
        }
        ask(used.dot && !modern, ash::khr::shader_integer_dot_product::NAME);
        if used.dot {
            info = info.push_next(&mut dot);
        }
        if ask(matrix, ash::khr::cooperative_matrix::NAME) {
            info = info.push_next(&mut matrices);
        }
        if ask(used.priority, ash::ext::memory_priority::NAME) {
            info = info.push_next(&mut priority);
        }
        if ask(used.fault, ash::ext::device_fault::NAME) {
            info = info.push_next(&mut fault);
        }
        ask(used.import, ash::ext::external_memory_host::NAME);
        ask(used.budget, ash::ext::memory_budget::NAME);
        ask(used.calibrated && adapter.calibrated_ext, ash::ext::calibrated_timestamps::NAME);
        ask(used.calibrated && !adapter.calibrated_ext, ash::khr::calibrated_timestamps::NAME);
        let info = info.enabled_extension_names(&extensions);
        // SAFETY: the adapter is of this instance and has these features; the structures live through the call.
        let raw = unsafe { instance.raw.create_device(adapter.raw, &info, None) }.map_err(failed)?;
        // SAFETY: the family and the only queue asked for above.
        let queue = unsafe { raw.get_device_queue(adapter.queue_family, 0) };
        let of = (&instance.raw, &raw);
        let clock = match (used.calibrated, adapter.calibrated_ext) {
            (false, _) => None,
            (_, true) => Some(Clock::Ext(ash::ext::calibrated_timestamps::Device::new(of.0, of.1))),
            _ => Some(Clock::Khr(ash::khr::calibrated_timestamps::Device::new(of.0, of.1))),
        };
        let mut gpu = Gpu {
            queries: Mutex::default(),
            residency,
            clock,
            host: used.import.then(|| ash::ext::external_memory_host::Device::new(of.0, of.1)),
            fault: used.fault.then(|| ash::ext::device_fault::Device::new(of.0, of.1)),
            used,
            id: format!("vulkan:{}", adapter.index),
            adapter,
            raw,
            queue,
            timeline: vk::Semaphore::null(),
            set_layout: vk::DescriptorSetLayout::null(),
            layout: vk::PipelineLayout::null(),
            allocated: AtomicU64::new(0),
            lost: OnceLock::new(),
            submitted: AtomicU64::new(0),
            given_up: AtomicBool::new(false),
            left: AtomicBool::new(false),
            instance,
        };
        // From here on a failure drops `gpu`, and destroying a null handle does nothing.
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let bindings: Vec<_> = (0..bindings(&gpu.adapter))
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
        if gpu.host.is_some() && !import::takes_files(&gpu) {
            gpu.host = None;
            gpu.used.import = false;
        }
        Ok(Arc::new(gpu))
    }

    /// A driver's error as ours. Losing the device is remembered.
    pub fn error(&self, what: &str, result: vk::Result) -> Error {
        match result {
            vk::Result::ERROR_DEVICE_LOST => self.lose(what, &self.fault_report()),
            short if is_short_of_memory(short) => self.out_of_memory(what, 0),
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

    /// The device is gone: everything from now on fails with this, and with the first cause. `report` is what is known of it.
    fn lose(&self, what: &str, report: &str) -> Error {
        let colon = if report.is_empty() { "" } else { ": " };
        self.gone(format!("the driver reported it while {what}{colon}{report}"))
    }

    /// The error of a device that was lost before, or is lost for this reason.
    pub fn gone(&self, reason: String) -> Error {
        let reason = self.lost.get_or_init(|| reason).clone();
        Error::DeviceLost { device: self.adapter.name.clone(), reason }
    }

    /// The queue does not wait any longer for what it submitted.
    pub fn give_up(&self, limit: Duration) {
        let _ = self.abandon(format!("work did not end within {} ms", limit.as_millis()));
    }

    fn abandon(&self, reason: String) -> Error {
        self.given_up.store(true, Ordering::Release);
        self.gone(reason)
    }

    /// The driver does not say any more how far the device is: work is given up, as with [`Gpu::give_up`]. A device that the
    /// driver calls lost runs nothing.
    pub fn unheard(&self, result: vk::Result) -> Error {
        const WHAT: &str = "waiting for work";
        if result == vk::Result::ERROR_DEVICE_LOST {
            return self.error(WHAT, result);
        }
        self.abandon(format!("{WHAT}: {result}"))
    }

    /// Whether the device may still run work that the queue gave up. What such work uses must not go, so whoever asks leaves it
    /// to the process: a leak in place of a crash.
    pub fn still_works(&self) -> bool {
        let works = self.is_working();
        if works {
            self.left.store(true, Ordering::Release);
        }
        works
    }

    fn is_working(&self) -> bool {
        if !self.given_up.load(Ordering::Acquire) {
            return false;
        }
        // SAFETY: a semaphore of this device, which lives as long as it.
        let passed = unsafe { self.raw.get_semaphore_counter_value(self.timeline) };
        match passed {
            Ok(passed) => passed < self.submitted.load(Ordering::Acquire),
            // A lost device runs nothing; with any other answer nobody knows.
            Err(e) => e != vk::Result::ERROR_DEVICE_LOST,
        }
    }

    /// What the driver says about the fault that took the device.
    fn fault_report(&self) -> String {
        let Some(functions) = &self.fault else { return String::new() };
        let (device, ask) = (self.raw.handle(), functions.fp().get_device_fault_info_ext);
        let mut counts = vk::DeviceFaultCountsEXT::default();
        // SAFETY: the device has the extension and is lost; the first call only counts.
        if unsafe { ask(device, &mut counts, std::ptr::null_mut()) } != vk::Result::SUCCESS {
            return String::new();
        }
        let mut addresses =
            vec![vk::DeviceFaultAddressInfoEXT::default(); counts.address_info_count as usize];
        let mut vendor = vec![vk::DeviceFaultVendorInfoEXT::default(); counts.vendor_info_count as usize];
        counts.vendor_binary_size = 0;
        let mut info = vk::DeviceFaultInfoEXT {
            p_address_infos: addresses.as_mut_ptr(),
            p_vendor_infos: vendor.as_mut_ptr(),
            ..Default::default()
        };
        // SAFETY: the arrays have the lengths that the counts say, and no binary is asked for.
        let done = unsafe { ask(device, &mut counts, &mut info) };
        if done != vk::Result::SUCCESS && done != vk::Result::INCOMPLETE {
            return String::new();
        }
        let mut parts = vec![text(&info.description)];
        addresses.truncate(counts.address_info_count as usize);
        vendor.truncate(counts.vendor_info_count as usize);
        parts.extend(addresses.iter().map(|a| {
            let (kind, at) = (a.address_type.as_raw(), a.reported_address);
            format!("address {at:#x} within {:#x} (kind {kind})", a.address_precision)
        }));
        parts.extend(vendor.iter().map(|v| {
            format!(
                "{} (code {:#x}, data {:#x})",
                text(&v.description),
                v.vendor_fault_code,
                v.vendor_fault_data
            )
        }));
        parts.retain(|p| !p.is_empty());
        parts.join("; ")
    }

    /// The device's clock in ticks and the host's, read together.
    pub fn clocks(&self) -> Option<(u64, Instant)> {
        let info = [vk::TimeDomainKHR::DEVICE, vk::TimeDomainKHR::CLOCK_MONOTONIC]
            .map(|domain| vk::CalibratedTimestampInfoKHR::default().time_domain(domain));
        let before = Instant::now();
        // SAFETY: the device has the extension, and both clocks.
        let read = unsafe {
            match self.clock.as_ref()? {
                Clock::Khr(functions) => functions.get_calibrated_timestamps(&info),
                Clock::Ext(functions) => functions.get_calibrated_timestamps(&info),
            }
        };
        // `Instant` does not show the system's clock, so the reading lies between two of ours: a few microseconds.
        let after = Instant::now();
        let (values, _) = read.ok()?;
        Some((*values.first()?, before + (after - before) / 2))
    }

    /// Whether the device is gone.
    pub fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Device memory in all and what can still be had.
    pub fn memory(&self) -> MemoryInfo {
        let total = self.adapter.heap;
        let used = self.allocated.load(Ordering::Acquire);
        let mut free = total.saturating_sub(used);
        if self.used.budget {
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
            subgroup: self.adapter.subgroup,
            shared_memory: self.adapter.limits.max_compute_shared_memory_size,
            groups: self.adapter.limits.max_compute_work_group_count,
            invocations: self.used.invocations,
            bindings: bindings(&self.adapter),
            int64: self.used.int64,
            f16: self.used.f16,
            dot4: self.used.dot4,
            matrix: self.used.matrix,
            subgroup_fixed: self.used.subgroup_fixed,
            software: self.adapter.kind == crate::device::DeviceKind::Software,
        }
    }

    /// Host memory that is used in place begins and ends at multiples of this many bytes.
    pub fn import_alignment(&self) -> usize {
        self.adapter.import_alignment.max(crate::device::addresses::PAGE)
    }

    /// Bytes of the largest buffer.
    pub fn max_buffer(&self) -> u64 {
        // Allocations end at multiples of 256 bytes, which have to fit as well.
        self.adapter.max_allocation / 256 * 256
    }

    /// Bytes that one binding reaches.
    pub fn max_range(&self) -> u64 {
        u64::from(self.adapter.limits.max_storage_buffer_range) / 256 * 256
    }

    /// Bytes of the largest operand of a kernel: bindings begin at multiples of 256.
    pub fn reach(&self) -> usize {
        usize::try_from(self.max_range()).unwrap_or(usize::MAX).saturating_sub(256)
    }

    /// A difference of timestamps in nanoseconds, which may be negative.
    pub fn nanoseconds(&self, from: u64, to: u64) -> f64 {
        // Only so many bits count.
        let spare = 64 - self.adapter.timestamp_bits.clamp(1, 64);
        let ticks = (to.wrapping_sub(from) << spare) as i64 >> spare;
        ticks as f64 * f64::from(self.adapter.limits.timestamp_period)
    }
}
