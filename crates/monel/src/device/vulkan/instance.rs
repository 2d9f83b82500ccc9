//! The loader and the adapters: what Vulkan this machine has, and which of it can run our kernels.
//!
//! The loader is a library that is opened at run time; a machine without it, without a driver, or with a driver that
//! fails is an error with that reason, and lists no adapters. The instance is made once per process and kept: making
//! one takes up to 0.4 s.

use crate::device::driver::DeviceKind;
use crate::error::{Error, Result};
use ash::vk;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError};

/// Vulkan as the process sees it.
pub struct Instance {
    pub raw: ash::Instance,
    /// Keeps the library loaded.
    _entry: ash::Entry,
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: everything made from the instance holds it, so nothing is left.
        unsafe { self.raw.destroy_instance(None) };
    }
}

/// The process's instance.
pub fn get() -> Result<Arc<Instance>> {
    static INSTANCE: Mutex<Option<Arc<Instance>>> = Mutex::new(None);
    let mut kept = INSTANCE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(instance) = &*kept {
        return Ok(instance.clone());
    }
    let failed = |what: &str, reason: String| Error::System { what: what.to_string(), reason };
    // SAFETY: loading the system's Vulkan loader runs its initialisers, as every Vulkan program does.
    let entry = unsafe { ash::Entry::load() }
        .map_err(|e| failed("loading the Vulkan loader (libvulkan)", e.to_string()))?;
    let app = vk::ApplicationInfo::default().application_name(c"monel").api_version(vk::API_VERSION_1_3);
    let info = vk::InstanceCreateInfo::default().application_info(&app);
    // SAFETY: the structures live through the call.
    let raw = unsafe { entry.create_instance(&info, None) }
        .map_err(|e| failed("starting Vulkan", format!("{e}; is a driver installed?")))?;
    let instance = Arc::new(Instance { raw, _entry: entry });
    *kept = Some(instance.clone());
    Ok(instance)
}

/// A device that a driver offers.
#[derive(Clone)]
pub struct Adapter {
    pub raw: vk::PhysicalDevice,
    /// Its number in the driver's order.
    pub index: usize,
    pub name: String,
    pub driver: String,
    pub kind: DeviceKind,
    pub api: u32,
    pub limits: vk::PhysicalDeviceLimits,
    /// Smallest and largest number of invocations in step.
    pub subgroup: (u32, u32),
    pub max_allocation: u64,
    pub memory: vk::PhysicalDeviceMemoryProperties,
    /// Bytes of its largest device-local heap.
    pub heap: u64,
    pub queue_family: u32,
    /// Identifies the driver's build, for caches.
    pub cache_key: String,
    pub has_budget: bool,
    /// 64-bit integers in kernels.
    pub int64: bool,
    /// What our kernels need and it lacks.
    pub lacks: Vec<&'static str>,
}

impl Instance {
    /// All adapters.
    pub fn adapters(&self) -> Result<Vec<Adapter>> {
        // SAFETY: a plain query.
        let devices = unsafe { self.raw.enumerate_physical_devices() }
            .map_err(|e| Error::System { what: "listing Vulkan devices".into(), reason: e.to_string() })?;
        Ok(devices.into_iter().enumerate().map(|(i, d)| self.adapter(i, d)).collect())
    }

