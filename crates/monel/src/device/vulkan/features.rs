//! What a device offers, what our kernels need of it, and what is used where it is there: plain data and a verdict.
//!
//! The floor is Vulkan 1.2 with 16-bit storage buffers, timeline semaphores and arithmetic within subgroups. Everything
//! else is optional. `MONEL_VULKAN_WITHOUT` takes features away by name, so that every way round an absence is tested
//! on devices that have everything.

use crate::gpu::Matrix;
use ash::vk;

/// What a driver says of a device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Offered {
    /// The version of Vulkan.
    pub api: u32,
    pub compute_queue: bool,
    pub int16: bool,
    pub storage16: bool,
    pub timeline: bool,
    /// Subgroups in compute kernels do all that [`SUBGROUP_OPERATIONS`] says.
    pub subgroup_arithmetic: bool,
    /// Invocations of a workgroup, storage buffers of a kernel, bytes of immediates, bytes of workgroup memory.
    pub invocations: u32,
    pub storage_buffers: u32,
    pub immediates: u32,
    pub shared_memory: u32,
    pub int8: bool,
    pub int64: bool,
    pub f16: bool,
    /// Invocations in step.
    pub subgroup: u32,
    /// A kernel can demand full subgroups of the size above.
    pub subgroup_fixed: bool,
    /// The instruction for dot products of packed bytes is there; it is fast.
    pub dot: bool,
    pub dot_fast: bool,
    /// Computed by the CPU: nothing is fast, but everything can be tested.
    pub software: bool,
    pub memory_model: bool,
    /// Shapes of f16 by f16 that add to f32, by a subgroup.
    pub matrices: Vec<Matrix>,
    pub budget: bool,
    pub priority: bool,
    pub timestamps: bool,
    pub calibrated: bool,
    pub fault: bool,
    /// Buffers over host memory of others can be made, and the device reads it as fast as its own.
    pub import: bool,
}

/// The largest workgroup that every device has.
const MIN_INVOCATIONS: u32 = 256;

/// What kernels use of subgroups.
pub const SUBGROUP_OPERATIONS: vk::SubgroupFeatureFlags = vk::SubgroupFeatureFlags::from_raw(
    vk::SubgroupFeatureFlags::BASIC.as_raw()
        | vk::SubgroupFeatureFlags::ARITHMETIC.as_raw()
        | vk::SubgroupFeatureFlags::VOTE.as_raw()
        | vk::SubgroupFeatureFlags::BALLOT.as_raw()
        | vk::SubgroupFeatureFlags::SHUFFLE.as_raw(),
);

/// What is used of a device that has all that is needed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Used {
    pub int8: bool,
    pub int64: bool,
    pub f16: bool,
    pub subgroup_fixed: Option<u32>,
    /// Dot products of packed bytes: as an instruction, and whether kernels should be made for it.
    pub dot: bool,
    pub dot4: bool,
    pub matrix: Option<Matrix>,
    /// Invocations of a workgroup, at most.
    pub invocations: u32,
    pub budget: bool,
    pub priority: bool,
    pub timestamps: bool,
    pub calibrated: bool,
    pub fault: bool,
    pub import: bool,
}

/// The names that `MONEL_VULKAN_WITHOUT` takes, separated by commas.
pub const NAMES: &[&str] = &[
    "int16",
    "storage16",
    "timeline",
    "subgroups",
    "int8",
    "int64",
    "f16",
    "subgroup_fixed",
    "dot4",
    "matrix",
    "workgroups",
    "budget",
    "priority",
    "timestamps",
    "calibrated",
    "fault",
    "import",
];

impl Offered {
    /// Takes the features of a list away. The error is the name of what is none.
    pub fn without(&mut self, list: &str) -> Result<(), String> {
        for name in list.split(',').map(str::trim).filter(|n| !n.is_empty()) {
            match name {
                "int16" => self.int16 = false,
                "storage16" => self.storage16 = false,
                "timeline" => self.timeline = false,
                "subgroups" => self.subgroup_arithmetic = false,
                "int8" => self.int8 = false,
                "int64" => self.int64 = false,
                "f16" => self.f16 = false,
                "subgroup_fixed" => self.subgroup_fixed = false,
                "dot4" => (self.dot, self.dot_fast) = (false, false),
                "matrix" => self.matrices.clear(),
                // What every device has.
                "workgroups" => self.invocations = self.invocations.min(MIN_INVOCATIONS),
                "budget" => self.budget = false,
                "priority" => self.priority = false,
                "timestamps" => self.timestamps = false,
                "calibrated" => self.calibrated = false,
                "fault" => self.fault = false,
                "import" => self.import = false,
                other => return Err(other.to_string()),
            }
        }
        Ok(())
    }

