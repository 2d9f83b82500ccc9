//! AMX: the permission to use its tile registers, and their shapes.

use std::arch::asm;
use std::marker::PhantomData;
use std::sync::OnceLock;

/// Whether the processor has the tiles and their products of bytes, and the system lets this process use them. Asks the
/// system once: where it grants the request, all threads of the process may use the tiles from then on.
pub(in super::super) fn granted() -> bool {
    static GRANTED: OnceLock<bool> = OnceLock::new();
    *GRANTED.get_or_init(|| in_processor() && ask())
}

fn in_processor() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const TILE_AND_INT8: u32 = 1 << 24 | 1 << 25;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & TILE_AND_INT8 == TILE_AND_INT8
}

/// The system keeps 8 KiB more for each thread that uses tiles, and therefore wants to be asked.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn ask() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XTILEDATA: u64 = 18;
    let status: i64;
    // SAFETY: a system call that takes two numbers and touches no memory of the process; it fails where the system does
    // not know it.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => status,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack, nomem),
        );
    }
    status == 0
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
fn ask() -> bool {
    false
}

/// This thread's tile registers with shapes for products of bytes: `tmm0` to `tmm3` are sums (16 by 16 of 32 bits), `tmm4`
/// and `tmm5` 16 rows of the left operand, `tmm6` and `tmm7` the right operand's groups of four. They are given back
/// when this is dropped, so that a switch of threads has nothing to save.
pub(in super::super::super) struct Tiles(PhantomData<*const ()>);

impl Tiles {
    /// For products of `depth` values, a multiple of 4 and at most 64.
    ///
    /// # Safety
    /// [`granted`] is true.
    #[inline(always)]
    pub unsafe fn new(depth: u8) -> Tiles {
        #[repr(C, align(64))]
        struct Shapes {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            row_bytes: [u16; 16],
            rows: [u8; 16],
        }
        let mut shapes =
            Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (tile, (row_bytes, rows)) in shapes.row_bytes.iter_mut().zip(&mut shapes.rows).take(8).enumerate()
        {
            (*row_bytes, *rows) = match tile {
                0..4 => (64, 16),
                4..6 => (depth.into(), 16),
                _ => (64, depth / 4),
            };
        }
        // SAFETY: reads 64 bytes of valid shapes; the caller vouches for the instructions.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack, preserves_flags, readonly))
        };
        Tiles(PhantomData)
    }
}

impl Drop for Tiles {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the instructions are there, as `new` was promised; no one uses this thread's tiles any more.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
    }
}
