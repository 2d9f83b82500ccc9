//! The software device's kernels, one group a family: products, attention, rows (norms, rope, softmax, activations), and
//! quantizing rows. Every kernel runs as the engine runs it: a recorded graph that repeats the op, submitted again and again.
//!
//!     cargo bench -p monel --bench kernels [-- FILTER]        as `mat_mul/Q4_K`, `attention`, `/512`
//!     MONEL_BENCH_THREADS=1,2     numbers of threads; without it one
//!     MONEL_CPU_FEATURES=avx2     a lower instruction set
//!
//! Throughput is in bytes where memory bounds the kernel (weights of few columns, keys and values of a decode step, rows),
//! else in operations ("elements"; a multiply-add is two). `cargo bench --bench ceilings` says what the machine allows.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use monel::device::{Device, software};
use monel::ops::{
    FlashAttention, Glu, GluKind, Masking, MatMul, QuantizeRows, RmsNorm, Rope, RopeKind, RopeScaling,
    SoftMax,
};
use monel::{DType, Graph, Recording, Result, Tensor, Value};
use std::time::Duration;

/// Bytes of weights, or of keys and values, that a graph goes through before it reads any again: more than caches hold.
const COLD: usize = 96 << 20;
/// The inner length and the rows of a weight matrix: a feed-forward block of a small model.
const MATRIX: [usize; 2] = [1024, 1536];
/// A byte that is an ordinary number as f32, f16, bf16, a code, a scale.
const FILL: u8 = 0x3c;

/// A device of some threads, and what the graphs on it share.
struct Bench {
    device: Device,
    threads: usize,
}

impl Bench {
    /// A device for each number of threads that is asked for.
    fn all() -> Vec<Bench> {
        let text = std::env::var("MONEL_BENCH_THREADS").unwrap_or_else(|_| "1".into());
        let open = |threads: usize| {
            let device = software::create(&software::Options { threads, ..software::Options::default() });
            Bench { device: device.unwrap_or_else(|error| panic!("{error}")), threads }
        };
        let number =
            |n: &str| n.parse().unwrap_or_else(|_| panic!("MONEL_BENCH_THREADS={text}: numbers by commas"));
        text.split(',').map(number).map(open).collect()
    }

    /// A tensor whose memory is real and holds ordinary numbers.
    fn tensor(&self, dtype: DType, ne: &[usize]) -> Result<Tensor> {
        let tensor = self.device.tensor(dtype, ne)?;
        self.device.stream().clear(tensor.buffer(), FILL)?.wait()?;
        Ok(tensor)
    }

    /// Positions from `first` on.
    fn positions(&self, first: usize, count: usize) -> Result<Tensor> {
        let tensor = self.device.tensor(DType::I32, &[count])?;
        let bytes: Vec<u8> = (first..first + count).flat_map(|p| (p as i32).to_le_bytes()).collect();
        self.device.stream().upload(&tensor, &bytes)?.wait()?;
        Ok(tensor)
    }

    /// Measures a recording of `repeats` ops that do `work` each.
    fn run(
        &self,
        c: &mut Criterion,
        group: &str,
        name: &str,
        work: Throughput,
        recording: Result<Recording>,
    ) {
        let recording = recording.unwrap_or_else(|error| panic!("{group}/{name}: {error}"));
        let stream = self.device.stream();
        let mut group = c.benchmark_group(group);
        group.throughput(work);
        group.bench_function(BenchmarkId::new(name, format!("{} threads", self.threads)), |b| {
            b.iter(|| {
                stream.submit(&recording).and_then(|s| s.wait()).unwrap_or_else(|error| panic!("{error}"))
            });
        });
        group.finish();
    }
}

fn products(c: &mut Criterion, bench: &Bench) {
    let [k, rows] = MATRIX;
    for natural in DType::STORAGE.into_iter().filter(|t| !t.is_integer()) {
        let dtype = bench.device.weight_type(natural, [k, rows, 1, 1]);
        for columns in [1, 4, 32, 512] {
            // Few columns read weights from memory; many meet one matrix.
            let few = columns <= 4;
            let bytes = dtype.row_bytes(k) * rows;
            let matrices = if few { COLD.div_ceil(bytes) } else { 1 };
            let record = || {
                let x = bench
                    .tensor(if natural.is_quantized() { DType::Q8A } else { DType::F32 }, &[k, columns])?;
                let y = bench.device.tensor(DType::F32, &[rows, columns])?;
                let mut graph = Graph::new("products");
                let (x, y) = (graph.leaf(&x), graph.leaf(&y));
                for _ in 0..matrices {
                    let weights = graph.leaf(&bench.tensor(dtype, &[k, rows])?);
                    graph.apply_into(MatMul, &[weights, x], y)?;
                }
                bench.device.record(&graph)
            };
            let work = match few {
                true => Throughput::Bytes((bytes * matrices) as u64),
                false => Throughput::Elements((2 * k * rows * columns) as u64),
            };
            bench.run(c, "mat_mul", &format!("{natural}/{columns}"), work, record());
        }
    }
}

/// A model's attention: head size, heads, KV heads.
const SHAPES: [(&str, [usize; 3]); 2] = [("64x9x3", [64, 9, 3]), ("256x4x1", [256, 4, 1])];