    /// What is used, or the names of what is missing.
    pub fn judge(&self) -> Result<Used, Vec<&'static str>> {
        let needs = [
            (self.api >= vk::API_VERSION_1_2, "Vulkan 1.2"),
            (self.compute_queue, "a compute queue"),
            (self.int16, "16-bit integers"),
            (self.storage16, "16-bit storage"),
            (self.timeline, "timeline semaphores"),
            (self.subgroup_arithmetic, "arithmetic within subgroups"),
            (self.invocations >= MIN_INVOCATIONS, "workgroups of 256"),
            (self.storage_buffers >= crate::gpu::MIN_BINDINGS as u32, "8 storage buffers a kernel"),
            (self.immediates >= 4 * crate::gpu::MAX_IMMEDIATES as u32, "128 bytes of push constants"),
            (self.shared_memory >= 16 << 10, "16 KiB of workgroup memory"),
        ];
        let missing: Vec<&'static str> =
            needs.iter().filter(|(has, _)| !has).map(|(_, name)| *name).collect();
        // Structures of later versions were not asked for, so everything else would be missing too.
        if let Some(version) = missing.iter().find(|m| m.starts_with("Vulkan")) {
            return Err(vec![version]);
        }
        if !missing.is_empty() {
            return Err(missing);
        }
        let square = |m: &&Matrix| (m.m, m.n, m.k) == (16, 16, 16);
        // Matrices are loaded as f16, and their subgroup has to be whole.
        let whole = self.memory_model && self.f16 && self.subgroup_fixed;
        Ok(Used {
            int8: self.int8,
            int64: self.int64,
            f16: self.f16,
            subgroup_fixed: self.subgroup_fixed.then_some(self.subgroup),
            dot: self.dot,
            dot4: self.dot && (self.dot_fast || self.software),
            matrix: self.matrices.iter().find(square).copied().filter(|_| whole),
            invocations: self.invocations,
            budget: self.budget,
            priority: self.priority,
            timestamps: self.timestamps,
            calibrated: self.calibrated && self.timestamps,
            fault: self.fault,
            import: self.import,
        })
    }
}

impl Used {
    /// For display.
    pub fn names(&self) -> Vec<&'static str> {
        let all = [
            (self.f16, "f16"),
            (self.int64, "int64"),
            (self.dot4, "dot4"),
            (self.matrix.is_some(), "matrix 16x16x16"),
            (self.subgroup_fixed.is_some(), "full subgroups"),
            (self.budget, "memory budget"),
            (self.priority, "memory priority"),
            (self.calibrated, "calibrated timestamps"),
            (self.timestamps && !self.calibrated, "timestamps"),
            (self.fault, "fault reports"),
            (self.import, "files in place"),
        ];
        all.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything() -> Offered {
        let matrix = |m, n, k| Matrix { m, n, k };
        Offered {
            api: vk::API_VERSION_1_3,
            compute_queue: true,
            int16: true,
            storage16: true,
            timeline: true,
            subgroup_arithmetic: true,
            invocations: 1024,
            storage_buffers: 16,
            immediates: 128,
            shared_memory: 48 << 10,
            int8: true,
            int64: true,
            f16: true,
            subgroup: 32,
            subgroup_fixed: true,
            dot: true,
            dot_fast: true,
            software: false,
            memory_model: true,
            matrices: vec![matrix(16, 8, 16), matrix(16, 16, 16)],
            budget: true,
            priority: true,
            timestamps: true,
            calibrated: true,
            fault: true,
            import: true,
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        assert!(everything().judge().is_ok());
        let minimal = Offered {
            int8: false,
            int64: false,
            f16: false,
            subgroup_fixed: false,
            dot: false,
            memory_model: false,
            matrices: Vec::new(),
            budget: false,
            priority: false,
            timestamps: false,
            calibrated: false,
            fault: false,
            import: false,
            api: vk::API_VERSION_1_2,
            invocations: 256,
            storage_buffers: 8,
            shared_memory: 16384,
            ..everything()
        };
        assert_eq!(minimal.judge(), Ok(Used { invocations: 256, ..Used::default() }));
        type Take = fn(&mut Offered);
        let takes: [(Take, &str); 9] = [
            (|o| o.api = vk::API_VERSION_1_1, "Vulkan 1.2"),
            (|o| o.compute_queue = false, "a compute queue"),
            (|o| o.int16 = false, "16-bit integers"),
            (|o| o.storage16 = false, "16-bit storage"),
            (|o| o.timeline = false, "timeline semaphores"),
            (|o| o.subgroup_arithmetic = false, "arithmetic within subgroups"),
            (|o| o.invocations = 128, "workgroups of 256"),
            (|o| o.storage_buffers = 4, "8 storage buffers a kernel"),
            (|o| o.immediates = 64, "128 bytes of push constants"),
        ];
        for (take, name) in takes {
            let mut offered = minimal.clone();
            take(&mut offered);
            assert_eq!(offered.judge(), Err(vec![name]));
        }
        // An old device says nothing of later features: only its version is wrong.
        let old = Offered { api: vk::API_VERSION_1_1, ..Offered::default() };
        assert_eq!(old.judge(), Err(vec!["Vulkan 1.2"]));
    }

    #[test]
    fn every_name_takes_something_away() {
        for name in NAMES {
            let mut offered = everything();
            offered.without(name).unwrap();
            assert_ne!(offered, everything(), "{name}");
        }
        let mut offered = everything();
        offered.without(" f16 ,dot4,").unwrap();
        let used = offered.judge().unwrap();
        assert!(!used.f16 && !used.dot4 && used.matrix.is_none(), "matrices hold f16");
        assert_eq!(offered.without("f16,f61"), Err("f61".to_string()));
    }

    #[test]
    fn matrices_are_square_and_need_whole_subgroups() {
        let square = Some(Matrix { m: 16, n: 16, k: 16 });
        assert_eq!(everything().judge().unwrap().matrix, square);
        let mut offered = everything();
        offered.matrices.pop();
        assert_eq!(offered.judge().unwrap().matrix, None);
        for name in ["subgroup_fixed", "f16", "matrix"] {
            let mut offered = everything();
            offered.without(name).unwrap();
            assert_eq!(offered.judge().unwrap().matrix, None, "{name}");
        }
    }

    #[test]
    fn slow_dot_products_are_used_only_where_nothing_is_fast() {
        let slow = Offered { dot_fast: false, ..everything() };
        assert!(!slow.judge().unwrap().dot4 && slow.judge().unwrap().dot);
        assert!(Offered { software: true, ..slow }.judge().unwrap().dot4);
    }
}
