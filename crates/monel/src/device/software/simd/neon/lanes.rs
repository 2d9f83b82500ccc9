//! Four floats in a 128-bit register.

use super::super::lanes::Lanes;
use std::arch::aarch64::*;

/// Four floats.
#[derive(Clone, Copy)]
pub(in super::super) struct F32x4(float32x4_t);

// SAFETY of all blocks below: the trait's contract, which is that NEON is there and pointers are valid for N values.
impl Lanes for F32x4 {
    const N: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { vdupq_n_f32(x) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { vreinterpretq_f32_u8(vld1q_u8(p.cast())) })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: see above.
        unsafe { vst1q_u8(p.cast(), vreinterpretq_u8_f32(self.0)) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: see above.
        Self(unsafe { vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p.cast()))) })
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        // SAFETY: see above.
        unsafe { vst1_u8(p.cast(), vreinterpret_u8_f16(vcvt_f16_f32(self.0))) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: see above.
        Self(unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(p.cast())))) })
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        // SAFETY: see above.
        unsafe {
            let bytes = vcreate_s8(u64::from(p.cast::<u32>().read_unaligned()));
            Self(vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes)))))
        }
    }
    #[inline(always)]
    unsafe fn splat_f16(p: *const u16) -> Self {
        // SAFETY: see above.
        Self(unsafe { vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(p.read_unaligned()))) })
    }
    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { vaddq_f32(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { vmulq_f32(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { vdivq_f32(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { vfmaq_f32(b.0, self.0, a.0) })
    }
    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { vmaxq_f32(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn min(self, o: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { vminq_f32(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { vabsq_f32(self.0) })
    }
    #[inline(always)]
    unsafe fn max_bits(self, o: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let bits = vmaxq_u32(vreinterpretq_u32_f32(self.0), vreinterpretq_u32_f32(o.0));
            Self(vreinterpretq_f32_u32(bits))
        }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { vrndnq_f32(self.0) })
    }
    #[inline(always)]
    unsafe fn exp2(self) -> Self {
        // SAFETY: see above.
        unsafe {
            let biased = vaddq_s32(vcvtnq_s32_f32(self.0), vdupq_n_s32(127));
            Self(vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased)))
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: see above.
        unsafe { vaddvq_f32(self.0) }
    }
    #[inline(always)]
    unsafe fn reduce_max(self) -> f32 {
        // SAFETY: see above.
        unsafe { vmaxvq_f32(self.0) }
    }
    #[inline(always)]
    unsafe fn reduce_max_bits(self) -> f32 {
        // SAFETY: see above.
        f32::from_bits(unsafe { vmaxvq_u32(vreinterpretq_u32_f32(self.0)) })
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8) {
        // SAFETY: see above.
        unsafe {
            let half = vmovn_s32(vcvtnq_s32_f32(self.0));
            let bytes = vreinterpret_u32_s8(vmovn_s16(vcombine_s16(half, half)));
            p.cast::<u32>().write_unaligned(vget_lane_u32::<0>(bytes));
        }
    }
}
