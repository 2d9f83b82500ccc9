//! What the program takes of the machine's memory, as the system counts it (contract M7), and what it says of files that
//! are no language models.
#![cfg(target_os = "linux")]

mod common;

use common::models::smollm2;
use common::{monel, stderr, stdout};
use monel_gguf::{GgmlType, GgufWriter, Value};
use std::fs::File;
use std::io::BufWriter;
use std::process::Stdio;
use std::time::Duration;

/// The largest resident memory of the program while it ran, in bytes.
fn peak(args: &[&str]) -> u64 {
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = monel(directory.path());
    let mut child =
        command.args(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut peak = 0;
    let status = format!("/proc/{}/status", child.id());
    // The system's own high-water mark: only grows, so the last look that succeeds is near the end.
    loop {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"));
        let kb = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
        peak = peak.max(kb.unwrap_or(0) * 1024);
        if let Some(ended) = child.try_wait().expect("a child") {
            assert!(ended.success(), "{args:?}: {ended}");
            return peak;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn m7_a_run_stays_within_its_plan_and_the_plan_is_not_much_more() {
    let Some(model) = smollm2() else { return };
    let size = std::fs::metadata(&model).expect("a file").len();
    let directory = tempfile::tempdir().expect("a directory");
    let out = monel(directory.path())
        .args(["inspect", &model, "--json", "-c", "1024", "--device", "cpu"])
        .output()
        .expect("it runs");
    let plan: serde_json::Value = serde_json::from_str(&stdout(&out)).expect("JSON");
    let lines = plan["memory"]["lines"].as_array().expect("lines");
    let cache =
        lines.iter().find(|l| l["what"] == "KV cache").expect("a cache")["bytes"].as_u64().expect("bytes");
    let resident = plan["memory"]["resident"].as_u64().expect("bytes");
    // A prompt of 700 tokens fills a batch and most of the cache.
    let prompt = "the sea ".repeat(350);
    let peak = peak(&[
        "run", &model, "--raw", &prompt, "-n", "8", "-c", "1024", "--temp", "0", "-t", "2", "--device", "cpu",
    ]);
    assert!(peak < size + (120 << 20) + cache, "{peak} of a file of {size} and a cache of {cache}");
    // What the plan leaves out is the program itself and its vocabulary.
    assert!(peak < resident + (96 << 20), "{peak} where {resident} were planned");
    assert!(peak > resident / 2, "{resident} were planned and {peak} used");
}

#[test]
fn files_that_are_no_language_models_are_shown_as_they_are() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("picture.gguf");
    let mut gguf = GgufWriter::new();
    gguf.set("general.architecture", Value::String(b"clip".to_vec())).expect("a key");
    gguf.set("clip.vision.image_size", Value::U32(224)).expect("a key");
    gguf.tensor("v.patch_embd.weight", GgmlType::F32, &[4, 4]).expect("a tensor");
    let mut data = gguf.start(BufWriter::new(File::create(&path).expect("a file"))).expect("a head");
    data.tensor("v.patch_embd.weight", &[0; 64]).expect("data");
    data.finish().expect("an end");
    let file = path.to_str().expect("a name");
    let out = monel(directory.path()).args(["inspect", file]).output().expect("it runs");
    assert!(out.status.success(), "{}", stderr(&out));
    assert!(stdout(&out).contains("v.patch_embd.weight") && stdout(&out).contains("224"), "{}", stdout(&out));
    assert!(stdout(&out).contains("no memory plan"), "{}", stdout(&out));
    let out = monel(directory.path()).args(["inspect", file, "--json"]).output().expect("it runs");
    let shown: serde_json::Value = serde_json::from_str(&stdout(&out)).expect("JSON");
    assert_eq!(shown["tensors"][0]["name"], "v.patch_embd.weight");
    // Running it is an error that names what it is.
    let out = monel(directory.path()).args(["run", file, "hello"]).output().expect("it runs");
    assert!(!out.status.success() && stderr(&out).contains("clip"), "{}", stderr(&out));
}
