//! What Vulkan says of a device, asked once: every query that depends on a version or an extension is here.

use super::features::{NAMES, Offered, SUBGROUP_OPERATIONS, Used};
use super::import;
use super::instance::Instance;
use crate::device::driver::DeviceKind;
use crate::error::{Error, Result};
use crate::gpu::Matrix;
use ash::vk;
use std::ffi::CStr;

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
    /// Invocations in step.
    pub subgroup: u32,
    pub max_allocation: u64,
    pub memory: vk::PhysicalDeviceMemoryProperties,
    /// Bytes of its largest device-local heap.
    pub heap: u64,
    pub queue_family: u32,
    /// Identifies the driver's build, for caches.
    pub cache_key: String,
    /// What is used of it, or what our kernels need and it lacks.
    pub used: Result<Used, Vec<String>>,
    /// Bits of a timestamp.
    pub timestamp_bits: u32,
    /// The extension for calibrated timestamps is the multi-vendor one, not yet Khronos'.
    pub calibrated_ext: bool,
    /// Host memory that is imported begins and ends at multiples of it.
    pub import_alignment: usize,
}

/// What tests take away from devices, so that every way round an absence runs on a device that has everything. Checked
/// when devices are listed or opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forced {
    /// Names of features that count as missing, separated by commas (`MONEL_VULKAN_WITHOUT`).
    pub without: String,
    /// Bytes that a binding reaches, at least 65536; as many as the device says where this is empty
    /// (`MONEL_VULKAN_MAX_RANGE`).
    pub max_range: String,
}

impl Default for Forced {
    /// What the environment says.
    fn default() -> Forced {
        let variable = |name| std::env::var_os(name).unwrap_or_default().to_string_lossy().into_owned();
        Forced { without: variable(WITHOUT), max_range: variable(MAX_RANGE) }
    }
}

const WITHOUT: &str = "MONEL_VULKAN_WITHOUT";
const MAX_RANGE: &str = "MONEL_VULKAN_MAX_RANGE";

impl Forced {
    /// Whether both are what they can be.
    pub(super) fn check(&self) -> Result<()> {
        self.range()?;
        self.take_from(&mut Offered::default())
    }

    fn take_from(&self, offered: &mut Offered) -> Result<()> {
        offered.without(&self.without).map_err(|wrong| Error::Environment {
            name: WITHOUT,
            found: wrong,
            expected: format!("names by commas, of {}", NAMES.join(", ")),
        })
    }

    fn range(&self) -> Result<Option<u32>> {
        if self.max_range.is_empty() {
            return Ok(None);
        }
        match self.max_range.parse() {
            Ok(range) if range >= 1 << 16 => Ok(Some(range)),
            _ => Err(Error::Environment {
                name: MAX_RANGE,
                found: self.max_range.clone(),
                expected: format!("a number of bytes from 65536 to {}", u32::MAX),
            }),
        }
    }
}

impl Adapter {
    /// What it lacks, in words; nothing for usable ones.
    pub fn lacks(&self) -> String {
        self.used.as_ref().err().map(|list| list.join(", ")).unwrap_or_default()
    }
}

