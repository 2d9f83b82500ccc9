//! What the engine itself costs, apart from kernels: submitting a replay, synchronizing with nothing new, and a step
//! between two barriers. Prints medians; run it on an idle machine.
//!
//!     cargo bench -p monel --bench engine [-- THREADS]

use monel::device::{Device, software};
use monel::{DType, Graph, Recording};
use std::time::Instant;

const STEPS: usize = 300;

/// A graph whose steps each write what the next one reads, through a buffer, so that every step has a barrier.
fn dependent(device: &Device, rows: usize, width: usize) -> monel::Result<Recording> {
    let tensors = [device.tensor(DType::F32, &[width, rows])?, device.tensor(DType::F32, &[width, rows])?];
    let mut graph = Graph::new("steps");
    let places = tensors.each_ref().map(|t| graph.leaf(t));
    for i in 0..STEPS {
        graph.apply_into(
            monel::ops::Scale { scale: 0.5, bias: 1.0 },
            &[places[i % 2]],
            places[(i + 1) % 2],
        )?;
    }
    device.record(&graph)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The median of nanoseconds that `f` takes, over `n` runs.
fn measure(n: usize, mut f: impl FnMut() -> monel::Result<()>) -> monel::Result<f64> {
    let mut times = Vec::with_capacity(n);
    for _ in 0..n {
        let began = Instant::now();
        f()?;
        times.push(began.elapsed().as_nanos() as f64);
    }
    Ok(median(times))
}

fn main() -> monel::Result<()> {
    let threads = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(2);
    let device = software::create(&software::Options { threads, ..software::Options::default() })?;
    let stream = device.stream();
    println!("{} on {threads} threads", device.info().name);

    stream.synchronize()?;
    println!("synchronize, nothing new: {:.0} ns", measure(10_000, || stream.synchronize())?);

    // One row of four floats: nothing to share, the queue's thread runs it alone.
    let tiny = dependent(&device, 1, 4)?;
    stream.submit(&tiny)?.wait()?;
    let mut submits = Vec::new();
    for _ in 0..2_000 {
        let began = Instant::now();
        let submission = stream.submit(&tiny)?;
        submits.push(began.elapsed().as_nanos() as f64);
        submission.wait()?;
    }
    println!("submit a replay of {STEPS} steps: {:.0} ns", median(submits));
    let whole = measure(2_000, || stream.submit(&tiny)?.wait())?;
    println!("submit and wait, {STEPS} steps of one piece: {:.1} µs", whole / 1e3);

    // Two pieces of 256 rows (the grain of short rows): the threads meet at every barrier.
    let shared = dependent(&device, 512, 4)?;
    stream.submit(&shared)?.wait()?;
    let depth = 3;
    let batches = measure(300, || {
        (0..depth).try_for_each(|_| stream.submit(&shared).map(drop))?;
        stream.synchronize()
    })?;
    let alone = {
        let one = software::create(&software::Options { threads: 1, ..software::Options::default() })?;
        let stream = one.stream();
        let recording = dependent(&one, 512, 4)?;
        stream.submit(&recording)?.wait()?;
        measure(300, || {
            (0..depth).try_for_each(|_| stream.submit(&recording).map(drop))?;
            stream.synchronize()
        })?
    };
    let step = |ns: f64| ns / (depth * STEPS) as f64;
    println!(
        "a step of two pieces: {:.0} ns on {threads} threads, {:.0} ns on one",
        step(batches),
        step(alone)
    );
    println!(
        "a barrier: {:.0} ns (a step less its share of the work)",
        step(batches) - step(alone) / threads.min(2) as f64
    );
    Ok(())
}
