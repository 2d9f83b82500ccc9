//! Tests on a real Vulkan device, Mesa's software one included. A machine without any skips them and says so, unless
//! `MONEL_REQUIRE_VULKAN` is set. `MONEL_VULKAN_OP` limits the check to one op.

use super::*;
use crate::check::{Filter, Row, run};
use crate::device::Settings;
use crate::graph::Graph;
use crate::trace::Trace;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A device, or `None` where there is none and none is required. `MONEL_VULKAN_DEVICE` is its number.
pub(crate) fn device(forced: Forced) -> Option<(Device, Holder)> {
    let index = std::env::var("MONEL_VULKAN_DEVICE")
        .map_or(0, |n| n.parse().expect("MONEL_VULKAN_DEVICE is a number"));
    if list().is_empty() {
        let required = std::env::var_os("MONEL_REQUIRE_VULKAN").is_some();
        assert!(!required, "no Vulkan device: {:?}", problems());
        println!("skipped: no Vulkan device: {:?}", problems());
        return None;
    }
    Some(create(&Options { index, cache: None, forced, ..Options::default() }).unwrap())
}

/// How many cases of each op passed; none may be wrong. All ops are checked, or one.
fn check(device: &Device, op: Option<String>) -> BTreeMap<&'static str, usize> {
    let report = run(device, &Filter { op, ..Filter::default() });
    println!("{}: {} passed, {} refused", report.device, report.passed, report.refused);
    let mut lines = BTreeMap::<(&str, String), [usize; 3]>::new();
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
    let mut passed = BTreeMap::new();
    for row in report.results.iter().filter(|row| row.outcome == "ok") {
        *passed.entry(row.op).or_default() += 1;
    }
    passed
}

/// What passes on the device as it is. Two tests ask, and a check of everything is most of what either takes.
fn check_once(device: &Device) -> &'static BTreeMap<&'static str, usize> {
    static PASSED: OnceLock<BTreeMap<&'static str, usize>> = OnceLock::new();
    PASSED.get_or_init(|| check(device, std::env::var("MONEL_VULKAN_OP").ok()))
}

#[test]
fn what_is_accepted_is_right() {
    let Some((device, _)) = device(Forced::default()) else { return };
    assert!(!check_once(&device).is_empty());
}

#[test]
fn operands_larger_than_a_binding_are_right() {
    let whole = Forced::default();
    let small = Forced { max_range: "65536".into(), ..whole.clone() };
    let (Some((whole, _)), Some((small, _))) = (device(whole), device(small)) else { return };
    let (all, asked) = (check_once(&whole), std::env::var("MONEL_VULKAN_OP").ok());
    for op in ["get_rows", "mat_mul", "copy", "glu", "set_rows"] {
        if asked.as_ref().is_some_and(|asked| asked != op) {
            continue;
        }
        // Little is refused that fits into one binding elsewhere: ids that repeat over batches in their own rhythm, and
        // temporary memory that is itself too large.
        let (cut, all) = (check(&small, Some(op.into()))[op], all[op]);
        assert!(cut * 8 >= all * 7, "{op}: {cut} of {all}");
    }
}

