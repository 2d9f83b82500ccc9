//! The arithmetic of the software device: pure functions on slices and raw memory, one family a file.
//!
//! No threads and no engine types in here. What there is:
//!
//! - [`Isa`]: which instructions to use, found at run time (`isa`).
//! - Quantized weights are repacked once into tiles of 16 rows ([`pack_tile`], `pack`), activations are quantized
//!   row by row ([`quantize_act_row`], `act`), and [`gemm_packed`] multiplies the two, for one column (decode) as
//!   well as for many (prefill).
//! - [`gemm_float`] multiplies F32, F16 and BF16 weights with `f32` activations.
//! - The vector functions of attention, norms and feed-forward layers (`vector`), written once over `lanes`.
//!
//! The instruction sets live in `x86/avx512`, `x86/avx2`, `neon` and `portable`. Each writes the product's loop once;
//! a weight format adds one `impl` of that folder's `Unpack` trait.

mod act;
pub mod attention;
mod float_gemm;
mod gemm;
mod isa;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;
mod portable;
#[cfg(test)]
mod tests;
mod vector;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use act::{ACT_BYTES, BLOCK as ACT_BLOCK};
pub use act::{ActError, act_row_bytes, dequantize_act_row, quantize_act_blocks, quantize_act_row};
pub use float_gemm::gemm_float;
pub use gemm::gemm_packed;
pub(crate) use gemm::{columns_together, fewest_tiles};
pub use isa::{Isa, IsaError, Level, VARIABLE};
pub use pack::{PackError, TILE_ROWS, pack_tile, packed_bytes, tile_bytes, unpack_row, unpack_row_f64};
pub use vector::{
    axpy_f16, bf16_to_f32, dot_f16_f32, dot_f32, exp_sub_sum, f16_to_f32, f32_to_f16, gelu_tanh_mul, max_f32,
    scale, silu_mul, sum_sq,
};
#[cfg(target_arch = "x86_64")]
pub(super) use x86::Tiles;

/// Asks for bytes to be brought into the second cache; a hint, which only x86-64 takes.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    bytes.chunks(64).for_each(|line| prefetch_line(line.as_ptr()));
}

/// Asks for the cache line at an address, which need not be one of the program's.
#[inline(always)]
fn prefetch_line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch changes nothing and cannot fault.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(at.cast())
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
