//! What several test programs share: running the binary, small wheels, waiting for a condition.
#![allow(dead_code, clippy::unwrap_used)] // Each test program uses its part of it; helpers of tests are tests.

pub mod models;
#[cfg(unix)]
pub mod terminal;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use monel_cli::models::registry::{KnownModel, Part};
use monel_cli::models::wheel;
use sha2::{Digest, Sha256};

/// The program, with caches of its own, of models and of compiled kernels, and no settings of the user's.
pub fn monel(cache: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_monel"));
    command.env("MONEL_CACHE", cache).env("XDG_CACHE_HOME", cache).stdin(Stdio::null());
    for name in ["MONEL_PYTHON", "HF_ENDPOINT", "HF_TOKEN"] {
        command.env_remove(name);
    }
    command
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits for something another process does; panics when it was not so for a minute. Counts looks and not time: a test
/// that is stopped with its machine, or by a shell, has not waited meanwhile.
pub fn until(what: impl std::fmt::Display, mut holds: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("waited a minute for {what}");
}

/// What a command printed, read as it comes; fails and ends it after a minute.
#[cfg(unix)]
pub fn end_of(child: std::process::Child) -> Output {
    use rustix::process::{Pid, Signal, kill_process};
    /// Leaves nothing running when the test gives up.
    struct Child(Option<Pid>);
    impl Drop for Child {
        fn drop(&mut self) {
            if let Some(pid) = self.0 {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
    let mut running = Child(Some(Pid::from_child(&child)));
    let (done, output) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(child.wait_with_output()));
    let mut ended = None;
    until("the end", || {
        ended = output.try_recv().ok();
        ended.is_some()
    });
    running.0 = None;
    ended.unwrap().unwrap()
}

/// The Vulkan device of number `MONEL_VULKAN_DEVICE`, as `--device` takes it. Without one a test says that it was skipped;
/// with `MONEL_REQUIRE_VULKAN` it fails.
pub fn vulkan(cache: &Path) -> Option<String> {
    let number = std::env::var("MONEL_VULKAN_DEVICE").unwrap_or_else(|_| "0".into());
    let id = format!("vulkan:{number}");
    let output = monel(cache).args(["devices", "--json"]).output().unwrap();
    if stdout(&output).contains(&format!("\"{id}\"")) {
        return Some(id);
    }
    assert!(std::env::var_os("MONEL_REQUIRE_VULKAN").is_none(), "no {id}: {}", stderr(&output));
    eprintln!("skipped: {} needs the device {id}", std::thread::current().name().unwrap_or("a test"));
    None
}

/// An executable script.
#[cfg(unix)]
pub fn script(path: &Path, body: &str) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A script in the place of Python that does what `pip download` does, from the directory `wheels`, and
/// writes a line per call to `calls` there.
#[cfg(unix)]
pub fn fake_python(directory: &Path, wheels: &Path) -> PathBuf {
    let path = directory.join("python");
    script(
        &path,
        &format!(
            r#"wheels='{}'
while [ $# -gt 1 ]; do
  if [ "$1" = --dest ]; then dest="$2"; fi
  shift
done
echo "$1" >> "$wheels/calls"
name=$(echo "$1" | sed 's/==/-/').whl
cp "$wheels/$name" "$dest/" || {{ echo "ERROR: No matching distribution found for $1" >&2; exit 1; }}"#,
            wheels.display()
        ),
    );
    path
}

/// The packages that a fake pip was asked for, in order.
pub fn calls(wheels: &Path) -> Vec<String> {
    fs::read_to_string(wheels.join("calls")).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn leak(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// A small model in `pieces` packages, whose wheels are written to `wheels` as `PACKAGE-1.0.whl`.
pub fn small_model(name: &str, pieces: usize, wheels: &Path) -> (&'static KnownModel, Vec<u8>) {
    let mut content = Vec::new();
    let mut parts = Vec::new();
    for piece in 0..pieces {
        let bytes: Vec<u8> =
            (0..70_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 ^ piece as u8).collect();
        let package = leak(format!("{name}-part{piece}"));
        let member = leak(format!("{name}/model.gguf.part{piece:02}"));
        write_wheel(&wheels.join(format!("{package}-1.0.whl")), member, &bytes);
        parts.push(Part {
            package,
            version: "1.0",
            wheel_bytes: 1000,
            member,
            bytes: bytes.len() as u64,
            sha256: leak(wheel::hex(&Sha256::digest(&bytes))),
        });
        content.extend(bytes);
    }
    let model = KnownModel {
        name: leak(name.into()),
        file: leak(format!("{name}.gguf")),
        bytes: content.len() as u64,
        sha256: leak(wheel::hex(&Sha256::digest(&content))),
        parts: parts.leak(),
    };
    (Box::leak(Box::new(model)), content)
}

/// A zip file with one compressed member and some company.
pub fn write_wheel(path: &Path, member: &str, bytes: &[u8]) {
    let mut zip = zip::ZipWriter::new(File::create(path).unwrap());
    let options = zip::write::SimpleFileOptions::default();
    zip.start_file("readme/METADATA", options).unwrap();
    zip.write_all(b"Name: test").unwrap();
    zip.start_file(member, options.compression_method(zip::CompressionMethod::Deflated)).unwrap();
    zip.write_all(bytes).unwrap();
    zip.finish().unwrap();
}
