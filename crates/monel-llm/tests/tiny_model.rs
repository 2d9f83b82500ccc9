//! Tiny models made here, against a forward pass in `f64` that is written down here too: with every set of CPU
//! features that this machine has, prompts and decoding. Small enough for processors that are emulated.

use monel::device::software::{self, simd::Isa};
use monel::quant::{BlockType, dequantize_row_f64, quantize_row};
use monel::{DType, Device};
use monel_gguf::{GgmlType, GgufWriter};
use monel_llm::{Context, ContextOptions, Model, Sampling};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

const WIDTH: usize = 256;
const LAYERS: usize = 2;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD: usize = 64;
const FFN: usize = 96;
const VOCABULARY: usize = 50;
const EPS: f64 = 1e-5;
const BASE: f64 = 10_000.0;
/// More than one panel of columns of every kernel, and not a multiple of any.
const PROMPT: usize = 19;
const DECODED: usize = 4;

/// Normal enough: the sum of four uniform numbers, deviation 1.
struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        ((0..4).map(|_| self.uniform()).sum::<f64>() - 2.0) * 3f64.sqrt()
    }
}

/// A matrix or vector as the file stores it and as exact numbers.
#[derive(Clone)]
struct Stored {
    ty: BlockType,
    rows: usize,
    bytes: Vec<u8>,
    values: Vec<f64>,
}

impl Stored {
    fn new(ty: BlockType, k: usize, rows: usize, mut value: impl FnMut() -> f64) -> Stored {
        let mut bytes = vec![0; rows * ty.row_bytes(k)];
        let mut values = vec![0.0; rows * k];
        for (bytes, values) in bytes.chunks_exact_mut(ty.row_bytes(k)).zip(values.chunks_exact_mut(k)) {
            let row: Vec<f32> = (0..k).map(|_| value() as f32).collect();
            quantize_row(ty, &row, bytes).expect("a whole row");
            dequantize_row_f64(ty, bytes, values).expect("a whole row");
        }
        Stored { ty, rows, bytes, values }
    }

    /// `W x`.
    fn times(&self, x: &[f64]) -> Vec<f64> {
        let rows = self.values.chunks_exact(x.len());
        rows.map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    }
}

type Tensors = HashMap<String, Stored>;

/// The tensors of a llama; `types` are taken in turn by its matrices.
fn tensors(types: &[BlockType], long_only: &[BlockType]) -> Tensors {
    let mut random = Random(5);
    let mut all = Tensors::new();
    let (mut next, mut next_long) = (types.iter().cycle(), long_only.iter().chain(types).cycle());
    let mut matrix = |name: String, k: usize, rows: usize| {
        // Blocks of 256 values fit into rows of the width only.
        let ty = if k == WIDTH { next_long.next() } else { next.next() };
        let deviation = 1.0 / (k as f64).sqrt();
        let stored = Stored::new(*ty.expect("types"), k, rows, || random.normal() * deviation);
        all.insert(name, stored);
    };
    for layer in 0..LAYERS {
        let name = |suffix: &str| format!("blk.{layer}.{suffix}.weight");
        matrix(name("attn_q"), WIDTH, HEADS * HEAD);
        matrix(name("attn_k"), WIDTH, KV_HEADS * HEAD);
        matrix(name("attn_v"), WIDTH, KV_HEADS * HEAD);
        matrix(name("attn_output"), HEADS * HEAD, WIDTH);
        matrix(name("ffn_gate"), WIDTH, FFN);
        matrix(name("ffn_up"), WIDTH, FFN);
        matrix(name("ffn_down"), FFN, WIDTH);
    }
    matrix("output.weight".into(), WIDTH, VOCABULARY);
    matrix("token_embd.weight".into(), WIDTH, VOCABULARY);
    let norms = (0..LAYERS).flat_map(|l| ["attn", "ffn"].map(|n| format!("blk.{l}.{n}_norm.weight")));
    for name in norms.chain(["output_norm.weight".to_string()]) {
        let stored = Stored::new(BlockType::F32, WIDTH, 1, || 1.0 + 0.2 * random.normal());
        all.insert(name, stored);
    }
    all
}

