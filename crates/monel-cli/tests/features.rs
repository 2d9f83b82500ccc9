//! `MONEL_CPU_FEATURES`: what `devices` says of it, and what a wrong value does.

mod common;

use common::{monel, stderr, stdout};
use std::process::Output;

fn run(args: &[&str], features: Option<&str>) -> Output {
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = monel(directory.path());
    command.env_remove("MONEL_CPU_FEATURES").args(args);
    if let Some(features) = features {
        command.env("MONEL_CPU_FEATURES", features);
    }
    command.output().expect("it runs")
}

/// What `devices --json` says of the CPU's features: the level used, and those there are.
fn features(limit: Option<&str>) -> (String, Vec<String>) {
    let out = run(&["devices", "--json"], limit);
    assert!(out.status.success(), "{}", stderr(&out));
    let shown: serde_json::Value = serde_json::from_str(&stdout(&out)).expect("JSON");
    let devices = shown["devices"].as_array().expect("devices");
    let cpu = devices.iter().find(|d| d["id"] == "cpu").expect("the CPU");
    assert!(devices.iter().filter(|d| d["kind"] != "cpu").all(|d| d["cpu_features"].is_null()));
    let shown = &cpu["cpu_features"];
    let text = |v: &serde_json::Value| v.as_str().expect("a name").to_owned();
    let available = shown["available"].as_array().expect("names").iter().map(text).collect();
    // The device itself says the same.
    assert!(cpu["capabilities"].as_array().expect("names").contains(&shown["used"]), "{cpu}");
    (text(&shown["used"]), available)
}

#[test]
fn devices_shows_the_level_in_use_and_those_of_the_machine() {
    let (best, available) = features(None);
    assert_eq!((available.first().map(String::as_str), available.last()), (Some("scalar"), Some(&best)));
    for level in &available {
        assert_eq!(features(Some(level)), (level.clone(), available.clone()));
    }
    assert_eq!(features(Some("")).0, best, "empty limits nothing");
    let table = stdout(&run(&["devices"], Some("scalar")));
    assert!(table.contains("scalar used") && table.contains(&best), "{table}");
}

#[test]
fn a_name_that_is_unknown_or_above_the_machine_is_one_clear_error() {
    let (_, available) = features(None);
    let levels =
        ["scalar", "avx2", "avx2-vnni", "avx512", "avx512-vnni", "amx", "neon", "dotprod", "i8mm", "sse9"];
    for wrong in levels.into_iter().filter(|level| !available.iter().any(|a| a == level)) {
        for args in [&["devices"][..], &["check", "--device", "cpu", "-o", "scale"]] {
            let out = run(args, Some(wrong));
            let message = stderr(&out);
            assert_eq!((out.status.code(), stdout(&out).as_str()), (Some(1), ""), "{message}");
            assert!(message.contains("MONEL_CPU_FEATURES") && message.contains(wrong), "{message}");
            assert!(message.contains(&available.join(", ")) && message.contains("unset it"), "{message}");
            assert!(!message.contains("panicked") && message.lines().count() == 1, "{message}");
        }
    }
}

#[test]
fn every_level_computes_right_through_the_program() {
    for level in features(None).1 {
        let args = ["check", "--device", "cpu", "--max-values", "600", "-t", "2"];
        let out = run(&args, Some(&level));
        assert!(out.status.success(), "{level}: {}{}", stdout(&out), stderr(&out));
    }
}
