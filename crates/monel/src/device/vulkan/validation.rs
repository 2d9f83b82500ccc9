//! The validation layers, for tests: `MONEL_VULKAN_VALIDATION=1` prints and collects what they say, `abort` ends the
//! process at the first message, so that a test run cannot pass over it.
//!
//! The layer comes from the system (`vulkan-validationlayers`); where it is missing, starting Vulkan fails.

use crate::error::{Error, Result};
use ash::vk;
use std::ffi::{CStr, c_void};
use std::sync::{Mutex, PoisonError};

static MESSAGES: Mutex<Vec<String>> = Mutex::new(Vec::new());

pub const LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";

const VARIABLE: &str = "MONEL_VULKAN_VALIDATION";

/// Whether the layers are asked for.
pub fn wanted() -> Result<bool> {
    let found = std::env::var_os(VARIABLE).unwrap_or_default().to_string_lossy().into_owned();
    match found.as_str() {
        "" | "0" => Ok(false),
        "1" | "abort" => Ok(true),
        _ => Err(Error::Environment { name: VARIABLE, found, expected: "0, 1 or abort".into() }),
    }
}

/// What the layers have said so far.
pub fn messages() -> Vec<String> {
    MESSAGES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Whom the layers tell.
pub fn messenger() -> vk::DebugUtilsMessengerCreateInfoEXT<'static> {
    use vk::{DebugUtilsMessageSeverityFlagsEXT as Severity, DebugUtilsMessageTypeFlagsEXT as Kind};
    vk::DebugUtilsMessengerCreateInfoEXT::default()
        .message_severity(Severity::ERROR | Severity::WARNING)
        .message_type(Kind::VALIDATION | Kind::PERFORMANCE)
        .pfn_user_callback(Some(hear))
}

/// # Safety
/// Called by the loader with structures that live through the call.
unsafe extern "system" fn hear(
    _: vk::DebugUtilsMessageSeverityFlagsEXT,
    _: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    _: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: the loader passes a valid structure.
    let Some(data) = (unsafe { data.as_ref() }) else { return vk::FALSE };
    // SAFETY: a text that lives through the call, where there is one.
    let text = unsafe { data.message_as_c_str() }.unwrap_or_default().to_string_lossy().into_owned();
    eprintln!("validation: {text}");
    MESSAGES.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    if std::env::var_os(VARIABLE).is_some_and(|v| v == "abort") {
        std::process::abort();
    }
    vk::FALSE
}
