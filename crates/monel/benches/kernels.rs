//! Speed of the packed matrix products, beside what the machine allows in the same minute.
//!
//! `cargo bench -p monel --bench kernels [-- Q4_1]`; `MONEL_CPU_FEATURES` chooses a lower instruction set. For every type:
//! GOP/s (one multiply-add is two) of prefill products, with one and two threads, and GB/s of weights read by a decode
//! product. Threads are timed by their own CPU time, so that other programs on the machine count less.

use monel::device::software::simd::{
    Isa, act_row_bytes, gemm_packed, packed_bytes, quantize_act_row, tile_bytes,
};
use monel::quant::BlockType;
use std::hint::black_box;
use std::sync::Barrier;

/// Rows and columns of the weights.
const SHAPES: [(usize, usize); 3] = [(1536, 512), (512, 1536), (896, 4864)];
/// Tokens of a prefill.
const COLUMNS: usize = 504;
/// Weights of a decode product: far more than any cache holds.
const DECODE_BYTES: usize = 96 << 20;
/// Activations of one panel: half of a second-level cache.
const PANEL_BYTES: usize = 400_000;

fn main() {
    let only = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let isa = match Isa::from_env() {
        Ok(isa) => isa,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    };
    println!("instruction set {}", isa.name());
    ceilings(isa);
    let quantized = BlockType::ALL.into_iter().filter(|ty| !ty.is_float());
    for ty in quantized.filter(|ty| format!("{ty:?}").starts_with(&only)) {
        let mut line = format!("{ty:?}");
        for (rows, k) in SHAPES {
            let product = Product::new(isa, ty, k, rows, COLUMNS);
            let operations = 2.0 * (rows * k * COLUMNS) as f64;
            let speed = [1, 2].map(|threads| operations / product.seconds(threads, 15) / 1e9);
            line += &format!("  {rows}x{k}: {:.0} / {:.0}", speed[0], speed[1]);
        }
        let rows = DECODE_BYTES / tile_bytes(ty, 1024) * 16;
        let product = Product::new(isa, ty, 1024, rows, 1);
        let speed = [1, 2].map(|threads| product.weights.len() as f64 / product.seconds(threads, 5) / 1e9);
        println!("{line} GOP/s  decode: {:.1} / {:.1} GB/s", speed[0], speed[1]);
    }
}

struct Product {
    isa: Isa,
    ty: BlockType,
    k: usize,
    rows: usize,
    cols: usize,
    weights: Vec<u8>,
    acts: Vec<u8>,
    stride: usize,
}

impl Product {
    fn new(isa: Isa, ty: BlockType, k: usize, rows: usize, cols: usize) -> Self {
        let k = k / ty.block_values() * ty.block_values();
        let stride = act_row_bytes(k);
        let mut acts = vec![0; cols * stride];
        let x: Vec<f32> = (0..k).map(|i| (i % 13) as f32 - 6.0).collect();
        for row in acts.chunks_exact_mut(stride) {
            quantize_act_row(isa, &x, row).expect("the row has the right size");
        }
        // Ones, so that every page is real memory.
        Self { isa, ty, k, rows, cols, weights: vec![1; packed_bytes(ty, k, rows)], acts, stride }
    }

    /// The time of the slowest thread, each taking a range of tiles.
    fn seconds(&self, threads: usize, repetitions: usize) -> f64 {
        let tiles = self.rows.div_ceil(16);
        timed(threads, repetitions, |thread| {
            let (first, end) = (tiles * thread / threads, tiles * (thread + 1) / threads);
            let rows = (end - first) * 16;
            let mut out = vec![0f32; rows * self.cols];
            let panel = (PANEL_BYTES / self.stride / 24 * 24).max(24);
            move || {
                for col in (0..self.cols).step_by(panel) {
                    let cols = panel.min(self.cols - col);
                    // SAFETY: tiles, columns and outputs lie inside the vectors made for this shape.
                    let done = unsafe {
                        let w = self.weights.as_ptr().add(first * tile_bytes(self.ty, self.k));
                        let acts = self.acts.as_ptr().add(col * self.stride);
                        let out = out.as_mut_ptr().add(col * rows);
                        let (isa, ty, k, stride) = (self.isa, self.ty, self.k, self.stride);
                        gemm_packed(isa, ty, k, w, end - first, rows, acts, stride, cols, out, rows)
                    };
                    assert!(done);
                }
                black_box(&mut out);
            }
        })
    }
}

