//! What the tests of this crate share: the model files they need, which are too large to lie beside them.
#![allow(dead_code, reason = "each test file uses its own part")]

use monel_gguf::Gguf;
use monel_llm::tokenizer::Tokenizer;
use std::path::{Path, PathBuf};

pub const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
pub const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";
pub const QWEN25: &str = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf";

/// Where a model file is, if it is on this machine.
///
/// It is looked for in the directory `MONEL_TEST_MODELS`, then in the cache of `monel pull` (`$XDG_CACHE_HOME/monel` or
/// `~/.cache/monel`). The Qwen file is large and stands in `MONEL_TEST_QWEN`, a path. Where it is missing, a line on stderr
/// says so and the test ends; with `MONEL_REQUIRE_MODELS=1` a missing SmolLM2 or Gemma file fails the test.
pub fn model_path(name: &str) -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut places = Vec::new();
    if name == QWEN25 {
        places.extend(variable("MONEL_TEST_QWEN"));
    }
    places.extend(variable("MONEL_TEST_MODELS").map(|directory| directory.join(name)));
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    places.extend(cache.map(|cache| cache.join("monel").join(name)));
    if let Some(found) = places.iter().find(|place| place.is_file()) {
        return Some(found.clone());
    }
    let how = match name {
        QWEN25 => "set MONEL_TEST_QWEN to the file",
        SMOLLM2 => "`monel pull smollm2`, or set MONEL_TEST_MODELS to a directory that has it",
        GEMMA3 => "`monel pull gemma3-270m`, or set MONEL_TEST_MODELS to a directory that has it",
        _ => "set MONEL_TEST_MODELS to a directory that has it",
    };
    let looked = places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", ");
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let line = format!("{test} needs {name} (not found at {looked}; {how})");
    assert!(
        name == QWEN25 || std::env::var("MONEL_REQUIRE_MODELS").as_deref() != Ok("1"),
        "MONEL_REQUIRE_MODELS is set, and {line}"
    );
    eprintln!("skipped: {line}");
    None
}

/// A model file, opened, if it is on this machine.
pub fn model(name: &str) -> Option<Gguf> {
    model_path(name)
        .map(|path| Gguf::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// The tokenizer of a model, if its file is on this machine.
pub fn tokenizer(name: &str) -> Option<Tokenizer> {
    model(name)
        .map(|file| Tokenizer::from_gguf(file.metadata()).unwrap_or_else(|error| panic!("{name}: {error}")))
}

/// One of the files in `tests/reference`.
pub fn reference(name: &str) -> serde_json::Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name);
    let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
