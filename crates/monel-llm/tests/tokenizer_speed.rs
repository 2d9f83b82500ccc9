//! How fast, on the real vocabularies. Only shown, never judged: run with
//! `cargo test --release -p monel-llm --test tokenizer_speed -- --ignored --nocapture --test-threads 1`.
//! `MONEL_TEST_TEXT` names the text; without it the text is made of the prompts of the references.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod common;

use common::{GEMMA3, QWEN25, SMOLLM2};
use monel_gguf::Gguf;
use monel_llm::tokenizer::Tokenizer;
use std::time::{Duration, Instant};

/// Time this thread has been on a processor, where the system tells (Linux); other work on the machine counts less that way.
fn processor_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

/// The middle of several runs.
fn median(mut run: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..7)
        .map(|_| {
            let (start, before) = (Instant::now(), processor_time());
            run();
            let wall = start.elapsed();
            before.and_then(|before| Some(processor_time()? - before)).unwrap_or(wall)
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

/// About 1 MB.
fn text() -> Vec<u8> {
    if let Some(path) = std::env::var_os("MONEL_TEST_TEXT") {
        let mut text = std::fs::read(path).unwrap();
        text.truncate(1 << 20);
        return text;
    }
    let reference = common::reference("greedy-SmolLM2-135M-Instruct.Q4_1.json");
    let prompts = reference["prompts"].as_array().unwrap().clone();
    let prompts: Vec<u8> =
        prompts.iter().flat_map(|prompt| prompt["text"].as_str().unwrap().bytes()).collect();
    prompts.iter().copied().cycle().take(1 << 20).collect()
}

#[test]
#[ignore = "measures, proves nothing"]
fn speed() {
    let text = text();
    let word = "abcdefghij".repeat(text.len() / 10);
    for model in [SMOLLM2, GEMMA3, QWEN25] {
        let Some(path) = common::model_path(model) else { continue };
        let open = median(|| drop(Gguf::open(&path).unwrap()));
        let file = Gguf::open(&path).unwrap();
        let build = median(|| drop(Tokenizer::from_gguf(file.metadata()).unwrap()));
        let tokenizer = Tokenizer::from_gguf(file.metadata()).unwrap();
        let mut tokens = 0;
        let encode = median(|| tokens = tokenizer.encode(&text, true, true).unwrap().len());
        let one_word = median(|| drop(tokenizer.encode(&word, true, true).unwrap()));
        let ids = tokenizer.encode(&text, true, true).unwrap();
        let decode = median(|| drop(tokenizer.decode(&ids, Default::default()).unwrap()));
        let rate = |time: Duration| text.len() as f64 / time.as_secs_f64() / 1e6;
        println!(
            "{model}: open {open:.1?}, build {build:.1?}; {} bytes, {tokens} tokens: encode {:.1} MB/s, decode {:.1} MB/s; \
             one word of that length: {:.1} MB/s",
            text.len(),
            rate(encode),
            rate(decode),
            rate(one_word),
        );
    }
}
