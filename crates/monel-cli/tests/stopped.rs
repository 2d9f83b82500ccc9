//! Commands that are stopped by a signal: what they print then, and with which code they end.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod common;

use std::fs::File;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use common::models::tiny;
use common::{end_of, monel, stderr, stdout, until, vulkan};
use rustix::process::{Pid, Signal, kill_process};

/// Starts a command and waits until it has computed for so many hundredths of a second, on all its threads.
fn computing(command: &mut Command, ticks: u64) -> Child {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    computes(&mut child, ticks);
    child
}

/// Waits until a program has computed for so many hundredths of a second more.
fn computes(child: &mut Child, ticks: u64) {
    let path = format!("/proc/{}/stat", child.id());
    let used = || {
        // Behind the name, which ends with the last bracket: utime and stime are the 12th and 13th field.
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
        fields.filter_map(|field| field.parse::<u64>().ok()).sum::<u64>()
    };
    let before = used();
    until("the program to compute", || {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was stopped");
        used() >= before + ticks
    });
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Stops a command by a signal and waits for its end.
fn stop(child: Child, by: Signal) -> Output {
    signal(&child, by);
    end_of(child)
}

const BOTH: [(Signal, i32); 2] = [(Signal::INT, 130), (Signal::TERM, 143)];

/// One window of this text takes many minutes.
#[test]
fn e5_a_perplexity_stops_in_the_middle_of_a_window() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path(), None);
    let text = dir.path().join("text");
    std::fs::write(&text, "a long text ".repeat(40_000)).unwrap();
    let text = text.to_str().unwrap();
    for (by, code) in BOTH {
        let mut command = monel(dir.path());
        command.args(["perplexity", &model, "-f", text, "-c", "400000", "--device", "cpu", "-t", "1"]);
        let output = stop(computing(command.arg("--json"), 200), by);
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert!(stderr(&output).contains("[stopped after 0 of 1 windows]"), "{}", stderr(&output));
        let json: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert!(json["ppl"].is_null() && json["chunks"] == 0 && json["tokens"] == 0, "{json}");
    }
}

#[test]
fn a_check_that_is_stopped_prints_the_cases_that_ran() {
    let dir = tempfile::tempdir().unwrap();
    for (by, code) in BOTH {
        for json in [false, true] {
            let mut command = monel(dir.path());
            command.args(["check", "--device", "cpu", "-t", "1"]).args(json.then_some("--json"));
            let output = stop(computing(&mut command, 50), by);
            let message = stderr(&output);
            assert_eq!(output.status.code(), Some(code), "{message}");
            let counts = message.split_once("[stopped after ").unwrap().1.split_once(" cases]").unwrap().0;
            let (ran, all) = counts.split_once(" of ").unwrap();
            let (ran, all): (usize, usize) = (ran.parse().unwrap(), all.parse().unwrap());
            assert!(0 < ran && ran < all, "{message}");
            assert!(message.contains(" passed, 0 failed, "), "{message}");
            if json {
                let json: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
                assert_eq!(
                    (json["results"].as_array().unwrap().len(), &json["stopped"]),
                    (ran, &true.into())
                );
                assert_eq!(json["passed"].as_u64().unwrap() + json["refused"].as_u64().unwrap(), ran as u64);
            } else {
                assert!(stdout(&output).starts_with("op "), "{}", stdout(&output));
            }
        }
    }
}

/// The second of two tests takes many minutes.
#[test]
fn e5_a_bench_that_is_stopped_prints_the_tests_that_were_finished() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path(), None);
    for (by, code) in BOTH {
        for long in [["-p", "1,400000", "-n", "0"], ["-p", "1", "-n", "400000"]] {
            let mut command = monel(dir.path());
            command.args(["bench", &model, "-r", "1", "-t", "1", "--device", "cpu", "--json"]).args(long);
            let log = dir.path().join("log");
            let said = || std::fs::read_to_string(&log).unwrap();
            let child = command.stdout(Stdio::piped()).stderr(File::create(&log).unwrap()).spawn().unwrap();
            until("the first test to end", || said().contains("pp1: "));
            let output = stop(child, by);
            assert_eq!(output.status.code(), Some(code), "{}", said());
            assert!(said().contains("[stopped after 1 of 2 tests]"), "{}", said());
            let json: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
            let results = json["results"].as_array().unwrap();
            assert!(results.len() == 1 && results[0]["test"] == "pp1", "{json}");
        }
    }
}

#[test]
fn of_a_prompt_that_is_stopped_the_tokens_that_were_evaluated_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path(), None);
    let prompt = dir.path().join("prompt");
    std::fs::write(&prompt, "a long text ".repeat(40_000)).unwrap();
    let prompt = prompt.to_str().unwrap();
    let command = || {
        let mut command = monel(dir.path());
        command.args(["run", &model, "--raw", "-f", prompt, "-c", "500000", "--device", "cpu", "-t", "1"]);
        command
    };
    // Whole batches; far fewer than there are.
    let some = |tokens: u64| tokens > 0 && tokens < 400_000 && tokens.is_multiple_of(512);
    let output = stop(computing(&mut command(), 200), Signal::INT);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(130), "{message}");
    let tokens = message.split_once("prompt ").unwrap().1.split_once(" tokens").unwrap().0;
    assert!(some(tokens.parse().unwrap()), "{message}");
    let output = stop(computing(command().arg("--json"), 200), Signal::INT);
    let json: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(some(json["timings"]["prompt_tokens"].as_u64().unwrap()), "{}", json["timings"]);
    assert!(json["prompt_ids"].as_array().unwrap().len() > 400_000 && json["stop"] == "cancelled");
}

