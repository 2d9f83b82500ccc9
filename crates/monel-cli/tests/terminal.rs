//! `chat` and `run` in a real terminal: editing, history, Ctrl-C, Ctrl-D, signals, and the terminal's mode afterwards.
//!
//! Most tests use a tiny model that babbles without end, so that "in the middle of an answer" is where the test wants it.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod common;

use std::process::Stdio;

use common::models::{TEMPLATE, smollm2, tiny};
use common::terminal::Terminal;
use common::{monel, stderr, until};
use rustix::process::Signal;

const LEFT: &str = "\x1b[D";
const UP: &str = "\x1b[A";
const BACKSPACE: &str = "\x7f";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";

/// A directory that is the program's cache, where the history is kept too.
fn place() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// A conversation with the tiny model on one thread.
fn chat(dir: &tempfile::TempDir, more: &[&str]) -> Terminal {
    let model = tiny(dir.path(), Some(TEMPLATE));
    let mut command = monel(dir.path());
    command.args(["chat", &model, "--device", "cpu", "-t", "1", "--temp", "0"]).args(more);
    Terminal::start(&mut command)
}

/// The lines that were entered, from the history's file.
fn entered(dir: &tempfile::TempDir) -> Vec<String> {
    let text = std::fs::read_to_string(dir.path().join("chat-history.txt")).unwrap_or_default();
    text.lines().skip(1).map(str::to_string).collect()
}

#[test]
fn a_question_is_answered() {
    let Some(model) = smollm2() else { return };
    let dir = place();
    let mut command = monel(dir.path());
    command.args(["chat", &model, "--device", "cpu", "--temp", "0", "-n", "24"]);
    let mut chat = Terminal::start(&mut command);
    chat.is_ready();
    chat.keys("Name the capital of France.\r");
    chat.shows("Paris");
    chat.shows("tok/s");
    chat.is_ready();
    chat.keys(CTRL_D);
    assert_eq!(chat.ends(), 0, "{}", chat.shown());
}

#[test]
fn lines_are_edited_and_come_back_with_the_up_arrow() {
    let dir = place();
    let mut chat = chat(&dir, &["-n", "4"]);
    chat.is_ready();
    // A letter put in further left, and one taken away at the end.
    chat.keys(&format!("good evning{}e\r", LEFT.repeat(4)));
    chat.shows("tok/s");
    chat.is_ready();
    chat.keys(&format!("{UP}{BACKSPACE}\r"));
    chat.shows("tok/s");
    chat.is_ready();
    // An unfinished line does not end the conversation, and Ctrl-C forgets it.
    chat.keys("no");
    chat.shows("no");
    chat.keys(CTRL_C);
    chat.is_ready();
    chat.keys(&format!("{UP}{UP}!\r"));
    chat.shows("tok/s");
    chat.is_ready();
    chat.keys(CTRL_D);
    assert_eq!(chat.ends(), 0, "{}", chat.shown());
    assert_eq!(entered(&dir), ["good evening", "good evenin", "good evening!"]);
    // The next conversation remembers.
    let mut next = self::chat(&dir, &["-n", "4"]);
    next.is_ready();
    next.keys(&format!("{UP}?\r"));
    next.shows("tok/s");
    next.is_ready();
    next.keys("/quit\r");
    assert_eq!(next.ends(), 0, "{}", next.shown());
    assert_eq!(entered(&dir)[3], "good evening!?");
}

/// Asks for an answer that does not end and waits until it has begun.
fn in_the_middle_of_an_answer(dir: &tempfile::TempDir) -> Terminal {
    let mut chat = chat(dir, &["-c", "500000"]);
    chat.is_ready();
    chat.keys("talk\r");
    chat.shows("talk");
    until("the answer to begin", || {
        chat.shown().rsplit_once("talk").is_some_and(|(_, answer)| answer.trim().len() > 40)
    });
    chat
}