#[test]
fn spans_of_ops_lie_within_their_chunk() {
    for without in ["", "calibrated", "timestamps"] {
        let forced = Forced { without: without.into(), ..Forced::default() };
        let Some((device, _)) = device(forced) else { return };
        let stream = device.stream();
        let x = device.tensor(DType::F32, &[64, 64]).unwrap();
        let mut graph = Graph::new("ops");
        let mut value = graph.leaf(&x);
        for _ in 0..5 {
            let left = graph.leaf(&x);
            value = graph.mat_mul(left, value).unwrap();
        }
        let out = device.tensor(DType::F32, &[64, 64]).unwrap();
        let place = graph.leaf(&out);
        graph.copy_into(value, place).unwrap();
        let recording = device.record(&graph).unwrap();
        // First without, so that the recording that is replayed has to switch, and back.
        stream.submit(&recording).unwrap().wait().unwrap();
        let trace = Trace::new();
        device.set_trace(Some(trace.clone()));
        let all: Vec<_> = (0..3).map(|_| stream.submit(&recording).unwrap()).collect();
        all.into_iter().for_each(|s| s.wait().unwrap());
        device.set_trace(None);
        stream.submit(&recording).unwrap().wait().unwrap();
        let spans = trace.spans();
        let of = |what| spans.iter().filter(move |s| s.0 == what).map(|s| (s.2, s.2 + s.3));
        let chunks: Vec<(f64, f64)> = of("execute").collect();
        assert_eq!(chunks.len(), 3, "{without}");
        let ops: Vec<(f64, f64)> = of("op").collect();
        if without == "timestamps" {
            assert!(ops.is_empty());
            continue;
        }
        assert!(ops.len() >= 15 && ops.len().is_multiple_of(3), "{} ops", ops.len());
        // Times are written in nanoseconds.
        let inside = |(a, b): (f64, f64), (c, d): (f64, f64)| a <= c + 0.002 && d <= b + 0.002;
        assert!(ops.iter().all(|&op| chunks.iter().any(|&chunk| inside(chunk, op))), "{ops:?} {chunks:?}");
        assert!(ops.iter().any(|(a, b)| b > a));
    }
}

#[test]
fn a_device_below_the_floor_is_refused_by_name() {
    if device(Forced::default()).is_none() {
        return;
    }
    let refused = |without: &str| {
        let forced = Forced { without: without.into(), ..Forced::default() };
        create(&Options { forced, ..Options::default() }).err().unwrap().to_string()
    };
    assert!(refused("storage16").contains("16-bit storage"));
    assert!(refused("no such thing").contains("no such thing"));
}

#[test]
fn work_that_is_given_up_keeps_its_memory() {
    if device(Forced::default()).is_none() {
        return;
    }
    let open = |timeout| {
        let settings = Settings { chunk_budget: Duration::from_secs(3600), ..Settings::default() };
        create(&Options { timeout, settings, cache: None, ..Options::default() }).unwrap().0
    };
    let squares = |device: &Device, count: usize| {
        let [x, out] = [(); 2].map(|()| device.tensor(DType::F32, &[2048, 2048]).unwrap());
        let mut graph = Graph::new("long");
        let mut places = [graph.leaf(&x), graph.leaf(&out)];
        for _ in 0..count {
            graph.apply_into(crate::ops::MatMul, &[places[0], places[0]], places[1]).unwrap();
            places.reverse();
        }
        let recording = device.record(&graph).unwrap();
        // The zeros of new memory are no part of what follows.
        device.stream().fill(out.buffer(), 0, 4, 0).unwrap().wait().unwrap();
        (x, out, recording)
    };
    let one = {
        let device = open(Duration::from_secs(600));
        let (.., recording) = squares(&device, 1);
        let began = Instant::now();
        device.stream().submit(&recording).unwrap().wait().unwrap();
        began.elapsed()
    };
    const LIMIT: Duration = Duration::from_secs(1);
    // Several times the limit, but for a large GPU, which may be in time.
    let count = (4 * LIMIT).as_micros().div_ceil(one.as_micros().max(1)).clamp(2, 500);
    let out = {
        let device = open(LIMIT);
        let (x, out, recording) = squares(&device, count as usize);
        let stream = device.stream();
        let result = stream.submit(&recording).unwrap().wait();
        let software = device.info().kind == crate::device::DeviceKind::Software;
        match result {
            Ok(()) => assert!(!software),
            Err(error) => {
                assert!(matches!(error.root(), crate::Error::Timeout { limit_ms: 1000, .. }), "{error}");
                let refused = stream.upload(&x, &vec![0; 4 * 2048 * 2048]).map(drop).unwrap_err().to_string();
                assert!(refused.contains("1000 ms"), "{refused}");
            }
        }
        out
        // All but a tensor goes here, while the device still works.
    };
    drop(out);
    let device = open(Duration::from_secs(60));
    let x = device.tensor(DType::F32, &[4]).unwrap();
    let stream = device.stream();
    let bytes: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    drop(stream.upload(&x, &bytes).unwrap());
    assert_eq!(stream.download(&x).unwrap().wait().unwrap(), bytes);
}
