//! A vector of floats, whatever its width: what lets norms, softmax, activations and float products be written
//! once for all instruction sets.
//!
//! The operations are `#[inline(always)]` and carry no target feature of their own; [`dispatch!`] puts them into a
//! function that has the features, where the compiler turns each into its instruction. That is also the contract
//! of every `unsafe` here: call it only below `dispatch!` (or on a machine that has the instructions), with
//! pointers that are valid for `N` values (`n` where a count is given); no alignment is needed.

/// `N` floats in a register.
pub(super) trait Lanes: Copy {
    /// Lanes of the vector: 4, 8 or 16.
    const N: usize;

    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    unsafe fn store(self, p: *mut f32);
    unsafe fn load_f16(p: *const u16) -> Self;
    /// Rounds to nearest even.
    unsafe fn store_f16(self, p: *mut u16);
    unsafe fn load_bf16(p: *const u16) -> Self;
    unsafe fn load_i8(p: *const i8) -> Self;
    /// One f16 number in all lanes.
    unsafe fn splat_f16(p: *const u16) -> Self;
    unsafe fn add(self, o: Self) -> Self;
    unsafe fn mul(self, o: Self) -> Self;
    unsafe fn div(self, o: Self) -> Self;
    /// `self * a + b`, rounded once.
    unsafe fn fma(self, a: Self, b: Self) -> Self;
    /// The larger one; NaN where `o` is NaN.
    unsafe fn max(self, o: Self) -> Self;
    /// The smaller one; NaN where `o` is NaN.
    unsafe fn min(self, o: Self) -> Self;
    unsafe fn abs(self) -> Self;
    /// The larger bit pattern: for magnitudes the larger number, and NaN wins.
    unsafe fn max_bits(self, o: Self) -> Self;
    /// To the nearest integer, ties to even.
    unsafe fn round(self) -> Self;
    /// 2 to the power of `self`, an integer in -127..=127; -127 gives zero.
    unsafe fn exp2(self) -> Self;
    unsafe fn sum(self) -> f32;
    unsafe fn reduce_max(self) -> f32;
    unsafe fn reduce_max_bits(self) -> f32;
    /// The sums of four vectors.
    #[inline(always)]
    unsafe fn sum4([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        // SAFETY: passed on to the caller.
        unsafe { [a.sum(), b.sum(), c.sum(), d.sum()] }
    }
    /// The largest bit patterns of four vectors.
    #[inline(always)]
    unsafe fn max4_bits([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        // SAFETY: passed on to the caller.
        unsafe { [a.reduce_max_bits(), b.reduce_max_bits(), c.reduce_max_bits(), d.reduce_max_bits()] }
    }
    /// Stores lanes that are integers in -127..=127 as bytes.
    unsafe fn store_i8(self, p: *mut i8);

    /// The first `n < N` values; `fill` in the other lanes.
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize, fill: f32) -> Self {
        let mut buffer = [fill; 16];
        // SAFETY: the caller vouches for n values; the buffer has at least N.
        unsafe {
            std::ptr::copy_nonoverlapping(p, buffer.as_mut_ptr(), n);
            Self::load(buffer.as_ptr())
        }
    }

    /// The first `n < N` values, zero in the other lanes.
    #[inline(always)]
    unsafe fn load_f16_part(p: *const u16, n: usize) -> Self {
        let mut buffer = [0u16; 16];
        // SAFETY: as in `load_part`.
        unsafe {
            std::ptr::copy_nonoverlapping(p, buffer.as_mut_ptr(), n);
            Self::load_f16(buffer.as_ptr())
        }
    }

    /// The first `n < N` values, zero in the other lanes.
    #[inline(always)]
    unsafe fn load_bf16_part(p: *const u16, n: usize) -> Self {
        let mut buffer = [0u16; 16];
        // SAFETY: as in `load_part`.
        unsafe {
            std::ptr::copy_nonoverlapping(p, buffer.as_mut_ptr(), n);
            Self::load_bf16(buffer.as_ptr())
        }
    }

    /// Stores the first `n < N` lanes.
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        let mut buffer = [0f32; 16];
        // SAFETY: as in `load_part`.
        unsafe {
            self.store(buffer.as_mut_ptr());
            std::ptr::copy_nonoverlapping(buffer.as_ptr(), p, n);
        }
    }

    /// Stores the first `n < N` lanes as f16.
    #[inline(always)]
    unsafe fn store_f16_part(self, p: *mut u16, n: usize) {
        let mut buffer = [0u16; 16];
        // SAFETY: as in `load_part`.
        unsafe {
            self.store_f16(buffer.as_mut_ptr());
            std::ptr::copy_nonoverlapping(buffer.as_ptr(), p, n);
        }
    }
}

/// Calls a function that is generic over [`Lanes`] with the vectors of an [`Isa`](super::Isa), inside a function that
/// has the instruction set enabled. The arguments are local variables, given with their types.
macro_rules! dispatch {
    ($isa:expr, $f:ident($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)?) => {{
        match $isa.level() {
            #[cfg(target_arch = "x86_64")]
            $crate::device::software::simd::Level::Avx512
            | $crate::device::software::simd::Level::Avx512Vnni
            | $crate::device::software::simd::Level::Amx => {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
                fn run($($arg: $ty),*) $(-> $ret)? {
                    $f::<$crate::device::software::simd::x86::F32x16>($($arg),*)
                }
                // SAFETY: an Isa of this level exists only where the machine has these features.
                unsafe { run($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            $crate::device::software::simd::Level::Avx2
            | $crate::device::software::simd::Level::Avx2Vnni => {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn run($($arg: $ty),*) $(-> $ret)? {
                    $f::<$crate::device::software::simd::x86::F32x8>($($arg),*)
                }
                // SAFETY: as above.
                unsafe { run($($arg),*) }
            }
            #[cfg(target_arch = "aarch64")]
            $crate::device::software::simd::Level::Neon
            | $crate::device::software::simd::Level::NeonDot
            | $crate::device::software::simd::Level::NeonI8mm => {
                #[target_feature(enable = "neon")]
                fn run($($arg: $ty),*) $(-> $ret)? {
                    $f::<$crate::device::software::simd::neon::F32x4>($($arg),*)
                }
                // SAFETY: as above.
                unsafe { run($($arg),*) }
            }
            _ => $f::<$crate::device::software::simd::portable::Array>($($arg),*),
        }
    }};
}
pub(super) use dispatch;