#[test]
fn ctrl_c_stops_the_answer_and_keeps_the_conversation() {
    let dir = place();
    let mut chat = in_the_middle_of_an_answer(&dir);
    for _ in 0..2 {
        chat.keys(CTRL_C);
        chat.shows("[stopped]");
        chat.is_ready();
        chat.keys("and again\r");
        chat.shows("and again");
        let before = chat.shown().len();
        until("the next answer", || chat.shown().len() > before + 40);
    }
    chat.keys(CTRL_C);
    chat.is_ready();
    chat.keys(CTRL_D);
    assert_eq!(chat.ends(), 0, "{}", chat.shown());
}

#[test]
fn sigterm_ends_an_idle_conversation_the_first_time() {
    let dir = place();
    let mut chat = chat(&dir, &[]);
    chat.is_ready();
    chat.keys("half a li");
    chat.shows("half a li");
    chat.signal(Signal::TERM);
    assert_eq!(chat.ends(), 128 + 15, "{}", chat.shown());
    assert!(chat.shown().contains("\x1b[?2004l"), "pasting is as it was: {:?}", chat.shown());
}

#[test]
fn sigterm_ends_a_conversation_in_the_middle_of_an_answer() {
    let dir = place();
    let mut chat = in_the_middle_of_an_answer(&dir);
    chat.signal(Signal::TERM);
    assert_eq!(chat.ends(), 128 + 15, "{}", chat.shown());
}

/// Takes a while to be rendered, longer than it takes to send a signal.
const SLOW_TEMPLATE: &str = "{% for i in range(60) %}{% for j in range(1000) %}{% endfor %}{% endfor %}\
    {% for m in messages %}{{ m.content }}\n{% endfor %}";

/// An answer that does not end, or one that was stopped before it began.
#[test]
fn what_comes_while_a_conversation_is_rendered_stops_the_answer() {
    for (signal, code) in [(Signal::INT, 0), (Signal::TERM, 128 + 15)] {
        let dir = place();
        let model = tiny(dir.path(), Some(SLOW_TEMPLATE));
        let mut command = monel(dir.path());
        command.args(["chat", &model, "--device", "cpu", "-t", "1", "--temp", "0", "-c", "500000"]);
        let mut chat = Terminal::start(&mut command);
        chat.is_ready();
        chat.keys("talk\r");
        // The line is noted before it is answered.
        until("the line to be entered", || entered(&dir) == ["talk"]);
        chat.signal(signal);
        if signal == Signal::INT {
            chat.shows("[stopped]");
            chat.is_ready();
            chat.keys(CTRL_D);
        }
        assert_eq!(chat.ends(), code, "{}", chat.shown());
    }
}

#[test]
fn sigint_from_outside_is_a_typed_ctrl_c() {
    let dir = place();
    let mut chat = chat(&dir, &["-n", "4"]);
    chat.is_ready();
    for _ in 0..3 {
        chat.keys("no");
        chat.shows("no");
        chat.signal(Signal::INT);
        chat.is_ready();
    }
    chat.keys("hi\r");
    chat.shows("tok/s");
    chat.is_ready();
    chat.keys(CTRL_D);
    assert_eq!(chat.ends(), 0, "{}", chat.shown());
    assert_eq!(entered(&dir), ["hi"]);
}

#[test]
fn the_second_sigint_ends_a_conversation_that_is_stuck() {
    let dir = place();
    let mut chat = in_the_middle_of_an_answer(&dir);
    // Ctrl-S: the terminal takes no more until Ctrl-Q, and the program waits in the middle of writing to it.
    chat.keys("\x13");
    chat.is_still();
    chat.signal(Signal::INT);
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(chat.child.try_wait().unwrap().is_none(), "the first one asks");
    again_until_the_end(&mut chat.child, Signal::INT);
    chat.keys("\x11");
    assert_eq!(chat.ends(), 130, "{}", chat.shown());
}

