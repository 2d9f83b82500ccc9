//! Measures attention of few tokens through the engine: `attention [DEVICE] [OPS] [DEPTH,..]`.
//!
//! A graph repeats the op (each takes the one before as its queries, so that they run one after the other) over caches
//! that are larger together than the device's caches. Prints microseconds for one op and how fast K and V were read, and
//! compares two heads with sums in f64. Run it with `--release`.

use half::f16;
use monel::ops::{FlashAttention, Masking};
use monel::{DType, Device, DeviceKind, Graph, Recording, Result, Stream, Tensor, device};
use std::time::{Duration, Instant};

/// A model's attention.
struct Shape {
    name: &'static str,
    head: usize,
    heads: usize,
    kv_heads: usize,
    tokens: usize,
    window: Option<usize>,
}

const SHAPES: [Shape; 9] = [
    Shape { name: "Llama 8B", head: 128, heads: 32, kv_heads: 8, tokens: 1, window: None },
    Shape { name: "Llama 1B", head: 64, heads: 32, kv_heads: 8, tokens: 1, window: None },
    Shape { name: "SmolLM2 135M", head: 64, heads: 9, kv_heads: 3, tokens: 1, window: None },
    Shape { name: "Gemma 3 270M", head: 256, heads: 4, kv_heads: 1, tokens: 1, window: None },
    Shape { name: "Gemma 3, window", head: 256, heads: 4, kv_heads: 1, tokens: 1, window: Some(512) },
    Shape { name: "Qwen2.5 0.5B", head: 64, heads: 14, kv_heads: 2, tokens: 1, window: None },
    Shape { name: "Llama 8B", head: 128, heads: 32, kv_heads: 8, tokens: 2, window: None },
    Shape { name: "Llama 8B", head: 128, heads: 32, kv_heads: 8, tokens: 4, window: None },
    Shape { name: "Llama 8B", head: 128, heads: 32, kv_heads: 8, tokens: 8, window: None },
];
/// Bytes of K and V that are gone through before any is read again.
const CACHES: usize = 300 << 20;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let device = device::open(args.next().as_deref(), 1)?;
    let quick = device.info().kind != DeviceKind::Discrete;
    let ops = args.next().map_or(Ok(if quick { 3 } else { 50 }), |n| n.parse())?;
    let depths = args.next().unwrap_or_else(|| "16,512,4096".into());
    let depths = depths.split(',').map(str::parse).collect::<std::result::Result<Vec<usize>, _>>()?;
    let stream = device.stream();
    println!("{}, {ops} ops a graph", device.info().name);
    // Clocks rise from idle only under load.
    let warm = chain(&device, 200)?;
    let until = Instant::now() + Duration::from_millis(if quick { 10 } else { 350 });
    while Instant::now() < until {
        stream.submit(&warm)?.wait()?;
    }
    println!("a step of nothing behind a barrier: {:.2} us", time(&stream, &warm, quick)? / 200.0);
    for shape in &SHAPES {
        measure(&device, &stream, shape, ops, &depths, quick)?;
    }
    Ok(())
}

/// Steps that do nothing much, each after the other.
fn chain(device: &Device, steps: usize) -> Result<Recording> {
    let x = device.tensor(DType::F32, &[4])?;
    let mut graph = Graph::new("chain");
    let mut value = graph.leaf(&x);
    for _ in 0..steps {
        value = graph.scale(value, 1.0, 0.0)?;
    }
    device.record(&graph)
}

/// Microseconds of a recording that is submitted again and again: the best of some runs.
fn time(stream: &Stream, recording: &Recording, quick: bool) -> Result<f64> {
    let (runs, submissions) = if quick { (1, 1) } else { (7, 6) };
    drop(stream.submit(recording)?);
    stream.synchronize()?;
    let mut best = f64::INFINITY;
    for _ in 0..runs {
        let began = Instant::now();
        (0..submissions).try_for_each(|_| stream.submit(recording).map(drop))?;
        stream.synchronize()?;
        best = best.min(began.elapsed().as_secs_f64() * 1e6 / submissions as f64);
    }
    Ok(best)
}