fn write(path: &Path, tensors: &Tensors) {
    write_with(path, tensors, LAYERS);
}

fn write_with(path: &Path, tensors: &Tensors, layers: usize) {
    write_numbers(path, tensors, layers, &[]);
}

/// `numbers` take the place of those of every model.
fn write_numbers(path: &Path, tensors: &Tensors, layers: usize, numbers: &[(&str, f32)]) {
    let mut header = GgufWriter::new();
    let number = |n: usize| n as u32;
    let mut set = |key: &str, value: monel_gguf::Value| {
        header.set(key, value).expect("a key");
    };
    set("general.architecture", "llama".into());
    set("tokenizer.ggml.model", "none".into());
    set("llama.block_count", number(layers).into());
    set("llama.embedding_length", number(WIDTH).into());
    set("llama.feed_forward_length", number(FFN).into());
    set("llama.attention.head_count", number(HEADS).into());
    set("llama.attention.head_count_kv", number(KV_HEADS).into());
    set("llama.context_length", 64u32.into());
    let usual = [("attention.layer_norm_rms_epsilon", EPS as f32), ("rope.freq_base", BASE as f32)];
    let usual = usual.iter().filter(|(key, _)| numbers.iter().all(|(other, _)| other != key));
    usual.chain(numbers).for_each(|(key, number)| set(&format!("llama.{key}"), (*number).into()));
    let mut names: Vec<&String> = tensors.keys().collect();
    names.sort_unstable();
    for name in &names {
        let t = &tensors[*name];
        let ty = GgmlType::from_name(&format!("{:?}", t.ty)).expect("a type");
        let k = (t.values.len() / t.rows) as u64;
        let shape = [k, t.rows as u64];
        let vector = name.contains("norm") || name.starts_with("rope");
        header.tensor(name, ty, if vector { &shape[..1] } else { &shape }).expect("a tensor");
    }
    let mut data = header.start(std::fs::File::create(path).expect("a file")).expect("a header");
    names.iter().for_each(|name| data.tensor(name, &tensors[*name].bytes).expect("data"));
    data.finish().expect("an end");
}

fn norm(x: &[f64], weight: &Stored) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + EPS).sqrt();
    x.iter().zip(&weight.values).map(|(x, w)| x * scale * w).collect()
}

/// Rotates neighbours by an angle that falls with their place in the head.
fn rope(heads: &mut [f64], position: usize) {
    for head in heads.chunks_exact_mut(HEAD) {
        for (i, pair) in head.chunks_exact_mut(2).enumerate() {
            let angle = position as f64 * BASE.powf(-2.0 * i as f64 / HEAD as f64);
            let (sin, cos) = angle.sin_cos();
            let (a, b) = (pair[0], pair[1]);
            (pair[0], pair[1]) = (a * cos - b * sin, a * sin + b * cos);
        }
    }
}

