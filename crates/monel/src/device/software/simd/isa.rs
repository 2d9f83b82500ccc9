//! Which instruction set the kernels run on.
//!
//! An [`Isa`] is a proof: it can only be made for a level that the machine has, so the safe functions of this
//! folder may rely on it. The environment variable `MONEL_ISA` (portable, avx2, avx512, neon, neon-dot, neon-i8mm) forces a
//! lower level than the best one, for tests and for comparisons.

use std::sync::OnceLock;

/// A set of instructions that the kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// Plain Rust, every machine.
    Portable,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
    /// AArch64 with its baseline vectors.
    Neon,
    /// AArch64 with the dot product instructions.
    NeonDot,
    /// AArch64 with the dot product and the 8-bit matrix instructions.
    NeonI8mm,
}

impl Level {
    /// Every level, lowest first.
    pub const ALL: [Self; 6] =
        [Self::Portable, Self::Avx2, Self::Avx512, Self::Neon, Self::NeonDot, Self::NeonI8mm];

    /// The name that `MONEL_ISA` takes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
            Self::NeonDot => "neon-dot",
            Self::NeonI8mm => "neon-i8mm",
        }
    }

    fn on_this_machine(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.on_this_machine()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            Self::NeonDot => {
                std::arch::is_aarch64_feature_detected!("neon")
                    && std::arch::is_aarch64_feature_detected!("dotprod")
            }
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm => {
                Self::NeonDot.on_this_machine() && std::arch::is_aarch64_feature_detected!("i8mm")
            }
            #[allow(unreachable_patterns)] // the other architectures' levels
            _ => false,
        }
    }
}

/// A level that this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Isa(Level);

/// Why an instruction set cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// The name is none of the known ones.
    #[error(
        "MONEL_ISA={found} is not known; choose one of portable, avx2, avx512, neon, neon-dot, neon-i8mm"
    )]
    Unknown {
        /// The name found.
        found: String,
    },
    /// The machine lacks it.
    #[error(
        "MONEL_ISA asks for {wanted}, but this machine's best is {best}; choose that, a lower one, or unset it"
    )]
    Unavailable {
        /// The level asked for.
        wanted: &'static str,
        /// The best level here.
        best: &'static str,
    },
}

impl Isa {
    /// What every machine has.
    pub const PORTABLE: Self = Self(Level::Portable);

    /// The best level of this machine, whatever the environment says.
    pub fn detect() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().next_back().unwrap_or(Self::PORTABLE))
    }

    /// The level that `MONEL_ISA` names, or the best one without it.
    ///
    /// # Errors
    /// [`IsaError`] for an unknown name or a level that this machine lacks.
    pub fn from_env() -> Result<Self, IsaError> {
        match std::env::var_os("MONEL_ISA") {
            None => Ok(Self::detect()),
            Some(name) => Self::named(&name.to_string_lossy()),
        }
    }

    /// The level of that name.
    ///
    /// # Errors
    /// As [`Isa::from_env`].
    pub fn named(name: &str) -> Result<Self, IsaError> {
        let level = Level::ALL.into_iter().find(|level| level.name() == name);
        let level = level.ok_or_else(|| IsaError::Unknown { found: name.to_owned() })?;
        let unavailable = IsaError::Unavailable { wanted: level.name(), best: Self::detect().name() };
        Self::new(level).ok_or(unavailable)
    }

    /// `level`, if this machine has it.
    pub fn new(level: Level) -> Option<Self> {
        level.on_this_machine().then_some(Self(level))
    }

    /// Every level of this machine, lowest first.
    pub fn available() -> impl DoubleEndedIterator<Item = Self> {
        Level::ALL.into_iter().filter_map(Self::new)
    }

    /// Which level it is.
    pub const fn level(self) -> Level {
        self.0
    }

    /// Its name, as `MONEL_ISA` takes it.
    pub const fn name(self) -> &'static str {
        self.0.name()
    }
}
