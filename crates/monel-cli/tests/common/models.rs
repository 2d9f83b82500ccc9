//! Models for tests of the program: SmolLM2 where it is on this machine, and a tiny one that is made on the spot.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use monel::quant::{BlockType, quantize_row};
use monel_gguf::{Array, GgmlType, GgufWriter, Value};

pub const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// SmolLM2, looked for in `MONEL_TEST_MODELS` and in the program's cache. Without it a test says that it was skipped;
/// with `MONEL_REQUIRE_MODELS=1` it fails.
pub fn smollm2() -> Option<String> {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let places = [
        variable("MONEL_TEST_MODELS").map(|d| d.join(SMOLLM2)),
        variable("MONEL_CACHE").map(|d| d.join(SMOLLM2)),
        cache.map(|d| d.join("monel").join(SMOLLM2)),
    ];
    if let Some(found) = places.into_iter().flatten().find(|p| p.is_file()) {
        return Some(found.display().to_string());
    }
    assert!(
        std::env::var("MONEL_REQUIRE_MODELS").as_deref() != Ok("1"),
        "{SMOLLM2} is required and not there"
    );
    let test = std::thread::current().name().unwrap_or("a test").to_string();
    eprintln!("skipped: {test} needs {SMOLLM2} (`monel pull smollm2`, or set MONEL_TEST_MODELS)");
    None
}

const WIDTH: u64 = 64;
const FFN: u64 = 96;
const CONTEXT: u32 = 1 << 20;

/// A llama of one layer with random weights and the printable characters as its vocabulary. It babbles and does not
/// end by itself: the row of its end token in the output head is zero, which is never the largest logit. Its context
/// is a million tokens, so that an answer takes as long as a test wants.
pub fn tiny(directory: &Path, template: Option<&str>) -> String {
    tiny_named(directory, template, "tiny")
}

/// The same under another name.
pub fn tiny_named(directory: &Path, template: Option<&str>, name: &str) -> String {
    tiny_changed(directory, template, name, |_, _| ())
}

/// The same with other weights: `change` sees the name and the values of each.
pub fn tiny_changed(
    directory: &Path,
    template: Option<&str>,
    name: &str,
    change: impl Fn(&str, &mut [f32]),
) -> String {
    write(directory, template, name, GgmlType::F32, change)
}

/// The same with matrices in blocks of eight bits, for which activations are rounded to eight bits too.
pub fn tiny_q8(directory: &Path, change: impl Fn(&str, &mut [f32])) -> String {
    write(directory, None, "tiny", GgmlType::Q8_0, change)
}

fn write(
    directory: &Path,
    template: Option<&str>,
    name: &str,
    matrix: GgmlType,
    change: impl Fn(&str, &mut [f32]),
) -> String {
    let mut tokens: Vec<Vec<u8>> = [&b"<unk>"[..], b"<s>", b"</s>", b"<0x0A>"].map(<[u8]>::to_vec).into();
    let mut types = vec![2, 3, 3, 6];
    tokens.push("\u{2581}".into());
    tokens.extend((33..=126_u8).map(|byte| vec![byte]));
    types.resize(tokens.len(), 1);
    let vocabulary = tokens.len() as u64;

    let mut gguf = GgufWriter::new();
    let mut set = |key: &str, value: Value| {
        gguf.set(key, value).unwrap();
    };
    set("general.architecture", Value::String(b"llama".to_vec()));
    set("general.name", Value::String(name.as_bytes().to_vec()));
    for (key, number) in [
        ("context_length", CONTEXT),
        ("embedding_length", WIDTH as u32),
        ("block_count", 1),
        ("feed_forward_length", FFN as u32),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 2),
        ("rope.dimension_count", 32),
    ] {
        set(&format!("llama.{key}"), Value::U32(number));
    }
    set("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
    set("tokenizer.ggml.model", Value::String(b"llama".to_vec()));
    set("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; tokens.len()])));
    set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens.into_iter().collect())));
    set("tokenizer.ggml.token_type", Value::Array(Array::I32(types)));
    for (key, id) in [("unknown", 0), ("bos", 1), ("eos", 2)] {
        set(&format!("tokenizer.ggml.{key}_token_id"), Value::U32(id));
    }
    if let Some(template) = template {
        set("tokenizer.chat_template", Value::String(template.as_bytes().to_vec()));
    }

    let matrices = [
        ("token_embd", vec![WIDTH, vocabulary]),
        ("output", vec![WIDTH, vocabulary]),
        ("output_norm", vec![WIDTH]),
        ("blk.0.attn_norm", vec![WIDTH]),
        ("blk.0.attn_q", vec![WIDTH, WIDTH]),
        ("blk.0.attn_k", vec![WIDTH, WIDTH]),
        ("blk.0.attn_v", vec![WIDTH, WIDTH]),
        ("blk.0.attn_output", vec![WIDTH, WIDTH]),
        ("blk.0.ffn_norm", vec![WIDTH]),
        ("blk.0.ffn_gate", vec![WIDTH, FFN]),
        ("blk.0.ffn_up", vec![WIDTH, FFN]),
        ("blk.0.ffn_down", vec![FFN, WIDTH]),
    ];
    for (name, shape) in &matrices {
        let ty = if shape.len() == 1 { GgmlType::F32 } else { matrix };
        gguf.tensor(&format!("{name}.weight"), ty, shape).unwrap();
    }
    let path = directory.join("tiny.gguf");
    let mut data = gguf.start(BufWriter::new(File::create(&path).unwrap())).unwrap();
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    for (name, shape) in matrices {
        let mut values: Vec<f32> = (0..shape.iter().product()).map(|_| random()).collect();
        match name {
            "output" => values[2 * WIDTH as usize..3 * WIDTH as usize].fill(0.0),
            _ if shape.len() == 1 => values.fill(1.0),
            _ => values.iter_mut().for_each(|v| *v *= 0.3),
        }
        change(name, &mut values);
        let mut bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        if shape.len() > 1 && matrix == GgmlType::Q8_0 {
            bytes.resize(BlockType::Q8_0.row_bytes(values.len()), 0);
            quantize_row(BlockType::Q8_0, &values, &mut bytes).unwrap();
        }
        data.tensor(&format!("{name}.weight"), &bytes).unwrap();
    }
    data.finish().unwrap();
    path.display().to_string()
}

/// A chat template that says what was said.
pub const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