/// Logits after each token.
fn reference(tensors: &Tensors, ids: &[u32]) -> Vec<Vec<f64>> {
    /// Of one layer, a row for each position.
    #[derive(Default)]
    struct Cache {
        keys: Vec<Vec<f64>>,
        values: Vec<Vec<f64>>,
    }
    let mut cache: [Cache; LAYERS] = Default::default();
    let one = |(position, &id): (usize, &u32)| {
        let mut x = tensors["token_embd.weight"].values[id as usize * WIDTH..][..WIDTH].to_vec();
        for (layer, Cache { keys, values }) in cache.iter_mut().enumerate() {
            let weight = |suffix: &str| &tensors[&format!("blk.{layer}.{suffix}.weight")];
            let add = |x: &mut Vec<f64>, y: Vec<f64>| x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
            let y = norm(&x, weight("attn_norm"));
            let (mut q, mut k) = (weight("attn_q").times(&y), weight("attn_k").times(&y));
            rope(&mut q, position);
            rope(&mut k, position);
            keys.push(k);
            values.push(weight("attn_v").times(&y));
            let mut attended = Vec::new();
            for (head, q) in q.chunks_exact(HEAD).enumerate() {
                let at = head / (HEADS / KV_HEADS) * HEAD;
                let dot = |k: &Vec<f64>| q.iter().zip(&k[at..]).map(|(q, k)| q * k).sum::<f64>();
                let scores: Vec<f64> = keys.iter().map(|k| dot(k) / (HEAD as f64).sqrt()).collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let mixed =
                    |i| weights.iter().zip(values.iter()).map(|(w, v)| w * v[at + i]).sum::<f64>() / sum;
                attended.extend((0..HEAD).map(mixed));
            }
            add(&mut x, weight("attn_output").times(&attended));
            let y = norm(&x, weight("ffn_norm"));
            let (gate, up) = (weight("ffn_gate").times(&y), weight("ffn_up").times(&y));
            let y: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            add(&mut x, weight("ffn_down").times(&y));
        }
        tensors["output.weight"].times(&norm(&x, &tensors["output_norm.weight"]))
    };
    ids.iter().enumerate().map(one).collect()
}

/// Logits after the prompt and after each decoded token, and all tokens.
fn run(path: &Path, device: &Device, cache: DType) -> (Vec<Vec<f32>>, Vec<u32>) {
    let model = Arc::new(Model::load(path, device).expect("a model"));
    let options = ContextOptions { context: Some(32), keys: cache, values: cache };
    let mut context = Context::new(model, &options).expect("a context");
    context.set_sampling(&Sampling::greedy()).expect("parameters");
    let mut ids: Vec<u32> = (0..PROMPT).map(|i| (i * 7 % VOCABULARY) as u32).collect();
    let mut pending = context.prompt(&ids, true, None).expect("a prompt");
    let mut logits = Vec::new();
    loop {
        let (id, row) = pending.wait().expect("a step");
        let row = row.expect("logits");
        let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(row[id as usize], best, "greedy takes the best");
        logits.push(row);
        if logits.len() > DECODED {
            return (logits, ids);
        }
        ids.push(id);
        pending = context.step(true, None).expect("a step");
    }
}

/// Runs a model with every level and compares all logits; the error is the sum of squares over the reference's.
fn check(name: &str, types: &[BlockType], long_only: &[BlockType], cache: DType, tolerance: f64) {
    let tensors = tensors(types, long_only);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("model.gguf");
    write(&path, &tensors);
    for isa in Isa::available() {
        let options = software::Options { threads: 2, isa: Some(isa), ..Default::default() };
        let device = software::create(&options).expect("a device");
        let (logits, ids) = run(&path, &device, cache);
        let wanted = reference(&tensors, &ids);
        for (i, (got, want)) in logits.iter().zip(&wanted[PROMPT - 1..]).enumerate() {
            let squares = got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).powi(2)).sum::<f64>();
            let error = squares / want.iter().map(|w| w * w).sum::<f64>();
            println!("{name}, {}, token {}: error {error:.2e}", isa.name(), PROMPT + i);
            assert!(
                error <= tolerance,
                "{name}, {}, token {}: {error:.2e} over {tolerance:.0e}",
                isa.name(),
                PROMPT + i
            );
        }
    }
}

/// The tolerance below sees one matrix that is 10 % too large, and one whose numbers are all moved by most of their
/// deviation, as where a minimum or a centre is lost.
#[test]
fn the_tolerance_is_smaller_than_the_effect_of_one_wrong_matrix() {
    let (types, long_only) = QUANTIZED;
    let ids: Vec<u32> = (0..PROMPT as u32).collect();
    let last = |tensors: &Tensors| reference(tensors, &ids).pop().expect("logits");
    let right = last(&tensors(types, long_only));
    let error = |name: &str, change: fn(&mut f64)| {
        let mut wrong = tensors(types, long_only);
        let matrix = wrong.get_mut(name).expect("a tensor");
        matrix.values.iter_mut().for_each(change);
        let squares = last(&wrong).iter().zip(&right).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
        squares / right.iter().map(|x| x * x).sum::<f64>()
    };
    for name in ["blk.0.ffn_up.weight", "blk.1.ffn_down.weight", "blk.0.attn_output.weight", "output.weight"]
    {
        let (scaled, moved) = (error(name, |x| *x *= 1.1), error(name, |x| *x += 0.05));
        assert!(scaled > TOLERANCE && moved > TOLERANCE, "{name}: {scaled:.1e}, {moved:.1e}");
    }
}