    fn adapter(&self, index: usize, raw: vk::PhysicalDevice) -> Adapter {
        // SAFETY: plain query of a device of this instance.
        let base = unsafe { self.raw.get_physical_device_properties(raw) };
        let mut lacks = Vec::new();
        let mut int64 = false;
        // Structures of later versions may only be asked of devices that have them.
        let modern = base.api_version >= vk::API_VERSION_1_3;
        let mut p11 = vk::PhysicalDeviceVulkan11Properties::default();
        let mut p12 = vk::PhysicalDeviceVulkan12Properties::default();
        let mut p13 = vk::PhysicalDeviceVulkan13Properties::default();
        let mut f11 = vk::PhysicalDeviceVulkan11Features::default();
        let mut f12 = vk::PhysicalDeviceVulkan12Features::default();
        let mut f13 = vk::PhysicalDeviceVulkan13Features::default();
        if modern {
            let mut properties = vk::PhysicalDeviceProperties2::default()
                .push_next(&mut p11)
                .push_next(&mut p12)
                .push_next(&mut p13);
            let mut features = vk::PhysicalDeviceFeatures2::default()
                .push_next(&mut f11)
                .push_next(&mut f12)
                .push_next(&mut f13);
            // SAFETY: the chained structures belong to Vulkan 1.3, which the device has, and live through the calls.
            unsafe {
                self.raw.get_physical_device_properties2(raw, &mut properties);
                self.raw.get_physical_device_features2(raw, &mut features);
            }
            let plain = features.features;
            int64 = plain.shader_int64 == vk::TRUE;
            let subgroup = vk::SubgroupFeatureFlags::BASIC
                | vk::SubgroupFeatureFlags::ARITHMETIC
                | vk::SubgroupFeatureFlags::VOTE
                | vk::SubgroupFeatureFlags::BALLOT
                | vk::SubgroupFeatureFlags::SHUFFLE;
            let has = [
                (plain.shader_int16, "16-bit integers"),
                (f11.storage_buffer16_bit_access, "16-bit storage"),
                (f11.uniform_and_storage_buffer16_bit_access, "16-bit uniform storage"),
                (f12.shader_int8, "8-bit integers"),
                (f12.timeline_semaphore, "timeline semaphores"),
                (f13.synchronization2, "synchronization 2"),
                (f12.vulkan_memory_model, "the Vulkan memory model"),
                (f12.vulkan_memory_model_device_scope, "atomics across workgroups"),
            ];
            lacks.extend(has.iter().filter(|(has, _)| *has == vk::FALSE).map(|(_, name)| *name));
            if !p11.subgroup_supported_operations.contains(subgroup)
                || !p11.subgroup_supported_stages.contains(vk::ShaderStageFlags::COMPUTE)
            {
                lacks.push("arithmetic within subgroups");
            }
        } else {
            lacks.push("Vulkan 1.3");
        }
        // SAFETY: plain queries.
        let (families, memory, extensions) = unsafe {
            (
                self.raw.get_physical_device_queue_family_properties(raw),
                self.raw.get_physical_device_memory_properties(raw),
                self.raw.enumerate_device_extension_properties(raw).unwrap_or_default(),
            )
        };
        // A queue without graphics where there is one: the display's work does not stand in its way.
        let compute = |f: &vk::QueueFamilyProperties| f.queue_flags.contains(vk::QueueFlags::COMPUTE);
        let alone =
            |f: &vk::QueueFamilyProperties| compute(f) && !f.queue_flags.contains(vk::QueueFlags::GRAPHICS);
        let family = families.iter().position(alone).or_else(|| families.iter().position(compute));
        if family.is_none() {
            lacks.push("a compute queue");
        }
        let heap = (0..memory.memory_heap_count as usize)
            .map(|h| memory.memory_heaps[h])
            .filter(|h| h.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL))
            .map(|h| h.size)
            .max()
            .unwrap_or(0);
        let name = text(&base.device_name);
        let uuid: String = base.pipeline_cache_uuid.iter().map(|b| format!("{b:02x}")).collect();
        let has = |name: &CStr| extensions.iter().any(|e| e.extension_name_as_c_str() == Ok(name));
        Adapter {
            raw,
            index,
            driver: format!("{} {}", text(&p12.driver_name), text(&p12.driver_info)).trim().to_string(),
            kind: match base.device_type {
                vk::PhysicalDeviceType::DISCRETE_GPU | vk::PhysicalDeviceType::VIRTUAL_GPU => {
                    DeviceKind::Discrete
                }
                vk::PhysicalDeviceType::INTEGRATED_GPU => DeviceKind::Integrated,
                _ => DeviceKind::Software,
            },
            api: base.api_version,
            limits: base.limits,
            subgroup: (p13.min_subgroup_size.max(1), p11.subgroup_size.max(1)),
            max_allocation: p11.max_memory_allocation_size,
            memory,
            heap,
            queue_family: family.unwrap_or(0) as u32,
            cache_key: format!("{:x}-{:x}-{uuid}", base.vendor_id, base.device_id),
            has_budget: has(ash::ext::memory_budget::NAME),
            int64,
            lacks,
            name,
        }
    }
}

/// A C string in an array of fixed size.
fn text(chars: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|&c| c as u8).take_while(|&b| b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
