//! What the engine itself costs, apart from kernels: submitting a replay, synchronizing with nothing new, and a step
//! between two barriers. Run it on an idle machine.
//!
//!     cargo bench -p monel --bench engine [-- THREADS]

use monel::device::{Device, software};
use monel::kernel::{Call, Kernel, RefTensor};
use monel::ops::Op;
use monel::{DType, Desc, Graph, Recording, Result, Stream};
use std::time::Instant;

const STEPS: usize = 300;

/// An op that keeps its threads busy and does nothing, in a number of pieces.
#[derive(Clone, Copy, Debug)]
struct Tick {
    pieces: usize,
    /// Turns of a loop in a piece.
    turns: usize,
}

impl Op for Tick {
    fn name(&self) -> &'static str {
        "tick"
    }
    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        Ok(inputs[0])
    }
    fn supports(&self, _: &[Desc], _: &Desc) -> Result<(), String> {
        Ok(())
    }
    fn kernels(&self, _: &Call<'_>) -> Vec<Kernel> {
        let turns = self.turns;
        vec![Kernel::new(self.pieces, 1, move |_, _| {
            (0..turns).for_each(|i| _ = std::hint::black_box(i));
            Ok(())
        })]
    }
    fn reference(&self, inputs: &[RefTensor], _: &Desc) -> RefTensor {
        inputs[0].clone()
    }
}

/// A graph whose steps each write what the next one reads, so that there is a barrier before every step.
fn dependent(device: &Device, pieces: usize, turns: usize) -> Result<Recording> {
    let tensors = [device.tensor(DType::F32, &[4])?, device.tensor(DType::F32, &[4])?];
    let mut graph = Graph::new("steps");
    let places = tensors.each_ref().map(|t| graph.leaf(t));
    for i in 0..STEPS {
        graph.apply_into(Tick { pieces, turns }, &[places[i % 2]], places[(i + 1) % 2])?;
    }
    device.record(&graph)
}

/// Nanoseconds for a step of a graph that is replayed three deep: the tenth percentile, which is what it costs while
/// nobody else takes the cores (two threads that meet at barriers lose a time slice to every stranger).
fn step(stream: &Stream, recording: &Recording) -> Result<f64> {
    let whole = times(500, || {
        (0..3).try_for_each(|_| stream.submit(recording).map(drop))?;
        stream.synchronize()
    })?;
    Ok(at(whole, 0.1) / (3 * STEPS) as f64)
}

/// The time at a share of the sorted times.
fn at(mut times: Vec<f64>, share: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    times[(times.len() as f64 * share) as usize]
}

/// Nanoseconds that each of `n` runs of `f` takes.
fn times(n: usize, mut f: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
    let mut times = Vec::with_capacity(n);
    for _ in 0..n {
        let began = Instant::now();
        f()?;
        times.push(began.elapsed().as_nanos() as f64);
    }
    Ok(times)
}

fn main() -> Result<()> {
    let threads = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(2);
    let device = software::create(&software::Options { threads, ..software::Options::default() })?;
    let stream = device.stream();
    println!("{} on {threads} threads", device.info().name);

    stream.synchronize()?;
    println!("synchronize, nothing new: {:.0} ns", at(times(10_000, || stream.synchronize())?, 0.5));

    let tiny = dependent(&device, 1, 0)?;
    stream.submit(&tiny)?.wait()?;
    let mut submits = Vec::new();
    for _ in 0..2_000 {
        let began = Instant::now();
        let submission = stream.submit(&tiny)?;
        submits.push(began.elapsed().as_nanos() as f64);
        submission.wait()?;
    }
    println!("submit a replay of {STEPS} steps: {:.0} ns", at(submits, 0.5));
    let whole = at(times(2_000, || stream.submit(&tiny)?.wait())?, 0.5);
    println!("submit and wait, {STEPS} steps of one piece: {:.1} µs", whole / 1e3);
    println!("a step of one piece: {:.0} ns", step(&stream, &tiny)?);
    for pieces in [2, 4, 16] {
        let recording = dependent(&device, pieces, 0)?;
        println!("a step of {pieces} pieces without work: {:.0} ns", step(&stream, &recording)?);
    }
    // With work in them the threads really share the pieces, and meet at every barrier.
    let one = software::create(&software::Options { threads: 1, ..software::Options::default() })?;
    let alone = step(&one.stream(), &dependent(&one, threads, 3_000)?)?;
    let shared = step(&stream, &dependent(&device, threads, 3_000)?)?;
    let ideal = alone / threads as f64;
    println!(
        "a step of {threads} pieces of {ideal:.0} ns: {shared:.0} ns, so a barrier costs {:.0} ns",
        shared - ideal
    );
    Ok(())
}