/// Runs what `make` returns for each thread, all starting together; the best CPU time of the slowest thread.
fn timed<F: FnMut()>(threads: usize, repetitions: usize, make: impl Fn(usize) -> F + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    let run = |thread| {
        let mut work = make(thread);
        let mut best = f64::INFINITY;
        for _ in 0..repetitions {
            barrier.wait();
            let start = cpu_seconds();
            work();
            best = best.min(cpu_seconds() - start);
        }
        best
    };
    std::thread::scope(|scope| {
        let run = &run;
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        handles.into_iter().map(|handle| handle.join().expect("no thread fails")).fold(0.0, f64::max)
    })
}

/// CPU time of this thread.
#[cfg(unix)]
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Time since the first call, where threads have no clock of their own.
#[cfg(not(unix))]
fn cpu_seconds() -> f64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed().as_secs_f64()
}

/// What one and two threads reach without any kernel around it: reading, and integer products on x86-64.
fn ceilings(isa: Isa) {
    let buffer = vec![1u64; DECODE_BYTES / 8];
    for threads in [1, 2] {
        let part = buffer.len() / threads;
        let seconds = timed(threads, 5, |thread| {
            let part = &buffer[thread * part..][..part];
            move || {
                let mut sums = [0u64; 32];
                for chunk in part.as_chunks::<32>().0 {
                    sums.iter_mut().zip(chunk).for_each(|(sum, x)| *sum ^= x);
                }
                black_box(sums);
            }
        });
        let mut line = format!("{threads} threads: read {:.1} GB/s", DECODE_BYTES as f64 / seconds / 1e9);
        if let Some((name, operations, work)) = integer_loop(isa) {
            let seconds = timed(threads, 5, |_| work);
            line += &format!(", {name} {:.0} GOP/s", threads as f64 * operations / seconds / 1e9);
        }
        println!("{line}");
    }
}

#[cfg(target_arch = "x86_64")]
const LOOPS: usize = 1_000_000;

/// Name, operations and body of a loop of independent integer products.
#[cfg(target_arch = "x86_64")]
fn integer_loop(isa: Isa) -> Option<(&'static str, f64, fn())> {
    use monel::device::software::simd::Level;
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn vnni() {
        let x = black_box(_mm512_set1_epi8(1));
        let mut sums = [_mm512_setzero_si512(); 16];
        for _ in 0..LOOPS {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, x, x);
            }
        }
        black_box(sums);
    }

    /// Sums in 16 bits, as four-bit weights allow. The factor changes, or the product would be taken out of the loop.
    #[target_feature(enable = "avx2")]
    fn maddubs() {
        let x = black_box(_mm256_set1_epi8(1));
        let mut sums = [_mm256_setzero_si256(); 12];
        for _ in 0..LOOPS {
            for sum in &mut sums {
                *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(x, *sum));
            }
        }
        black_box(sums);
    }

    match isa.level() {
        // SAFETY: the level is one of this machine's.
        Level::Avx512Vnni => Some(("vpdpbusd", (LOOPS * 16 * 128) as f64, || unsafe { vnni() })),
        // SAFETY: as above.
        Level::Avx2 => Some(("maddubs + add", (LOOPS * 12 * 64) as f64, || unsafe { maddubs() })),
        _ => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn integer_loop(_: Isa) -> Option<(&'static str, f64, fn())> {
    None
}