/// Of quantized models. Activations are rounded to 127 steps per block, about 0.4 % of a value of usual size: squared,
/// and for a dozen products in a row, a few 1e-4.
const TOLERANCE: f64 = 1e-3;

const QUANTIZED: (&[BlockType], &[BlockType]) = {
    use BlockType::*;
    (&[Q4_1, Q5_0, Q8_0, Q4_0, Q5_1], &[Q4_K, Q6_K, Q5_K])
};

/// Every quantized type.
#[test]
fn quantized_models_are_near_the_reference_with_all_cpu_features() {
    check("tiny-quantized", QUANTIZED.0, QUANTIZED.1, DType::F16, TOLERANCE);
}

/// Float weights and caches: what remains are f32 sums.
#[test]
fn float_models_equal_the_reference_with_all_cpu_features() {
    use BlockType::*;
    check("tiny-float", &[F32, F16, BF16], &[], DType::F32, 1e-9);
}

#[test]
fn what_the_model_would_be_computed_without_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("model.gguf");
    let device = software::create(&software::Options::default()).expect("a device");
    let load = || Model::load(&path, &device).err().map(|e| e.to_string());
    let whole = tensors(&[BlockType::Q8_0], &[]);
    write(&path, &whole);
    assert_eq!(load(), None);
    for name in ["blk.1.attn_output.bias", "blk.0.ffn_gate_inp.weight", "output_norm.bias"] {
        let mut more = whole.clone();
        more.insert(name.into(), Stored::new(BlockType::F32, WIDTH, 1, || 1.0));
        write(&path, &more);
        let error = load().expect("refused");
        assert!(error.contains(name) && error.contains("'llama' does not use it"), "{error}");
    }
    write_with(&path, &whole, 1 << 24);
    let error = load().expect("refused");
    assert!(error.contains("llama.block_count is 16777216, expected at most the file's"), "{error}");
    // A layer that is left out has tensors too.
    write_with(&path, &whole, LAYERS - 1);
    assert!(load().expect("refused").contains(&format!("blk.{}.", LAYERS - 1)));
}

/// On every device in the same way: before anything is on one.
#[test]
fn numbers_that_no_model_can_have_are_refused_when_it_is_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("model.gguf");
    let device = software::create(&software::Options::default()).expect("a device");
    let load = || Model::load(&path, &device).err().map(|e| e.to_string());
    let whole = tensors(&[BlockType::Q8_0], &[]);
    let broken = [0.0, -0.0, -1e-5, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    for key in ["attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor"] {
        for number in broken {
            write_numbers(&path, &whole, LAYERS, &[(key, number)]);
            let error = load().unwrap_or_else(|| panic!("{key} of {number} is taken"));
            assert_eq!(error, format!("llama.{key} is {number}, expected a finite number above 0"));
        }
    }
    write_numbers(&path, &whole, LAYERS, &[("attention.layer_norm_rms_epsilon", f32::MIN_POSITIVE)]);
    assert_eq!(load(), None);
    for number in broken.into_iter().chain([1.0, 8.0]) {
        let mut more = whole.clone();
        let mut at = 0;
        let factors = Stored::new(BlockType::F32, HEAD / 2, 1, || {
            at += 1;
            if at == 6 { f64::from(number) } else { 1.0 }
        });
        more.insert("rope_freqs.weight".into(), factors);
        write(&path, &more);
        let wrong =
            format!("tensor rope_freqs.weight is {number} in place 5, expected a finite number above 0");
        assert_eq!(load(), (!(number.is_finite() && number > 0.0)).then_some(wrong));
    }
}
