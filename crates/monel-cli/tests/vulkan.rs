//! The program on a Vulkan device, where there is one (Mesa's llvmpipe will do), and what it says where there is none.
#![cfg(all(target_os = "linux", feature = "vulkan"))]
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod common;

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::{end_of, monel, stderr, vulkan};

/// A short check.
fn check(cache: &Path, device: &str) -> Output {
    let mut command = monel(cache);
    command.args(["check", "--device", device, "-o", "scale"]);
    end_of(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

#[test]
fn a_cache_of_kernels_that_is_no_file_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    // With another cache: what looks for the device opens all of them.
    let Some(device) = vulkan(tempfile::tempdir().unwrap().path()) else { return };
    let output = check(dir.path(), &device);
    assert_eq!((output.status.code(), stderr(&output).contains("warning")), (Some(0), false), "{output:?}");
    let kernels: Vec<PathBuf> =
        std::fs::read_dir(dir.path().join("monel")).unwrap().map(|e| e.unwrap().path()).collect();
    let [kernels] = &kernels[..] else { panic!("{kernels:?}") };
    assert!(kernels.is_file());
    std::fs::remove_file(kernels).unwrap();
    assert!(Command::new("mkfifo").arg(kernels).status().unwrap().success());
    let output = check(dir.path(), &device);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{message}");
    assert_eq!(message.matches("warning: ").count(), 1, "{message}");
    assert!(message.contains(kernels.to_str().unwrap()) && message.contains("no regular file"), "{message}");
    assert!(std::fs::symlink_metadata(kernels).unwrap().file_type().is_fifo());
}

#[test]
fn what_keeps_devices_from_being_there_is_not_listed_among_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = monel(dir.path());
    // Where the loader looks for drivers, under its new and its old name.
    command.env("VK_DRIVER_FILES", "/nowhere").env("VK_ICD_FILENAMES", "/nowhere");
    let output = command.args(["check", "--device", "vulkan", "-o", "scale"]).output().unwrap();
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    let (there, missing) = message.split_once("; others may be missing: ").unwrap();
    let there = there.split_once("error: no device 'vulkan'; this machine has cpu (").unwrap().1;
    assert!(there.ends_with(')') && !there.to_lowercase().contains("vulkan"), "{message}");
    assert!(missing.contains("Vulkan"), "{message}");
}

#[test]
fn variables_with_values_they_cannot_have_are_one_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let run = |name: &str, value: &str, words: &[&str]| {
        monel(dir.path()).env(name, value).args(words).output().unwrap()
    };
    for (name, value) in [
        ("MONEL_VULKAN_MAX_RANGE", "nonsense"),
        ("MONEL_VULKAN_MAX_RANGE", "65535"),
        ("MONEL_VULKAN_MAX_RANGE", "-1"),
        ("MONEL_VULKAN_MAX_RANGE", "4294967296"),
        ("MONEL_VULKAN_WITHOUT", "f61"),
        ("MONEL_VULKAN_VALIDATION", "yes"),
    ] {
        for words in
            [&["devices"][..], &["check", "-o", "scale"], &["check", "--device", "vulkan", "-o", "scale"]]
        {
            let output = run(name, value, words);
            let message = stderr(&output);
            assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{words:?}: {message}");
            let start = format!("error: {name} is '{value}', expected ");
            assert!(message.starts_with(&start) && message.lines().count() == 1, "{words:?}: {message}");
        }
        let output = run(name, value, &["check", "--device", "cpu", "-o", "scale"]);
        assert_eq!(output.status.code(), Some(0), "the CPU does not look at it: {}", stderr(&output));
    }
    for (name, value) in
        [("MONEL_VULKAN_MAX_RANGE", "65536"), ("MONEL_VULKAN_MAX_RANGE", ""), ("MONEL_VULKAN_WITHOUT", "f16")]
    {
        assert_eq!(run(name, value, &["devices"]).status.code(), Some(0), "{name}={value}");
    }
}

/// A number that is none is not lost where activations are rounded to eight bits: the sampler hears of it.
#[test]
fn weights_that_are_no_numbers_are_an_error_of_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let Some(vulkan) = vulkan(dir.path()) else { return };
    let model = common::models::tiny_q8(dir.path(), |name, values| {
        if name == "output_norm" {
            values[7] = f32::NAN;
        }
    });
    for device in ["cpu", &vulkan] {
        let mut command = monel(dir.path());
        command.args(["run", &model, "--raw", "talk", "-n", "4", "--device", device]);
        let output = command.output().unwrap();
        let message = stderr(&output);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{device}: {message}");
        assert!(message.contains("are NaN"), "{device}: {message}");
    }
}
