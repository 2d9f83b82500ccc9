//! Which instructions the kernels run on.
//!
//! An [`Isa`] is a proof: it can only be made for a level that the machine has, so the safe functions of this
//! folder may rely on it. Each level has paths of its own, each is tested on every machine that has it, and the
//! environment variable [`VARIABLE`] limits a process to a lower one than the best: for comparisons, and for
//! machines whose best is not their fastest.

use std::sync::OnceLock;

/// The environment variable that limits the features in use: the name of a level.
pub const VARIABLE: &str = "MONEL_CPU_FEATURES";

/// A set of instructions that the kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// Plain Rust, every machine.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// The same with AVX-VNNI, which is VNNI for registers of 256 bits.
    Avx2Vnni,
    /// x86-64 with AVX-512 F, BW, VL and DQ.
    Avx512,
    /// AVX-512 with VNNI.
    Avx512Vnni,
    /// The same with AMX for bytes, where the system grants it.
    Amx,
    /// AArch64 with its baseline vectors.
    Neon,
    /// AArch64 with the dot product instructions.
    NeonDot,
    /// AArch64 with the dot product and the 8-bit matrix instructions.
    NeonI8mm,
}

impl Level {
    /// Every level of this architecture, lowest first.
    #[cfg(target_arch = "x86_64")]
    pub const ALL: &[Self] =
        &[Self::Scalar, Self::Avx2, Self::Avx2Vnni, Self::Avx512, Self::Avx512Vnni, Self::Amx];
    /// Every level of this architecture, lowest first.
    #[cfg(target_arch = "aarch64")]
    pub const ALL: &[Self] = &[Self::Scalar, Self::Neon, Self::NeonDot, Self::NeonI8mm];
    /// Every level of this architecture, lowest first.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub const ALL: &[Self] = &[Self::Scalar];

    /// The name that [`VARIABLE`] takes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx2Vnni => "avx2-vnni",
            Self::Avx512 => "avx512",
            Self::Avx512Vnni => "avx512-vnni",
            Self::Amx => "amx",
            Self::Neon => "neon",
            Self::NeonDot => "dotprod",
            Self::NeonI8mm => "i8mm",
        }
    }

    fn on_this_machine(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Vnni => Self::Avx2.on_this_machine() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.on_this_machine()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => Self::Avx512.on_this_machine() && is_x86_feature_detected!("avx512vnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Amx => Self::Avx512Vnni.on_this_machine() && super::x86::granted(),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            Self::NeonDot => {
                Self::Neon.on_this_machine() && std::arch::is_aarch64_feature_detected!("dotprod")
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

/// Why a level cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// The name is none of this architecture's.
    #[error(
        "{VARIABLE} is '{found}', expected one of {}; this machine has {available}: set one of these, or unset it",
        names(Level::ALL.iter().copied())
    )]
    Unknown {
        /// The name found.
        found: String,
        /// The levels of this machine.
        available: String,
    },
    /// The machine lacks it.
    #[error("{VARIABLE} is '{wanted}', but this machine only has {available}: set one of these, or unset it")]
    Unavailable {
        /// The level asked for.
        wanted: &'static str,
        /// The levels of this machine.
        available: String,
    },
}

fn names(levels: impl Iterator<Item = Level>) -> String {
    levels.map(Level::name).collect::<Vec<_>>().join(", ")
}

impl Isa {
    /// What every machine has.
    pub const SCALAR: Self = Self(Level::Scalar);

    /// The best level of this machine, whatever the environment says.
    pub fn detect() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().next_back().unwrap_or(Self::SCALAR))
    }

    /// The level that [`VARIABLE`] names, or the best one where it is not set (or empty).
    ///
    /// # Errors
    /// [`IsaError`] for an unknown name or a level that this machine lacks.
    pub fn from_env() -> Result<Self, IsaError> {
        match std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) {
            None => Ok(Self::detect()),
            Some(name) => Self::named(&name.to_string_lossy()),
        }
    }

    /// The level of that name.
    ///
    /// # Errors
    /// As [`Isa::from_env`].
    pub fn named(name: &str) -> Result<Self, IsaError> {
        let available = || names(Self::available().map(Self::level));
        match Level::ALL.iter().find(|level| level.name() == name) {
            None => Err(IsaError::Unknown { found: name.to_owned(), available: available() }),
            Some(&level) => Self::new(level)
                .ok_or_else(|| IsaError::Unavailable { wanted: level.name(), available: available() }),
        }
    }

    /// `level`, if this machine has it.
    pub fn new(level: Level) -> Option<Self> {
        level.on_this_machine().then_some(Self(level))
    }

    /// Every level of this machine, lowest first.
    pub fn available() -> impl DoubleEndedIterator<Item = Self> {
        Level::ALL.iter().copied().filter_map(Self::new)
    }

    /// Which level it is.
    pub const fn level(self) -> Level {
        self.0
    }

    /// Its name, as [`VARIABLE`] takes it.
    pub const fn name(self) -> &'static str {
        self.0.name()
    }
}
