//! The program as its users meet it: exit codes, stdout and stderr, pipes that close, disks that are full.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod common;

use std::fs::File;
use std::io::Write;
use std::process::Stdio;

use common::{monel, stderr, stdout};

#[test]
fn wrong_usage_ends_with_2_and_leaves_stdout_alone() {
    let dir = tempfile::tempdir().unwrap();
    for words in [&[][..], &["nonsense"], &["pull"], &["pull", "a", "b"], &["pull", "--nonsense", "a"]] {
        let output = monel(dir.path()).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert_eq!(stdout(&output), "", "{words:?}");
        assert!(stderr(&output).contains("Usage:"), "{words:?}: {}", stderr(&output));
    }
}

#[test]
fn what_cannot_be_done_is_said_before_a_model_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    for (words, says) in [
        (&["bench", "none.gguf", "-p", "0", "-n", "0"][..], "nothing to measure"),
        (&["perplexity", "none.gguf", "-f", "none", "-c", "5"], "an even number, 4 or more"),
        (&["perplexity", "none.gguf", "-f", "none", "-c", "2"], "an even number, 4 or more"),
    ] {
        let output = monel(dir.path()).args(words).output().unwrap();
        let message = stderr(&output);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""), "{words:?}: {message}");
        assert!(message.contains(says), "{words:?}: {message}");
    }
}

