//! Tests on a real Vulkan device, Mesa's software one included. A machine without any skips them and says so, unless
//! `MONEL_REQUIRE_VULKAN` is set. `MONEL_VULKAN_OP` limits the check to one op.

use super::*;
use crate::check::{Filter, Row, run};

/// A device, or `None` where there is none and none is required. `MONEL_VULKAN_DEVICE` is its number.
fn device() -> Option<(Device, Holder)> {
    let index = std::env::var("MONEL_VULKAN_DEVICE").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    if list().is_empty() {
        let required = std::env::var_os("MONEL_REQUIRE_VULKAN").is_some();
        assert!(!required, "no Vulkan device: {:?}", problems());
        println!("skipped: no Vulkan device: {:?}", problems());
        return None;
    }
    Some(create(&Options { index, cache: None, ..Options::default() }).unwrap())
}

#[test]
fn what_is_accepted_is_right() {
    let Some((device, _)) = device() else { return };
    let report = run(&device, &Filter { op: std::env::var("MONEL_VULKAN_OP").ok(), dtype: None });
    println!("{}: {} passed, {} refused", report.device, report.passed, report.refused);
    let mut lines = std::collections::BTreeMap::<(&str, String), [usize; 3]>::new();
    for row in &report.results {
        let counts = lines.entry((row.op, row.dtype.to_string())).or_default();
        counts[["ok", "failed", "refused"].iter().position(|o| *o == row.outcome).unwrap()] += 1;
    }
    for ((op, dtype), [ok, failed, refused]) in lines {
        println!("{op:16} {dtype:8} {ok:4} ok {failed:4} failed {refused:4} refused");
    }
    let wrong: Vec<&Row> = report.results.iter().filter(|row| row.outcome == "failed").collect();
    for row in wrong.iter().take(30) {
        println!("{} {}: {}", row.op, row.shape, row.reason.as_deref().unwrap_or_default());
    }
    assert!(wrong.is_empty(), "{} cases are wrong", wrong.len());
    assert!(report.passed > 0);
}