fn measure(
    device: &Device,
    stream: &Stream,
    shape: &Shape,
    ops: usize,
    depths: &[usize],
    quick: bool,
) -> Result<()> {
    let &Shape { name, head, heads, kv_heads, tokens, window } = shape;
    let context = depths.iter().max().map_or(16, |n| *n).next_multiple_of(256);
    let cells = head * context * kv_heads;
    let count = if quick { 1 } else { (CACHES / (cells * 4)).clamp(1, ops) };
    let mut random = Random(1);
    let mut halves = |n: usize| (0..n).map(|_| f16::from_f32(random.next())).collect::<Vec<f16>>();
    let (keys, values) = (halves(cells), halves(cells));
    let bytes = |x: &[f16]| x.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let (key_bytes, value_bytes) = (bytes(&keys), bytes(&values));
    let mut caches = Vec::new();
    for _ in 0..count {
        let pair = [0; 2].map(|_| device.tensor(DType::F16, &[head, context, kv_heads]));
        let [k, v] = pair;
        let (k, v) = (k?, v?);
        drop(stream.upload(&k, &key_bytes)?);
        drop(stream.upload(&v, &value_bytes)?);
        caches.push((k, v));
    }
    let query: Vec<f32> = (0..head * heads * tokens).map(|_| random.next() * 3.0).collect();
    let q = device.tensor(DType::F32, &[head, heads, tokens])?;
    drop(stream.upload(&q, &query.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())?);
    let positions = device.tensor(DType::I32, &[tokens])?;
    let y = device.tensor(DType::F32, &[head, heads, tokens])?;
    let scale = 1.0 / (head as f32).sqrt();
    let op = FlashAttention { scale, softcap: None, masking: Masking::Causal { window } };
    let build = |ops: usize, to: Option<&Tensor>| {
        let mut graph = Graph::new("attention");
        let (mut x, positions) = (graph.leaf(&q), graph.leaf(&positions));
        for i in 0..ops {
            let (k, v) = &caches[i % count];
            let (k, v) = (graph.leaf(k), graph.leaf(v));
            let q = graph.permute(x, [0, 2, 1, 3])?;
            x = graph.flash_attention([q, k, v], Some(positions), op)?;
        }
        if let Some(to) = to {
            let to = graph.leaf(to);
            graph.copy_into(x, to)?;
        }
        device.record(&graph)
    };
    let (once, many) = (build(1, Some(&y))?, build(ops, None)?);
    for &depth in depths {
        let depth = depth.max(tokens);
        let at: Vec<u8> = (depth - tokens..depth).flat_map(|p| (p as i32).to_le_bytes()).collect();
        drop(stream.upload(&positions, &at)?);
        drop(stream.submit(&once)?);
        let found = stream.download(&y)?.wait()?;
        let mut error = 0f64;
        for (t, h) in [(0, 0), (tokens - 1, heads - 1)] {
            let row = head * (h + heads * t);
            let end = depth - tokens + t + 1;
            let first = end - window.unwrap_or(end).min(end);
            let base = context * head * (h / (heads / kv_heads));
            let want = reference(&query[row..row + head], &keys[base..], &values[base..], first..end, scale);
            let found =
                found[4 * row..4 * (row + head)].as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
            let largest = want.iter().fold(0f64, |a, w| a.max(w.abs()));
            error = found.zip(&want).fold(error, |e, (f, w)| e.max((f64::from(f) - w).abs() / largest));
        }
        let micros = time(stream, &many, quick)? / ops as f64;
        let seen = window.unwrap_or(depth).min(depth);
        let speed = (seen * head * kv_heads * 4) as f64 / micros / 1e3;
        // Sums of f32 over thousands of cells stay within 1e-5 of the largest element.
        let verdict = if error < 1e-5 { "ok" } else { "WRONG" };
        println!(
            "{name:16} {tokens} tokens, depth {depth:5}: {micros:8.2} us {speed:7.0} GB/s, error {error:.1e} {verdict}"
        );
    }
    Ok(())
}

/// One head's result in f64.
fn reference(q: &[f32], keys: &[f16], values: &[f16], seen: std::ops::Range<usize>, scale: f32) -> Vec<f64> {
    let head = q.len();
    let row = |cells: &[f16], j: usize| -> Vec<f64> {
        cells[j * head..(j + 1) * head].iter().map(|x| f64::from(x.to_f32())).collect()
    };
    let score =
        |j| row(keys, j).iter().zip(q).map(|(k, &q)| k * f64::from(q)).sum::<f64>() * f64::from(scale);
    let scores: Vec<f64> = seen.clone().map(score).collect();
    let top = scores.iter().fold(f64::NEG_INFINITY, |a, s| a.max(*s));
    let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut sum = vec![0.0; head];
    for (weight, j) in weights.iter().zip(seen) {
        sum.iter_mut().zip(row(values, j)).for_each(|(sum, v)| *sum += weight / total * v);
    }
    sum
}

/// Numbers from -1 to 1 (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}
