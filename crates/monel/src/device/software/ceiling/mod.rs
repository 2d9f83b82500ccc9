//! What the machine allows: integer products, float multiply-adds and reading, measured where and when they are quoted.
//!
//! A speed says little without its ceiling, and ceilings move: clocks fall, neighbours take the caches. So the program
//! measures them in the process and the minute in which it measures itself (`monel bench`), and `cargo bench --bench
//! ceilings` prints them all. Each is a loop of nothing but the instructions in question ([`paths`]: `x86`, `aarch64`), or
//! of loads from memory that no cache holds ([`read`]).
//!
//! A ceiling is what the loop reaches while the others keep their cores busy too: the best of a few rounds, each
//! from the first thread's start to the last one's end.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod read;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use read::read;

use super::simd::{Isa, Level};
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

/// How long one round of a loop takes at least: thousands of times what starting the threads together costs.
const ROUND: Duration = Duration::from_millis(4);
const ROUNDS: usize = 7;

/// What a path computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Products of eight-bit integers, summed in 32 bits (or in 16 for a while).
    Int8,
    /// Multiply-adds of f32 numbers.
    Float,
}

impl Kind {
    /// `int8` or `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Int8 => "int8",
            Kind::Float => "f32",
        }
    }
}

/// A way to multiply and add that this machine has.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    name: &'static str,
    kind: Kind,
    /// The levels whose kernels may take it; none of them for a path that is only measured.
    levels: &'static [Level],
    /// Operations in a turn of the loop; a multiply-add counts as two.
    operations: usize,
    /// Runs that many turns. Only called on machines that have the instructions.
    turns: fn(usize),
}

impl Path {
    /// The instructions, as `vpdpbusd zmm`.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// What it computes.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether kernels of that instruction set may take it.
    pub fn serves(&self, isa: Isa) -> bool {
        self.levels.contains(&isa.level())
    }

    /// Operations per second that `threads` threads reach together; a multiply-add counts as two.
    pub fn measure(&self, threads: usize) -> f64 {
        let mut turns = 1_000;
        loop {
            let began = Instant::now();
            (self.turns)(turns);
            if began.elapsed() >= ROUND {
                break;
            }
            turns *= 2;
        }
        let seconds = best_round(threads, ROUNDS, |_| (self.turns)(turns));
        (threads.max(1) * turns * self.operations) as f64 / seconds
    }
}

/// Every path of this machine.
pub fn paths() -> Vec<Path> {
    #[cfg(target_arch = "x86_64")]
    return x86::paths();
    #[cfg(target_arch = "aarch64")]
    return aarch64::paths();
    #[allow(unreachable_code)] // the other architectures have only plain Rust
    Vec::new()
}

/// The fastest path of a kind that kernels of `isa` may take, and its operations per second on `threads` threads;
/// `None` where the kernels are plain Rust, whose instructions the compiler chooses.
pub fn fastest(isa: Isa, kind: Kind, threads: usize) -> Option<(Path, f64)> {
    let paths = paths().into_iter().filter(|path| path.kind == kind && path.serves(isa));
    paths.map(|path| (path, path.measure(threads))).max_by(|a, b| a.1.total_cmp(&b.1))
}

/// Seconds of the best of some rounds in which `threads` threads start `work` together, from the first one's start to
/// the last one's end.
fn best_round(threads: usize, rounds: usize, work: impl Fn(usize) + Sync) -> f64 {
    let barrier = OnceLock::new();
    let one = |thread: usize| -> Vec<(Instant, Instant)> {
        // As many as there are in the end, which the last of them says.
        let barrier: &Barrier = barrier.wait();
        let round = |_| {
            barrier.wait();
            let began = Instant::now();
            work(thread);
            (began, Instant::now())
        };
        (0..rounds).map(round).collect()
    };
    let times: Vec<Vec<(Instant, Instant)>> = std::thread::scope(|scope| {
        let one = &one;
        let spawn = |thread| std::thread::Builder::new().spawn_scoped(scope, move || one(thread));
        // A system that gives no more threads has no higher ceiling either.
        let others: Vec<_> = (1..threads).map_while(|thread| spawn(thread).ok()).collect();
        barrier.get_or_init(|| Barrier::new(others.len() + 1));
        let own = one(0);
        others.into_iter().filter_map(|other| other.join().ok()).chain([own]).collect()
    });
    let round = |r: usize| {
        let began = times.iter().map(|t| t[r].0).min();
        let ended = times.iter().map(|t| t[r].1).max();
        began.zip(ended).map_or(f64::INFINITY, |(began, ended)| (ended - began).as_secs_f64())
    };
    (0..rounds).map(round).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_vector_level_of_this_machine_has_both_ceilings() {
        let paths = paths();
        for isa in Isa::available().filter(|isa| isa.level() != Level::Scalar) {
            for kind in [Kind::Int8, Kind::Float] {
                let path = paths.iter().find(|path| path.kind == kind && path.serves(isa));
                assert!(path.is_some(), "{} has no {} path", isa.name(), kind.name());
            }
        }
        assert!(paths.iter().all(|path| !path.serves(Isa::SCALAR)));
    }

    #[test]
    fn a_round_lasts_until_the_last_thread_is_done() {
        let pause = |thread| std::thread::sleep(Duration::from_millis(if thread == 2 { 30 } else { 0 }));
        assert!(best_round(3, 2, pause) >= 0.03);
        assert!(best_round(0, 1, |thread| assert_eq!(thread, 0)).is_finite());
    }

    #[test]
    fn paths_and_reading_give_rates() {
        for path in paths() {
            let rate = path.measure(1);
            assert!(rate.is_finite() && rate > 0.0, "{}: {rate}", path.name());
        }
        assert!(read(1).is_some_and(|rate| rate.is_finite() && rate > 0.0));
    }
}