#[test]
fn help_is_a_result_and_teaches() {
    let dir = tempfile::tempdir().unwrap();
    let listed = monel(dir.path()).arg("--help").output().unwrap();
    assert_eq!(listed.status.code(), Some(0));
    let listed = stdout(&listed);
    let commands: Vec<&str> = listed
        .lines()
        .skip_while(|l| *l != "Commands:")
        .skip(1)
        .map_while(|l| l.strip_prefix("  ")?.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(commands.contains(&"pull"), "{listed}");
    for command in commands {
        let output = monel(dir.path()).args([command, "--help"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{command}");
        let help = stdout(&output);
        let examples = help.split("EXAMPLES:").nth(1).unwrap_or_default();
        assert!(examples.contains(&format!("monel {command}")), "{command}: {help}");
        assert_eq!(stderr(&output), "");
    }
}

#[test]
fn unknown_models_are_one_message_and_1() {
    let dir = tempfile::tempdir().unwrap();
    let output = monel(dir.path()).args(["pull", "smollm", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output), "");
    let message = stderr(&output);
    assert!(message.contains("did you mean 'smollm2'?") && message.contains("gemma3-270m"), "{message}");
    assert_eq!(message.matches("error:").count(), 1, "{message}");
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "nothing is created for a wrong name");
}

#[cfg(not(feature = "hf"))]
#[test]
fn the_hub_names_its_feature() {
    let dir = tempfile::tempdir().unwrap();
    let output = monel(dir.path()).args(["pull", "hf:a/b/c.gguf"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("--features hf"), "{}", stderr(&output));
}

/// A file of the right length is taken as it is without `--verify`, so a sparse one will do for stdout.
fn cache_with_smollm2() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let file = File::create(dir.path().join("SmolLM2-135M-Instruct.Q4_1.gguf")).unwrap();
    file.set_len(98_362_432).unwrap();
    dir
}

#[test]
fn json_is_one_object_on_stdout() {
    let dir = cache_with_smollm2();
    let output = monel(dir.path()).args(["pull", "smollm2", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let json: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(json["bytes"], 98_362_432);
    assert_eq!(json["sha256"], "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53");
    assert_eq!(json["path"], dir.path().join("SmolLM2-135M-Instruct.Q4_1.gguf").to_str().unwrap());
    let output = monel(dir.path()).args(["pull", "smollm2"]).output().unwrap();
    assert_eq!(stdout(&output).trim_end(), json["path"].as_str().unwrap());
    assert_eq!(stderr(&output), "", "there is nothing to say about a model that is there");
}

#[cfg(unix)]
#[test]
fn a_closed_pipe_ends_quietly() {
    let dir = cache_with_smollm2();
    for words in
        [&["pull", "smollm2"][..], &["pull", "smollm2", "--json"], &["pull", "--help"], &["--version"]]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = monel(dir.path()).args(words).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{words:?}");
        assert_eq!(stderr(&output), "", "{words:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_stdout_is_an_error() {
    let dir = cache_with_smollm2();
    for words in
        [&["pull", "smollm2"][..], &["pull", "smollm2", "--json"], &["pull", "--help"], &["--version"]]
    {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = monel(dir.path()).args(words).stdout(full).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let message = stderr(&output);
        assert!(
            message.contains("standard output") && message.contains("No space left"),
            "{words:?}: {message}"
        );
    }
}

#[cfg(target_os = "linux")]
#[test]
fn messages_that_cannot_be_delivered_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = monel(dir.path()).args(["pull", "nope"]).stderr(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_cache_that_cannot_be_made_says_where_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    File::create(&file).unwrap().write_all(b"x").unwrap();
    let output = monel(&file.join("cache")).args(["pull", "smollm2"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(message.contains(file.to_str().unwrap()) && message.contains("MONEL_CACHE"), "{message}");
}

#[cfg(target_os = "linux")]
#[test]
fn texts_without_end_are_refused_before_they_fill_the_memory() {
    let dir = tempfile::tempdir().unwrap();
    let sparse = |name: &str, bytes: u64| {
        let path = dir.path().join(name);
        File::create(&path).unwrap().set_len(bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (prompt, text) = (sparse("prompt", (64 << 20) + 1), sparse("text", (256 << 20) + 1));
    let model = common::models::tiny(dir.path(), None);
    for (words, limit) in [
        (["run", "-f", "/dev/zero"], "64 MiB"),
        (["run", "-f", &prompt], "64 MiB"),
        (["perplexity", "-f", "/dev/zero"], "256 MiB"),
        (["perplexity", "-f", &text], "256 MiB"),
    ] {
        let output = monel(dir.path()).args(words).args(["-m", &model]).output().unwrap();
        let message = stderr(&output);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""), "{words:?}: {message}");
        assert!(message.contains(words[2]) && message.contains(limit), "{words:?}: {message}");
        assert_eq!(message.lines().count(), 1, "{words:?}: {message}");
    }
    for (command, limit) in [("run", "64 MiB"), ("tokenize", "256 MiB"), ("detokenize", "256 MiB")] {
        let zero = File::open("/dev/zero").unwrap();
        let output = monel(dir.path()).args([command, &model]).stdin(zero).output().unwrap();
        let message = stderr(&output);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""), "{command}: {message}");
        assert!(message.contains("standard input") && message.contains(limit), "{command}: {message}");
    }
}

#[test]
fn names_from_a_file_do_not_reach_the_terminal_as_commands() {
    use monel_gguf::{GgmlType, GgufWriter, Value};
    const EVIL: &str = "a\u{1b}]0;gone\u{7}\u{9b}2J\r\nerror: forged\u{202e}";
    let dir = tempfile::tempdir().unwrap();
    let model = common::models::tiny_named(dir.path(), None, EVIL);
    let other = dir.path().join("other.gguf");
    let mut gguf = GgufWriter::new();
    gguf.set("general.architecture", Value::String(EVIL.into())).unwrap();
    gguf.tensor(EVIL, GgmlType::F32, &[1]).unwrap();
    let mut data = gguf.start(File::create(&other).unwrap()).unwrap();
    data.tensor(EVIL, &[0; 4]).unwrap();
    data.finish().unwrap();
    let other = other.to_str().unwrap();
    for words in [
        &["bench", &model, "-p", "1", "-n", "1", "-r", "1", "-t", "1"][..],
        &["inspect", &model],
        &["inspect", other],
        &["run", other, "hi"],
    ] {
        let output = monel(dir.path()).args(words).args(["--device", "cpu"]).output().unwrap();
        let shown = stdout(&output) + &stderr(&output);
        let obeyed = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(shown.contains("gone") && !shown.contains(obeyed), "{words:?}: {shown:?}");
    }
}

#[test]
fn weights_that_are_no_numbers_are_an_error_of_the_perplexity() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text");
    std::fs::write(&text, "a long text ".repeat(40)).unwrap();
    // A norm, from where it spreads; one row of the output, so that one logit of all is wrong; in the middle of a layer.
    for (tensor, value) in [
        ("output_norm", f32::NAN),
        ("output", f32::NAN),
        ("output", f32::INFINITY),
        ("blk.0.ffn_down", f32::NAN),
    ] {
        let model = common::models::tiny_changed(dir.path(), None, "broken", |name, values| {
            if name == tensor {
                values[7] = value;
            }
        });
        let mut command = monel(dir.path());
        command.args(["perplexity", &model, "-c", "64", "--device", "cpu", "--json", "-f"]).arg(&text);
        let output = command.output().unwrap();
        let message = stderr(&output);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""), "{tensor}: {message}");
        assert!(message.contains("of window 1 are not finite: the model's weights"), "{tensor}: {message}");
    }
}

#[test]
fn a_timeline_does_not_replace_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let model = common::models::tiny(dir.path(), None);
    let before = std::fs::read(&model).unwrap();
    let words = ["run", &model, "hi", "--raw", "-n", "1", "--device", "cpu", "--trace", &model];
    let output = monel(dir.path()).args(words).output().unwrap();
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("GGUF file") && message.contains("nothing was written"), "{message}");
    assert!(std::fs::read(&model).unwrap() == before, "the model is whole");
}