impl Instance {
    pub(super) fn adapter(&self, index: usize, raw: vk::PhysicalDevice, forced: &Forced) -> Result<Adapter> {
        // SAFETY: plain queries of a device of this instance.
        let (base, families, memory, extensions) = unsafe {
            (
                self.raw.get_physical_device_properties(raw),
                self.raw.get_physical_device_queue_family_properties(raw),
                self.raw.get_physical_device_memory_properties(raw),
                self.raw.enumerate_device_extension_properties(raw).unwrap_or_default(),
            )
        };
        let has = |name: &CStr| extensions.iter().any(|e| e.extension_name_as_c_str() == Ok(name));
        let modern = base.api_version >= vk::API_VERSION_1_3;
        let mut p11 = vk::PhysicalDeviceVulkan11Properties::default();
        let mut p12 = vk::PhysicalDeviceVulkan12Properties::default();
        let mut sizes = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
        let mut dots = vk::PhysicalDeviceShaderIntegerDotProductProperties::default();
        let mut f11 = vk::PhysicalDeviceVulkan11Features::default();
        let mut f12 = vk::PhysicalDeviceVulkan12Features::default();
        let mut size = vk::PhysicalDeviceSubgroupSizeControlFeatures::default();
        let mut dot = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default();
        let mut matrix = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
        let mut priority = vk::PhysicalDeviceMemoryPriorityFeaturesEXT::default();
        let mut fault = vk::PhysicalDeviceFaultFeaturesEXT::default();
        let mut host = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
        let mut plain = vk::PhysicalDeviceFeatures::default();
        // Structures may only be asked of devices whose version or extensions have them.
        if base.api_version >= vk::API_VERSION_1_2 {
            let mut properties =
                vk::PhysicalDeviceProperties2::default().push_next(&mut p11).push_next(&mut p12);
            let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut f11).push_next(&mut f12);
            if modern || has(ash::ext::subgroup_size_control::NAME) {
                properties = properties.push_next(&mut sizes);
                features = features.push_next(&mut size);
            }
            if modern || has(ash::khr::shader_integer_dot_product::NAME) {
                properties = properties.push_next(&mut dots);
                features = features.push_next(&mut dot);
            }
            if has(ash::khr::cooperative_matrix::NAME) {
                features = features.push_next(&mut matrix);
            }
            if has(ash::ext::memory_priority::NAME) {
                features = features.push_next(&mut priority);
            }
            if has(ash::ext::device_fault::NAME) {
                features = features.push_next(&mut fault);
            }
            if has(ash::ext::external_memory_host::NAME) {
                properties = properties.push_next(&mut host);
            }
            // SAFETY: the device has the chained structures, which live through the calls.
            unsafe {
                self.raw.get_physical_device_properties2(raw, &mut properties);
                self.raw.get_physical_device_features2(raw, &mut features);
            }
            plain = features.features;
        }
        // A queue without graphics where there is one: the display's work does not stand in its way.
        let compute = |f: &vk::QueueFamilyProperties| f.queue_flags.contains(vk::QueueFlags::COMPUTE);
        let alone =
            |f: &vk::QueueFamilyProperties| compute(f) && !f.queue_flags.contains(vk::QueueFlags::GRAPHICS);
        let family = families.iter().position(alone).or_else(|| families.iter().position(compute));
        let heap = (0..memory.memory_heap_count as usize)
            .map(|h| memory.memory_heaps[h])
            .filter(|h| h.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL))
            .map(|h| h.size)
            .max()
            .unwrap_or(0);
        let kind = match base.device_type {
            vk::PhysicalDeviceType::DISCRETE_GPU | vk::PhysicalDeviceType::VIRTUAL_GPU => {
                DeviceKind::Discrete
            }
            vk::PhysicalDeviceType::INTEGRATED_GPU => DeviceKind::Integrated,
            _ => DeviceKind::Software,
        };
        let yes = |flag: vk::Bool32| flag == vk::TRUE;
        let subgroup = p11.subgroup_size.max(1);
        let calibrated_khr = has(ash::khr::calibrated_timestamps::NAME);
        let calibrated_ext = !calibrated_khr && has(ash::ext::calibrated_timestamps::NAME);
        let matrices = if yes(matrix.cooperative_matrix) { self.matrices(raw) } else { Vec::new() };
        let mut offered = Offered {
            api: base.api_version,
            compute_queue: family.is_some(),
            int16: yes(plain.shader_int16),
            storage16: yes(f11.storage_buffer16_bit_access),
            timeline: yes(f12.timeline_semaphore),
            subgroup_arithmetic: p11.subgroup_supported_operations.contains(SUBGROUP_OPERATIONS)
                && p11.subgroup_supported_stages.contains(vk::ShaderStageFlags::COMPUTE),
            invocations: base
                .limits
                .max_compute_work_group_invocations
                .min(base.limits.max_compute_work_group_size[0]),
            storage_buffers: base.limits.max_per_stage_descriptor_storage_buffers,
            immediates: base.limits.max_push_constants_size,
            shared_memory: base.limits.max_compute_shared_memory_size,
            int8: yes(f12.shader_int8),
            int64: yes(plain.shader_int64),
            f16: yes(f12.shader_float16),
            subgroup,
            subgroup_fixed: yes(size.subgroup_size_control)
                && yes(size.compute_full_subgroups)
                && sizes.required_subgroup_size_stages.contains(vk::ShaderStageFlags::COMPUTE)
                && (sizes.min_subgroup_size..=sizes.max_subgroup_size).contains(&subgroup),
            dot: yes(dot.shader_integer_dot_product),
            dot_fast: yes(dots.integer_dot_product4x8_bit_packed_signed_accelerated),
            software: kind == DeviceKind::Software,
            memory_model: yes(f12.vulkan_memory_model) && yes(f12.vulkan_memory_model_device_scope),
            matrices,
            budget: has(ash::ext::memory_budget::NAME),
            priority: yes(priority.memory_priority),
            timestamps: family.is_some_and(|f| families[f].timestamp_valid_bits > 0)
                && base.limits.timestamp_period > 0.0,
            calibrated: (calibrated_khr || calibrated_ext) && self.can_calibrate(raw, calibrated_ext),
            fault: yes(fault.device_fault),
            // Weights that every step reads do not stay behind a bus.
            import: kind != DeviceKind::Discrete
                && has(ash::ext::external_memory_host::NAME)
                && self.can_import(raw),
        };
        forced.take_from(&mut offered)?;
        let used = offered.judge().map_err(|list| list.iter().map(ToString::to_string).collect());
        let mut limits = base.limits;
        if let Some(range) = forced.range()? {
            limits.max_storage_buffer_range = limits.max_storage_buffer_range.min(range);
        }
        let uuid: String = base.pipeline_cache_uuid.iter().map(|b| format!("{b:02x}")).collect();
        Ok(Adapter {
            raw,
            index,
            name: text(&base.device_name),
            driver: format!("{} {}", text(&p12.driver_name), text(&p12.driver_info)).trim().to_string(),
            kind,
            api: base.api_version,
            limits,
            subgroup,
            max_allocation: p11.max_memory_allocation_size,
            memory,
            heap,
            queue_family: family.unwrap_or(0) as u32,
            cache_key: format!("{:x}-{:x}-{uuid}", base.vendor_id, base.device_id),
            used,
            timestamp_bits: family.map_or(0, |f| families[f].timestamp_valid_bits),
            calibrated_ext,
            import_alignment: usize::try_from(host.min_imported_host_pointer_alignment).unwrap_or(usize::MAX),
        })
    }

    /// Shapes of cooperative matrices of f16 that add to f32.
    fn matrices(&self, raw: vk::PhysicalDevice) -> Vec<Matrix> {
        let functions = ash::khr::cooperative_matrix::Instance::new(&self.entry, &self.raw);
        // SAFETY: the device has the extension.
        let list = unsafe { functions.get_physical_device_cooperative_matrix_properties(raw) };
        let (half, single) = (vk::ComponentTypeKHR::FLOAT16, vk::ComponentTypeKHR::FLOAT32);
        list.unwrap_or_default()
            .iter()
            .filter(|p| [p.a_type, p.b_type] == [half; 2] && [p.c_type, p.result_type] == [single; 2])
            .filter(|p| p.scope == vk::ScopeKHR::SUBGROUP)
            .map(|p| Matrix { m: p.m_size, n: p.n_size, k: p.k_size })
            .collect()
    }

    /// Whether buffers that kernels read can be made over host memory, without a demand for memory of their own.
    fn can_import(&self, raw: vk::PhysicalDevice) -> bool {
        let info =
            vk::PhysicalDeviceExternalBufferInfo::default().usage(import::USAGE).handle_type(import::HANDLE);
        let mut found = vk::ExternalBufferProperties::default();
        // SAFETY: a plain query of Vulkan 1.1; the structures live through the call.
        unsafe { self.raw.get_physical_device_external_buffer_properties(raw, &info, &mut found) };
        let features = found.external_memory_properties.external_memory_features;
        features.contains(vk::ExternalMemoryFeatureFlags::IMPORTABLE)
            && !features.contains(vk::ExternalMemoryFeatureFlags::DEDICATED_ONLY)
    }

    /// Whether the device's clock can be read together with the host's.
    fn can_calibrate(&self, raw: vk::PhysicalDevice, ext: bool) -> bool {
        // SAFETY: the device has the extension.
        let domains = unsafe {
            if ext {
                let functions = ash::ext::calibrated_timestamps::Instance::new(&self.entry, &self.raw);
                functions.get_physical_device_calibrateable_time_domains(raw)
            } else {
                let functions = ash::khr::calibrated_timestamps::Instance::new(&self.entry, &self.raw);
                functions.get_physical_device_calibrateable_time_domains(raw)
            }
        };
        domains.is_ok_and(|d| {
            d.contains(&vk::TimeDomainKHR::DEVICE) && d.contains(&vk::TimeDomainKHR::CLOCK_MONOTONIC)
        })
    }
}

/// A C string in an array of fixed size.
pub(super) fn text(chars: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|&c| c as u8).take_while(|&b| b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
