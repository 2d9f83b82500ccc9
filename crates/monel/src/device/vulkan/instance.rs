//! The loader and the adapters: what Vulkan this machine has, and which of it can run our kernels.
//!
//! The loader is a library that is opened at run time; a machine without it, without a driver, or with a driver that
//! fails is an error with that reason, and lists no adapters. The instance is made once per process and kept: making
//! one takes up to 0.4 s.

use super::adapter::{Adapter, Forced};
use super::validation;
use crate::error::{Error, Result};
use ash::vk;
use std::sync::{Arc, Mutex, PoisonError};

/// Vulkan as the process sees it.
pub struct Instance {
    pub raw: ash::Instance,
    /// Whom the validation layers tell, if they are on.
    messenger: Option<(ash::ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    /// The loader's functions; keeps the library loaded.
    pub entry: ash::Entry,
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: everything made from the instance holds it, so nothing is left.
        unsafe {
            if let Some((functions, messenger)) = &self.messenger {
                functions.destroy_debug_utils_messenger(*messenger, None);
            }
            self.raw.destroy_instance(None);
        }
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
    let mut info = vk::InstanceCreateInfo::default().application_info(&app);
    let (layers, extensions) = ([validation::LAYER.as_ptr()], [ash::ext::debug_utils::NAME.as_ptr()]);
    let mut hears = validation::messenger();
    let validated = validation::wanted()?;
    if validated {
        info = info.enabled_layer_names(&layers).enabled_extension_names(&extensions).push_next(&mut hears);
    }
    // SAFETY: the structures live through the call.
    let raw = unsafe { entry.create_instance(&info, None) }.map_err(|e| {
        let hint = match e {
            vk::Result::ERROR_LAYER_NOT_PRESENT => "MONEL_VULKAN_VALIDATION needs the validation layers",
            _ => "is a driver installed?",
        };
        failed("starting Vulkan", format!("{e}; {hint}"))
    })?;
    let messenger = validated.then(|| {
        let functions = ash::ext::debug_utils::Instance::new(&entry, &raw);
        // SAFETY: the instance has the extension; the structure lives through the call.
        let made = unsafe { functions.create_debug_utils_messenger(&validation::messenger(), None) };
        made.ok().map(|messenger| (functions, messenger))
    });
    let instance = Arc::new(Instance { raw, messenger: messenger.flatten(), entry });
    *kept = Some(instance.clone());
    Ok(instance)
}

impl Instance {
    /// All adapters.
    pub fn adapters(&self, forced: &Forced) -> Result<Vec<Adapter>> {
        // SAFETY: a plain query.
        let devices = unsafe { self.raw.enumerate_physical_devices() }
            .map_err(|e| Error::System { what: "listing Vulkan devices".into(), reason: e.to_string() })?;
        devices.into_iter().enumerate().map(|(i, d)| self.adapter(i, d, forced)).collect()
    }
}