/// Signals that come close together count as one, so one may not be enough.
fn again_until_the_end(child: &mut std::process::Child, signal: Signal) {
    until("the end", || {
        let ended = child.try_wait().unwrap().is_some();
        if !ended {
            rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
        }
        ended
    });
}

#[test]
fn ctrl_c_stops_a_run_with_130() {
    let dir = place();
    let model = tiny(dir.path(), None);
    let mut command = monel(dir.path());
    command.args(["run", &model, "--raw", "talk", "-c", "500000", "--device", "cpu", "-t", "1"]);
    let mut run = Terminal::start(&mut command);
    run.shows("device: cpu");
    until("the answer to begin", || run.shown().len() > 400);
    run.keys(CTRL_C);
    run.shows("[stopped]");
    assert_eq!(run.ends(), 130, "{}", run.shown());
}

/// A reader that does not read holds the program up where the first Ctrl-C cannot help.
#[test]
fn the_second_ctrl_c_ends_a_run_that_is_stuck() {
    use rustix::io::{ioctl_fionbio, ioctl_fionread};
    use std::io::{Read, Write};
    let dir = place();
    let model = tiny(dir.path(), None);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        // Full, but for what takes the program a moment to say.
        ioctl_fionbio(&writer, true).unwrap();
        while writer.write(&[b'.'; 4096]).is_ok() {}
        ioctl_fionbio(&writer, false).unwrap();
        let full = ioctl_fionread(&reader).unwrap();
        reader.read_exact(&mut [0; 4096]).unwrap();
        let mut command = monel(dir.path());
        command.args(["run", &model, "--raw", "talk", "-c", "500000", "--device", "cpu", "-t", "1"]);
        let mut child = command.stdout(writer).stderr(Stdio::null()).spawn().unwrap();
        drop(command);
        until("the pipe to be full", || ioctl_fionread(&reader).unwrap() == full);
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(child.try_wait().unwrap().is_none(), "the first one asks");
        again_until_the_end(&mut child, signal);
        assert_eq!(child.wait().unwrap().code(), Some(code));
        drop(reader);
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_a_quiet_end() {
    use std::io::Read;
    let dir = place();
    let model = tiny(dir.path(), None);
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = monel(dir.path());
    command.args(["run", &model, "--raw", "talk", "-c", "500000", "--device", "cpu", "-t", "1"]);
    let child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    let mut some = [0; 100];
    reader.read_exact(&mut some).unwrap();
    drop(reader);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output).lines().count(), 1, "only the device: {}", stderr(&output));
}

#[test]
fn a_prompt_is_not_waited_for_at_a_terminal() {
    let dir = place();
    let model = tiny(dir.path(), None);
    let mut run = Terminal::start(monel(dir.path()).args(["run", &model, "--device", "cpu"]));
    run.shows("no prompt");
    assert_eq!(run.ends(), 2, "{}", run.shown());
}

#[test]
fn a_line_that_is_no_text_is_said_and_the_conversation_goes_on() {
    use std::io::Write;
    let dir = place();
    let mut chat = chat(&dir, &["-n", "4"]);
    chat.is_ready();
    chat.bytes(b"half a li\xff and its rest\r");
    chat.shows("not UTF-8");
    chat.is_ready();
    chat.keys("hi\r");
    chat.shows("tok/s");
    chat.is_ready();
    chat.keys(CTRL_D);
    assert_eq!(chat.ends(), 0, "{}", chat.shown());
    assert_eq!(entered(&dir), ["hi"]);
    // The same from a pipe.
    let model = tiny(dir.path(), Some(TEMPLATE));
    let mut command = monel(dir.path());
    command.args(["chat", &model, "--device", "cpu", "-t", "1", "-n", "4"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"first\nse\xffcond\nthird\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{message}");
    assert_eq!(message.matches("the line is not UTF-8 text: byte 2 is 0xff").count(), 1, "{message}");
    assert_eq!(message.matches("generated 4 tokens").count(), 2, "{message}");
}