/// A job that the shell stops and continues (Ctrl-Z, `fg`), or a laptop that sleeps: seconds pass for the clock and not
/// for the program, which no deadline may take for a device that hangs.
fn goes_on_after_a_pause(device: &str) {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path(), None);
    let command = || {
        let mut command = monel(dir.path());
        command.args(["run", &model, "--raw", "talk", "--temp", "0", "-c", "500000", "-t", "2", "--json"]);
        command.args(["--device", device]);
        command
    };
    let ids = |output: Output, code: i32, stop: &str| {
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        let json: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(json["stop"], stop);
        json["ids"].as_array().unwrap().clone()
    };
    // A text that does not end, so that the pauses are in the middle of it on any machine.
    let mut child = computing(&mut command(), 30);
    for _ in 0..2 {
        signal(&child, Signal::STOP);
        std::thread::sleep(Duration::from_secs(3));
        signal(&child, Signal::CONT);
        computes(&mut child, 30);
    }
    let paused = ids(stop(child, Signal::INT), 130, "cancelled");
    assert!(!paused.is_empty());
    let mut command = command();
    command.args(["-n", &paused.len().to_string()]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let whole = ids(end_of(command.spawn().unwrap()), 0, "length");
    assert!(paused == whole, "the same as without a pause");
}

#[test]
fn a_run_on_the_cpu_goes_on_after_a_pause() {
    goes_on_after_a_pause("cpu");
}

#[test]
fn a_run_on_vulkan_goes_on_after_a_pause() {
    let dir = tempfile::tempdir().unwrap();
    if let Some(device) = vulkan(dir.path()) {
        goes_on_after_a_pause(&device);
    }
}

/// A text of 200 MiB takes many seconds to be taken apart, before there is anything to print.
#[test]
fn a_text_that_is_taken_apart_is_given_up_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path(), None);
    let text = dir.path().join("text");
    std::fs::write(&text, "a long text ".repeat((200 << 20) / 12)).unwrap();
    for (by, code) in BOTH {
        let mut perplexity = monel(dir.path());
        perplexity.args(["perplexity", &model, "--device", "cpu", "-t", "1", "-f"]).arg(&text);
        let mut tokenize = monel(dir.path());
        tokenize.args(["tokenize", &model]).stdin(File::open(&text).unwrap());
        for command in [&mut perplexity, &mut tokenize] {
            let output = stop(computing(command, 100), by);
            let message = stderr(&output);
            assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(code), ""), "{message}");
            assert!(!message.contains("[stopped"), "it went on to what comes next: {message}");
        }
    }
}

#[test]
fn a_file_that_is_cut_in_the_middle_of_work_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path(), None);
    let mut command = monel(dir.path());
    command.args(["run", &model, "--raw", "talk", "-c", "500000", "-t", "2", "--device", "cpu"]);
    let child = computing(&mut command, 10);
    // What the system sends when memory of such a file is touched.
    let output = stop(child, Signal::BUS);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("error: a file was cut while it was in use"), "{}", stderr(&output));
}

#[test]
fn a_file_over_the_size_that_the_shell_allows_is_an_error_of_the_write() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path(), None);
    let trace = dir.path().join("trace.json");
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "ulimit -f 1; exec \"$0\" \"$@\"",
        env!("CARGO_BIN_EXE_monel"),
        "run",
        &model,
        "--raw",
    ]);
    command.args(["talk", "-n", "64", "-t", "1", "--device", "cpu", "--trace"]).arg(&trace);
    command.env("MONEL_CACHE", dir.path()).env("XDG_CACHE_HOME", dir.path()).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("trace.json"), "{}", stderr(&output));
}

/// A pipe that takes nothing more.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let size = rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    std::io::Write::write_all(&mut writer, &vec![0; size]).unwrap();
    (reader, writer)
}

/// A reader that reads no more, as `| sleep 1000`: one signal ends the program, whatever it wants to print.
#[test]
fn a_write_that_blocks_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path(), None);
    let commands: [&[&str]; 6] = [
        &["--help"],
        &["run", "--help"],
        &["inspect", "--json", &model],
        &["devices"],
        &["run", &model, "--raw", "talk", "-n", "9", "--device", "cpu", "-t", "1"],
        &["run", &model, "--raw", "talk", "-n", "9", "--device", "cpu", "-t", "1", "--json"],
    ];
    for (by, code) in BOTH {
        for arguments in commands {
            for to_stderr in [false, true] {
                let (_reader, writer) = full_pipe();
                let mut command = monel(dir.path());
                command
                    .env("XDG_CACHE_HOME", dir.path())
                    .args(arguments)
                    .stdout(Stdio::null())
                    .stderr(Stdio::null());
                if to_stderr {
                    // A command that says something there; the others end.
                    if !arguments.contains(&"talk") {
                        continue;
                    }
                    command.stderr(writer);
                } else {
                    command.stdout(writer);
                }
                let mut child = command.spawn().unwrap();
                let status = format!("/proc/{}/status", child.id());
                until("the program to listen", || {
                    let text = std::fs::read_to_string(&status).unwrap();
                    let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
                    // A set of bits; SIGTERM is the later of the two to be asked for.
                    u64::from_str_radix(caught.trim(), 16).unwrap() & 1 << (15 - 1) != 0
                });
                signal(&child, by);
                until(format_args!("{arguments:?} to end"), || child.try_wait().unwrap().is_some());
                assert_eq!(child.wait().unwrap().code(), Some(code), "{arguments:?}");
            }
        }
    }
}