fn attention(c: &mut Criterion, bench: &Bench) {
    for (shape, [head, heads, kv_heads]) in SHAPES {
        let record = |cache: DType, tokens: usize, depth: usize, layers: usize| {
            let q = bench.tensor(DType::F32, &[head, tokens, heads])?;
            let y = bench.device.tensor(DType::F32, &[head, heads, tokens])?;
            let at = bench.positions(depth - tokens, tokens)?;
            let scale = 1.0 / (head as f32).sqrt();
            let op = FlashAttention { scale, softcap: None, masking: Masking::Causal { window: None } };
            let mut graph = Graph::new("attention");
            let (q, at, y) = (graph.leaf(&q), graph.leaf(&at), graph.leaf(&y));
            for _ in 0..layers {
                let k = graph.leaf(&bench.tensor(cache, &[head, depth, kv_heads])?);
                let v = graph.leaf(&bench.tensor(cache, &[head, depth, kv_heads])?);
                graph.apply_into(op, &[q, k, v, at], y)?;
            }
            bench.device.record(&graph)
        };
        for cache in [DType::F16, DType::Q8_0] {
            for depth in [512, 2048, 4096] {
                let bytes = 2 * cache.row_bytes(head) * depth * kv_heads;
                let layers = COLD.div_ceil(bytes);
                let name = format!("decode {shape} {cache}/{depth}");
                let work = Throughput::Bytes((bytes * layers) as u64);
                bench.run(c, "attention", &name, work, record(cache, 1, depth, layers));
            }
        }
        for tokens in [32, 512] {
            // Two products over the cells that each token sees.
            let operations = 4 * head * heads * tokens * (tokens + 1) / 2;
            let name = format!("prefill {shape} F16/{tokens}");
            let work = Throughput::Elements(operations as u64);
            bench.run(c, "attention", &name, work, record(DType::F16, tokens, tokens, 1));
        }
    }
}

/// Rows of a prompt's batch, and of a decode step.
const ROWS: [usize; 2] = [1, 512];
/// Times a graph repeats an op on rows, so that submitting it is a small share.
const REPEATS: usize = 64;

/// Adds an op on inputs, with its result's place, to a graph.
type Apply<'a> = dyn Fn(&mut Graph, &[Value], Value) -> Result<()> + 'a;

fn rows(c: &mut Criterion, bench: &Bench) {
    // Width of the residual stream, of a feed-forward block, and cells of a row of scores.
    let (width, ffn, cells) = (1024, 2048, 2048);
    for count in ROWS {
        let heads = [64, 9, count];
        let read = |ne: &[usize], tensors: usize| 4 * ne.iter().product::<usize>() * tensors;
        let repeat = |inputs: &[&Tensor], ne: &[usize], apply: &Apply<'_>| {
            let y = bench.device.tensor(DType::F32, ne)?;
            let mut graph = Graph::new("rows");
            let inputs: Vec<_> = inputs.iter().map(|t| graph.leaf(t)).collect();
            let y = graph.leaf(&y);
            (0..REPEATS).try_for_each(|_| apply(&mut graph, &inputs, y))?;
            bench.device.record(&graph)
        };
        let norm = || {
            let (x, w) = (bench.tensor(DType::F32, &[width, count])?, bench.tensor(DType::F32, &[width])?);
            repeat(&[&x, &w], &[width, count], &|g, i, y| g.apply_into(RmsNorm { eps: 1e-5 }, i, y).map(drop))
        };
        let rope = || {
            let (x, at) = (bench.tensor(DType::F32, &heads)?, bench.positions(0, count)?);
            let rope = Rope { kind: RopeKind::Neox, dims: 64, base: 1e4, scaling: RopeScaling::None };
            repeat(&[&x, &at], &heads, &|g, i, y| g.apply_into(rope, i, y).map(drop))
        };
        let soft_max = || {
            let x = bench.tensor(DType::F32, &[cells, count])?;
            repeat(&[&x], &[cells, count], &|g, i, y| g.apply_into(SoftMax { scale: 0.125 }, i, y).map(drop))
        };
        let glu = |kind| {
            let (gate, up) =
                (bench.tensor(DType::F32, &[ffn, count])?, bench.tensor(DType::F32, &[ffn, count])?);
            repeat(&[&gate, &up], &[ffn, count], &|g, i, y| g.apply_into(Glu { kind }, i, y).map(drop))
        };
        for (name, bytes, recording) in [
            ("rms_norm", read(&[width, count], 2), norm()),
            ("rope", read(&heads, 2), rope()),
            ("soft_max", read(&[cells, count], 2), soft_max()),
            ("swiglu", read(&[ffn, count], 3), glu(GluKind::Swiglu)),
            ("geglu", read(&[ffn, count], 3), glu(GluKind::Geglu)),
        ] {
            let work = Throughput::Bytes((bytes * REPEATS) as u64);
            bench.run(c, "rows", &format!("{name}/{count}"), work, recording);
        }
        let quantize = || {
            let (x, y) = (
                bench.tensor(DType::F32, &[width, count])?,
                bench.device.tensor(DType::Q8A, &[width, count])?,
            );
            let mut graph = Graph::new("quantize");
            let (x, y) = (graph.leaf(&x), graph.leaf(&y));
            for _ in 0..REPEATS {
                graph.apply_into(QuantizeRows { to: DType::Q8A }, &[x], y)?;
            }
            bench.device.record(&graph)
        };
        let bytes = (4 * width + DType::Q8A.row_bytes(width)) * count * REPEATS;
        bench.run(c, "quantize", &format!("Q8A/{count}"), Throughput::Bytes(bytes as u64), quantize());
    }
}

fn families(c: &mut Criterion) {
    for bench in Bench::all() {
        products(c, &bench);
        attention(c, &bench);
        rows(c, &bench);
    }
}

criterion_group! {
    name = benches;
    // Kernels repeat within a few per cent; what differs between runs is the machine.
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .without_plots();
    targets = families
}
criterion_main!(benches);
