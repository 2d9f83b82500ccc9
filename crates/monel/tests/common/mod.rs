//! What the tests of fused steps share: the two devices and their numbers.

use monel::Device;
use monel::device::{software, vulkan};

/// A Vulkan device of the test's own, that of number `MONEL_VULKAN_DEVICE`, which compiles its kernels itself: no file of
/// the user's is read or written. A machine without one skips the test; with `MONEL_REQUIRE_VULKAN` that fails it.
pub fn gpu() -> Option<Device> {
    let index = std::env::var("MONEL_VULKAN_DEVICE")
        .map_or(0, |n| n.parse().expect("MONEL_VULKAN_DEVICE is a number"));
    match vulkan::create(&vulkan::Options { index, cache: None, ..vulkan::Options::default() }) {
        Ok((device, _)) => Some(device),
        Err(e) if std::env::var_os("MONEL_REQUIRE_VULKAN").is_none() => {
            println!("skipped: {e}");
            None
        }
        Err(e) => panic!("MONEL_REQUIRE_VULKAN is set and there is no Vulkan device: {e}"),
    }
}

pub fn cpu() -> Device {
    software::create(&software::Options::default()).unwrap()
}

/// Numbers from -1 to 1, different for each seed.
pub fn numbers(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}
