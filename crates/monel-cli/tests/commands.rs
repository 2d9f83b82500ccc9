//! The commands on a real model: what they print, in which fields, with which exit codes.
//!
//! The model is SmolLM2; where it is looked for stands in `common/models.rs`.

mod common;

use common::models::smollm2 as model;
use serde_json::Value;
use std::process::{Command, Output, Stdio};

/// "The Moon orbits the Earth, and the Earth orbits the", and what SmolLM2 says next.
const PROMPT: &str = "The Moon orbits the Earth, and the Earth orbits the";
const PROMPT_IDS: [u64; 11] = [504, 8872, 21837, 260, 2591, 28, 284, 260, 2591, 21837, 260];
const SUN: u64 = 5430;

fn monel(args: &[&str], stdin: &[u8]) -> Output {
    use std::io::Write;
    let mut child = Command::new(env!("CARGO_BIN_EXE_monel"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // A program that does not read its input closes the pipe.
    let _ = child.stdin.take().expect("a pipe").write_all(stdin);
    child.wait_with_output().expect("the program ends")
}

fn code(out: &Output) -> i32 {
    out.status.code().unwrap_or(-1)
}

fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// The one JSON object on stdout of a run that ended well.
fn json(args: &[&str], stdin: &[u8]) -> Value {
    let out = monel(args, stdin);
    assert_eq!(code(&out), 0, "{args:?}: {}", stderr(&out));
    let text = String::from_utf8(out.stdout).expect("UTF-8");
    assert_eq!(text.lines().count(), 1, "one object and nothing else: {text}");
    serde_json::from_str(&text).expect("JSON")
}

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().expect("a list").iter().map(|v| v.as_u64().expect("an id")).collect()
}

#[test]
fn run_reports_what_it_did() {
    let Some(m) = model() else { return };
    let r = json(
        &["run", &m, "--raw", PROMPT, "-n", "6", "--temp", "0", "--logprobs", "5", "--json", "-t", "2"],
        b"",
    );
    assert_eq!(ids(&r["prompt_ids"]), PROMPT_IDS);
    assert_eq!(ids(&r["ids"]).len(), 6);
    assert_eq!(ids(&r["ids"])[0], SUN);
    assert!(r["text"].as_str().expect("text").starts_with(" Sun"));
    assert_eq!((r["stop"].as_str(), r["device"].as_str()), (Some("length"), Some("cpu")));
    let steps = r["steps"].as_array().expect("steps");
    assert_eq!(steps.len(), 6);
    for step in steps {
        let top: Vec<(u64, f64)> = step["top"]
            .as_array()
            .expect("top")
            .iter()
            .map(|t| (t[0].as_u64().expect("id"), t[1].as_f64().expect("logprob")))
            .collect();
        assert_eq!(top.len(), 5);
        assert!(top.windows(2).all(|w| w[0].1 >= w[1].1), "sorted: {top:?}");
        assert_eq!(
            (Some(top[0].0), Some(top[0].1)),
            (step["id"].as_u64(), step["logprob"].as_f64()),
            "greedy"
        );
    }
    let t = &r["timings"];
    assert_eq!((t["prompt_tokens"].as_u64(), t["predicted_tokens"].as_u64()), (Some(11), Some(6)));
    assert!(["load_ms", "prompt_ms", "predicted_ms"].iter().all(|k| t[k].as_f64().is_some_and(|v| v > 0.0)));
}

#[test]
fn ids_say_exactly_what_is_continued() {
    let Some(m) = model() else { return };
    let list: Vec<String> = PROMPT_IDS.iter().map(u64::to_string).collect();
    let r = json(&["run", &m, "--ids", &list.join(","), "-n", "1", "--temp", "0", "--json"], b"");
    assert_eq!((ids(&r["prompt_ids"]), ids(&r["ids"])), (PROMPT_IDS.to_vec(), vec![SUN]));
    assert!(
        r["steps"][0]["top"].as_array().is_some_and(Vec::is_empty) && r["steps"][0]["logprob"].is_number()
    );
    let out = monel(&["run", &m, "--ids", "1,999999999", "-n", "1"], b"");
    assert_eq!(code(&out), 1);
    assert!(stderr(&out).contains("999999999") && stderr(&out).contains("49152"), "{}", stderr(&out));
}

#[test]
fn the_chat_template_is_used_unless_raw() {
    let Some(m) = model() else { return };
    let r = json(&["run", &m, "Name the capital of France.", "-n", "24", "--temp", "0", "--json"], b"");
    assert!(r["text"].as_str().expect("text").contains("Paris") && r["stop"] == "eog", "{r}");
    assert_eq!(ids(&r["prompt_ids"])[0], 1, "<|im_start|>");
    // From stdin, in plain text.
    let out = monel(&["run", &m, "-n", "24", "--temp", "0"], b"Name the capital of France.");
    assert!(code(&out) == 0 && String::from_utf8_lossy(&out.stdout).contains("Paris"));
    assert!(stderr(&out).contains("tok/s") && stderr(&out).contains("seed"), "{}", stderr(&out));
}

#[test]
fn a_full_context_is_an_end_and_a_longer_prompt_an_error() {
    let Some(m) = model() else { return };
    let r = json(&["run", &m, "--raw", PROMPT, "-c", "16", "--temp", "0", "--json"], b"");
    assert_eq!((r["stop"].as_str(), ids(&r["ids"]).len()), (Some("context"), 5));
    let out = monel(&["run", &m, "--raw", PROMPT, "-c", "8"], b"");
    assert_eq!(code(&out), 1);
    assert!(stderr(&out).contains("11 tokens") && stderr(&out).contains('8'), "{}", stderr(&out));
    let out = monel(&["run", &m, "--raw", PROMPT, "-c", "200000000"], b"");
    assert!(code(&out) == 1 && stderr(&out).contains("out of memory"), "{}", stderr(&out));
}

#[test]
fn the_same_seed_gives_the_same_text_on_any_number_of_threads() {
    let Some(m) = model() else { return };
    let text = |seed: &str, threads: &str| {
        let args = [
            "run",
            &m,
            "--raw",
            "Once upon a time",
            "-n",
            "24",
            "--temp",
            "1.2",
            "--seed",
            seed,
            "-t",
            threads,
        ];
        let out = monel(&args, b"");
        assert_eq!(code(&out), 0, "{}", stderr(&out));
        out.stdout
    };
    let first = text("7", "1");
    assert_eq!(first, text("7", "2"));
    assert_eq!(first, text("7", "3"));
    assert_ne!(first, text("8", "2"));
}

#[test]
fn a_timeline_shows_the_next_step_committed_while_one_executes() {
    let Some(m) = model() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("trace.json");
    let file = path.display().to_string();
    let out =
        monel(&["run", &m, "--raw", "Once upon a time", "-n", "40", "--temp", "0", "--trace", &file], b"");
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    let trace: Value = serde_json::from_slice(&std::fs::read(&path).expect("the file")).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    // Begin, end and submission.
    let spans = |category: &str, name: &str| -> Vec<(f64, f64, Option<u64>)> {
        let of = |e: &&Value| e["cat"] == category && e["name"].as_str().is_some_and(|n| n.contains(name));
        let times = |e: &Value| (e["ts"].as_f64().unwrap_or(0.0), e["dur"].as_f64().unwrap_or(0.0));
        let list = events.iter().filter(of).map(|e| (times(e), e["args"]["submission"].as_u64()));
        let mut list: Vec<_> = list.map(|((t, d), id)| (t, t + d, id)).collect();
        list.sort_by(|a, b| a.0.total_cmp(&b.0));
        list
    };
    for category in ["plan", "encode", "commit", "execute", "wait", "op"] {
        assert!(!spans(category, "").is_empty(), "no span {category}");
    }
    // The last chunk of a decode step. The host waits for a step only after it has committed the next one: an order
    // within the host's thread, however the cores are shared. Waits there are for some steps only, on a busy
    // machine for none, as a wait that finds its step done is none. The first steps are left out: helpers encode chunks for them, and commit in their
    // own time. That the device has the next step while it executes one is shown on the scripted device, in
    // `monel-llm`.
    let (commits, runs) = (spans("commit", "decode #1"), spans("execute", "decode #1"));
    assert!(commits.len() >= 38, "{} commits", commits.len());
    assert_eq!(commits.len(), runs.len(), "all that was committed ran");
    let waits = spans("wait", "decode #1");
    for (step, pair) in commits.windows(2).enumerate().skip(3) {
        for wait in waits.iter().filter(|w| w.2.is_some() && w.2 == pair[0].2) {
            // Times are written in nanoseconds.
            assert!(pair[1].1 <= wait.0 + 0.002, "step {step}: {wait:?} before {:?}", pair[1]);
        }
    }
    assert_eq!(spans("plan", "decode").len(), 1, "a step is planned once");
}

#[test]
fn tokens_lead_to_text_and_back() {
    let Some(m) = model() else { return };
    let r = json(&["tokenize", &m, "--json"], PROMPT.as_bytes());
    assert_eq!(ids(&r["ids"]), PROMPT_IDS);
    let line = monel(&["tokenize", &m], PROMPT.as_bytes()).stdout;
    let back = json(&["detokenize", &m, "--json"], &line);
    assert_eq!(back["text"], PROMPT);
    let special = ids(&json(&["tokenize", &m, "--json"], b"<|im_end|>")["ids"]);
    let plain = ids(&json(&["tokenize", &m, "--json", "--no-special"], b"<|im_end|>")["ids"]);
    assert!(special.len() == 1 && plain.len() > 1);
    assert_eq!(code(&monel(&["detokenize", &m], b"1, two")), 1);
}

#[test]
fn bench_perplexity_and_inspect_have_their_fields() {
    let Some(m) = model() else { return };
    let r = json(&["bench", &m, "-p", "16", "-n", "4,8", "-d", "0,8", "-r", "2", "-t", "2", "--json"], b"");
    let names: Vec<&str> =
        r["results"].as_array().expect("results").iter().map(|t| t["test"].as_str().expect("name")).collect();
    assert_eq!(names, ["pp16", "tg4", "tg8", "pp16 @ d8", "tg4 @ d8", "tg8 @ d8"]);
    for t in r["results"].as_array().expect("results") {
        assert_eq!((t["tps"].as_array().map(Vec::len), t["threads"].as_u64()), (Some(2), Some(2)));
        assert!(t["tps_median"].as_f64().is_some_and(|v| v > 0.0));
        assert!(t["load_ms"].as_f64().is_some_and(|v| v > 0.0), "{t}");
        // Plain Rust has no ceiling of products.
        let prompt = t["test"].as_str().is_some_and(|name| name.starts_with("pp"));
        if prompt && t["ceiling_of"].is_null() {
            continue;
        }
        assert_eq!(t["ceiling_of"], if prompt { "int8" } else { "read" }, "{t}");
        let number = |key: &str| t[key].as_f64().unwrap_or_else(|| panic!("{key} in {t}"));
        let share = number("reached") / number("ceiling");
        assert!(share > 0.0 && (number("ceiling_share") / share - 1.0).abs() < 1e-9, "{t}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let text = dir.path().join("text");
    std::fs::write(&text, "It was the best of times, it was the worst of times. ".repeat(30))
        .expect("a file");
    let file = text.display().to_string();
    let r = json(&["perplexity", &m, "-f", &file, "-c", "64", "--json"], b"");
    let (chunks, tokens) = (r["chunks"].as_u64().expect("chunks"), r["tokens"].as_u64().expect("tokens"));
    // Half a window less one token is predicted in each.
    assert!(chunks > 3 && tokens == chunks * 31, "{r}");
    assert!(r["ppl"].as_f64().is_some_and(|p| p > 1.0 && p < 20.0) && r["stderr"].is_number(), "{r}");
    let r = json(&["inspect", &m, "--json"], b"");
    assert_eq!(
        (r["version"].as_u64(), r["metadata"]["general.architecture"].as_str()),
        (Some(3), Some("llama"))
    );
    assert_eq!(r["metadata"]["tokenizer.ggml.tokens"]["length"], 49152);
    let tensors = r["tensors"].as_array().expect("tensors");
    let total: u64 = r["bytes_by_type"].as_object().expect("types").values().filter_map(Value::as_u64).sum();
    assert_eq!(total, tensors.iter().filter_map(|t| t["bytes"].as_u64()).sum::<u64>());
    assert!(r["memory"]["resident"].as_u64().is_some_and(|n| n > 100_000_000), "{}", r["memory"]);
}

#[test]
fn devices_and_check_answer_for_this_machine() {
    let r = json(&["devices", "--json"], b"");
    let cpu = r["devices"].as_array().expect("devices").iter().find(|d| d["id"] == "cpu").expect("the CPU");
    assert!(cpu["kind"] == "cpu" && cpu["memory_free"].as_u64() <= cpu["memory_total"].as_u64());
    let r = json(&["check", "--device", "cpu", "-o", "glu", "--json"], b"");
    assert!(r["failed"] == 0 && r["passed"].as_u64().is_some_and(|n| n > 10), "{r}");
    let row = &r["results"][0];
    assert!(row["op"] == "glu" && row["outcome"] == "ok" && row["type"] == "F32" && row["shape"].is_string());
    assert_eq!(code(&monel(&["check", "--device", "cpu", "-o", "no_such_op"], b"")), 1);
    assert_eq!(code(&monel(&["run", "x.gguf", "hi", "--device", "no such device"], b"")), 1);
}

#[test]
fn broken_files_are_refused_with_one_message() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        path.display().to_string()
    };
    let empty = path("empty.gguf", b"");
    let text = path("text.gguf", b"version https://git-lfs.github.com/spec/v1\n");
    let torn = model().map(|m| path("torn.gguf", &std::fs::read(m).expect("the model")[..5_000_000]));
    for file in [Some(empty), Some(text), torn].into_iter().flatten() {
        let out = monel(&["run", &file, "hi"], b"");
        let message = stderr(&out);
        assert_eq!((code(&out), out.stdout.len()), (1, 0), "{message}");
        assert!(message.contains("error: ") && !message.contains("panicked"), "{message}");
    }
}

#[test]
fn chat_needs_a_template_and_remembers() {
    let Some(m) = model() else { return };
    let out = monel(&["chat", &m, "--temp", "0", "-n", "16"], b"My name is Zoltan.\nWhat is my name?\n");
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    // The second answer evaluates only what is new: fewer tokens than the first prompt with its system message.
    let counts: Vec<usize> = stderr(&out)
        .lines()
        .filter_map(|l| l.split_once("prompt ")?.1.split_once(" tokens")?.0.parse().ok())
        .collect();
    assert_eq!(counts.len(), 2, "{}", stderr(&out));
    assert!(counts[1] < counts[0], "{counts:?}");
}
