//! A1 to A7.

use crate::harness::*;
use monel::device::scripted::{Ran, Script};
use monel::device::{Device, Storage};
use monel::{DType, Graph, Trace};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn a1_submit_returns_before_anything_ran() {
    on_each(&options(), |rig| {
        let (a, b) = (tensor(&rig.device, Storage::Private, 8), tensor(&rig.device, Storage::Private, 8));
        let recording = rig.device.record(&count_up("later", &a, &b, 3)).unwrap();
        let stream = rig.device.stream();
        let held = rig.hold();
        let graph = stream.submit(&recording).unwrap();
        let upload = stream.upload(&a, &[0; 32]).unwrap();
        let download = stream.download(&b).unwrap();
        assert!(!graph.is_done() && !upload.is_done() && !download.is_done());
        drop(held);
        graph.wait().unwrap();
        upload.wait().unwrap();
        assert_eq!(floats(&download.wait().unwrap()), [3.0; 8]);
    });
}

#[test]
fn a2_the_first_chunk_is_64_nodes_or_a_tenth() {
    let (device, _script) = scripted(&options());
    let (a, b) = (tensor(&device, Storage::Private, 8), tensor(&device, Storage::Private, 8));
    for (nodes, first) in [(1, 1), (64, 64), (65, 64), (640, 64), (700, 70), (2000, 200)] {
        let plan = device.plan(&count_up("long", &a, &b, nodes)).unwrap();
        assert_eq!(plan.chunks[0].steps, 0..first, "{nodes} nodes");
        let covered: Vec<usize> = plan.chunks.iter().flat_map(|c| c.steps.clone()).collect();
        assert_eq!(covered, (0..nodes).collect::<Vec<_>>());
    }
}

#[test]
fn a2_the_device_starts_while_the_rest_is_encoded() {
    let (device, script) = scripted(&options());
    let (a, b) = (tensor(&device, Storage::Private, 8), tensor(&device, Storage::Private, 8));
    script.hold_encode("long", 1);
    let stream = device.stream();
    let long = stream.submit(&device.record(&count_up("long", &a, &b, 100)).unwrap()).unwrap();
    assert!(script.step(), "the first chunk is committed, though the second cannot be encoded");
    assert!(!script.step() && !long.is_done());
    script.release();
    eventually("the second chunk is committed", || script.step());
    long.wait().unwrap();
    assert_eq!(
        floats(&{
            let bytes = stream.download(&a).unwrap();
            script.run_all();
            bytes.wait().unwrap()
        }),
        [100.0; 8]
    );
}

#[test]
fn a2_results_are_the_same_for_any_number_of_helpers() {
    for helpers in [0, 1, 2, 4, 8] {
        let mut options = tiny_chunks();
        options.settings.encode_helpers = helpers;
        on_each(&options, |rig| {
            let (a, b) =
                (tensor(&rig.device, Storage::Private, 64), tensor(&rig.device, Storage::Private, 64));
            let stream = rig.device.stream();
            for (round, steps) in [(0, 301), (1, 7), (2, 64)] {
                drop(stream.upload(&a, &float_bytes(&[round as f32; 64])).unwrap());
                let recording = rig.device.record(&count_up("counting", &a, &b, steps)).unwrap();
                drop(stream.submit(&recording).unwrap());
                let end = stream.download(if steps % 2 == 0 { &a } else { &b }).unwrap();
                assert_eq!(floats(&end.wait().unwrap()), [(round + steps) as f32; 64], "{helpers} helpers");
            }
            stream.synchronize().unwrap();
        });
    }
}

#[test]
fn a2_two_chunks_of_a_long_graph_wait_on_the_device() {
    let (device, script) = scripted(&tiny_chunks());
    let (a, b) = (tensor(&device, Storage::Private, 8), tensor(&device, Storage::Private, 8));
    let recording = device.record(&count_up("long", &a, &b, 20)).unwrap();
    let (stream, other) = (device.stream(), device.stream());
    for _replay in 0..2 {
        let long = stream.submit(&recording).unwrap();
        eventually("all is encoded", || recording.is_encoded());
        for chunk in 0..20 {
            let expected: Vec<_> = (chunk..20.min(chunk + 2)).map(|c| ("long".to_string(), c)).collect();
            eventually("the window is full", || script.pending().len() == expected.len());
            assert_eq!(script.pending(), expected);
            assert!(!long.is_done());
            script.step();
        }
        long.wait().unwrap();
    }
    // Another stream's work runs between two chunks, unless it touches the same bytes.
    let long = stream.submit(&recording).unwrap();
    let between = other.fill(tensor(&device, Storage::Private, 8).buffer(), 0, 32, 1).unwrap();
    let dependent = other.fill(a.buffer(), 0, 32, 1).unwrap();
    (0..3).for_each(|_| assert!(script.step()));
    assert!(between.is_done() && !dependent.is_done() && !long.is_done());
    script.run_all();
    assert_eq!(script.log().last().unwrap().graph, "fill");
    long.wait().unwrap();
    dependent.wait().unwrap();
}

/// Runs one job and gives its entry in the log.
fn step(script: &Script) -> Ran {
    assert!(script.step(), "the device has nothing to do");
    script.log().pop().unwrap()
}

#[test]
fn a2_between_two_graphs_the_device_is_not_idle() {
    let (device, script) = scripted(&options());
    let stream = device.stream();
    let tensors: Vec<_> = (0..8).map(|_| tensor(&device, Storage::Private, 8)).collect();
    // Each graph is new, so it has to be encoded while the one before runs; 100 nodes are two chunks.
    let graph = |k: usize| {
        device.record(&count_up(&format!("graph {k}"), &tensors[k % 7], &tensors[7], 100)).unwrap()
    };
    drop(stream.submit(&graph(0)).unwrap());
    for k in 0..10 {
        // The host hands over graph k + 1 while the device is at graph k.
        drop(stream.submit(&graph(k + 1)).unwrap());
        eventually("graph k + 1 is encoded", || script.pending().len() == 4);
        for chunk in 0..2 {
            let ran = step(&script);
            assert_eq!((ran.graph.as_str(), ran.chunk), (format!("graph {k}").as_str(), chunk));
            assert!(ran.waiting > 0, "idle after chunk {chunk} of graph {k}");
        }
    }
    script.run_all();
    let log = script.log();
    assert!(log.windows(2).all(|w| w[0].ended == w[1].began), "no gap on the device's clock");
    stream.synchronize().unwrap();
}

#[test]
fn a3_a_full_budget_waits_for_the_oldest_and_says_so() {
    let (device, script) = scripted(&options());
    let stream = device.stream();
    let trace = Trace::new();
    device.set_trace(Some(trace.clone()));
    let (a, b) = (tensor(&device, Storage::Private, 8), tensor(&device, Storage::Private, 8));
    let recording = device.record(&count_up("graph", &a, &b, 1)).unwrap();
    let three: Vec<_> = (0..3).map(|_| stream.submit(&recording).unwrap()).collect();
    assert!(three.iter().all(|s| !s.is_done()), "three in flight, and nobody waited");
    // Transfers are not graphs, and another stream has a budget of its own.
    drop(stream.fill(b.buffer(), 0, 4, 0).unwrap());
    drop(device.stream());
    let waits = || trace.spans().iter().any(|s| s.0 == "wait" && s.1.contains("in-flight budget"));
    // Whether the other thread is asleep yet cannot be seen from here, so it gets several chances.
    eventually("a wait is in the trace", || {
        std::thread::scope(|scope| {
            let fourth = scope.spawn(|| stream.submit(&recording).map(drop));
            std::thread::sleep(Duration::from_millis(2));
            assert!(!fourth.is_finished(), "three are in flight, so the fourth waits");
            let graphs = script.pending().iter().filter(|p| p.0 == "graph").count();
            assert_eq!(graphs, 3);
            // One finished graph makes room for it.
            while step(&script).graph != "graph" {}
            fourth.join().unwrap().unwrap();
        });
        waits()
    });
    script.run_all();
    stream.synchronize().unwrap();
}

#[test]
fn a3_graphs_in_flight_share_no_scratch() {
    on_each(&options(), |rig| {
        let stream = rig.device.stream();
        let input = tensor(&rig.device, Storage::Private, 64);
        drop(stream.upload(&input, &float_bytes(&[2.0; 64])).unwrap());
        let mut all = Vec::new();
        for k in 0..3 {
            let output = tensor(&rig.device, Storage::Private, 64);
            let mut graph = Graph::new("scratch");
            let (x, place) = (graph.leaf(&input), graph.leaf(&output));
            let once = graph.scale(x, k as f32, 1.0).unwrap();
            let twice = graph.mul(once, once).unwrap();
            graph.apply_into(monel::ops::Scale { scale: 1.0, bias: 0.5 }, &[twice], place).unwrap();
            all.push((k, rig.device.record(&graph).unwrap(), output));
        }
        let mut results = Vec::new();
        for _ in 0..20 {
            for (k, recording, output) in &all {
                drop(stream.submit(recording).unwrap());
                results.push((*k, stream.download(output).unwrap()));
            }
        }
        for (k, result) in results {
            let expected = (2.0 * k as f32 + 1.0).powi(2) + 0.5;
            assert_eq!(floats(&result.wait().unwrap()), [expected; 64]);
        }
    });
}

#[test]
fn a3_replays_on_two_streams_take_turns_with_their_scratch() {
    let (device, script) = scripted(&tiny_chunks());
    let x = device.tensor(DType::F32, &[8, 8]).unwrap();
    // Nothing but scratch memory is written.
    let mut graph = Graph::new("products");
    let mut value = graph.leaf(&x);
    for _ in 0..4 {
        value = graph.mat_mul(value, value).unwrap();
    }
    let recording = device.record(&graph).unwrap();
    let streams = [device.stream(), device.stream()];
    let first = streams[0].submit(&recording).unwrap();
    eventually("all is encoded", || recording.is_encoded());
    let second = streams[1].submit(&recording).unwrap();
    eventually("the window is full", || script.pending().len() == 2);
    for chunk in [0, 1, 2, 3, 0, 1, 2, 3] {
        assert_eq!(step(&script).chunk, chunk);
    }
    first.wait().unwrap();
    second.wait().unwrap();
}

#[test]
fn a4_synchronize_returns_when_all_is_finished_and_then_at_once() {
    on_each(&options(), |rig| {
        let stream = rig.device.stream();
        let (a, b) = (tensor(&rig.device, Storage::Private, 8), tensor(&rig.device, Storage::Private, 8));
        let recording = rig.device.record(&count_up("graph", &a, &b, 3)).unwrap();
        let held = rig.hold();
        let work = (stream.submit(&recording).unwrap(), stream.fill(a.buffer(), 0, 8, 1).unwrap());
        std::thread::scope(|scope| {
            let synchronized = scope.spawn(|| stream.synchronize());
            (0..50).for_each(|_| std::thread::yield_now());
            assert!(!synchronized.is_finished());
            drop(held);
            synchronized.join().unwrap().unwrap();
        });
        assert!(work.0.is_done() && work.1.is_done());
        // With nothing new it does not wait, whatever other streams do.
        let _held = rig.hold();
        stream.synchronize().unwrap();
    });
}

/// `steps` steps of about 50 µs each by the device's first estimate.
fn heavy(device: &Device, steps: usize) -> Graph {
    let side = |_| device.tensor(DType::F32, &[1 << 16]).unwrap();
    let [a, b] = [0, 1].map(side);
    count_up("heavy", &a, &b, steps)
}

#[test]
fn a5_chunks_keep_to_the_budget_as_estimates_adapt() {
    let (device, script) = scripted(&options());
    let stream = device.stream();
    let graph = heavy(&device, 40);
    let first = device.record(&graph).unwrap();
    let estimate: f64 = first.plan().chunks.iter().map(|c| c.estimate.nominal_ns()).sum();
    assert!(first.plan().chunks.len() == 1 && !first.plan().long, "{}", first.plan());
    // The device turns out to need a second for it, four budgets.
    script.set_job_time(Duration::from_secs(1));
    for _ in 0..40 {
        let work = stream.submit(&first).unwrap();
        script.run_all();
        work.wait().unwrap();
    }
    let plan = device.plan(&graph).unwrap();
    assert!(plan.long, "more than a budget, so the window applies");
    let correction = 1e9 / estimate;
    for chunk in &plan.chunks {
        let expected = chunk.estimate.nominal_ns() * correction;
        assert!(expected <= 251e6, "{expected} ns in {chunk:?}");
    }
    assert!(plan.chunks.len() >= 4 && plan.chunks.len() <= 6, "{plan}");
}

#[test]
fn a6_a_replay_is_neither_planned_nor_encoded() {
    on_each(&tiny_chunks(), |rig| {
        let trace = Trace::new();
        rig.device.set_trace(Some(trace.clone()));
        let stream = rig.device.stream();
        let (a, b) = (tensor(&rig.device, Storage::Private, 8), tensor(&rig.device, Storage::Private, 8));
        let recording = rig.device.record(&count_up("step", &a, &b, 6)).unwrap();
        for _ in 0..5 {
            stream.submit(&recording).unwrap().wait().unwrap();
        }
        rig.device.set_trace(None);
        let of = |category| trace.spans().iter().filter(|s| s.0 == category && s.1.contains("step")).count();
        assert_eq!((of("plan"), of("encode")), (1, 6));
        assert_eq!(of("commit"), 5 * 6);
        assert_eq!(floats(&stream.download(&a).unwrap().wait().unwrap()), [30.0; 8]);
    });
}

#[test]
fn a6_what_changes_from_step_to_step_is_read_from_memory() {
    on_each(&options(), |rig| {
        let stream = rig.device.stream();
        let [step, sum, next] = [(); 3].map(|()| tensor(&rig.device, Storage::Private, 1));
        let mut graph = Graph::new("decode");
        let [position, total, place] = [&step, &sum, &next].map(|t| graph.leaf(t));
        let added = graph.add(total, position).unwrap();
        graph.apply_into(monel::ops::Scale { scale: 1.0, bias: 0.0 }, &[added], place).unwrap();
        graph.apply_into(monel::ops::Scale { scale: 1.0, bias: 0.0 }, &[place], total).unwrap();
        graph.apply_into(monel::ops::Scale { scale: 1.0, bias: 1.0 }, &[position], position).unwrap();
        let recording = rig.device.record(&graph).unwrap();
        (0..10).for_each(|_| drop(stream.submit(&recording).unwrap()));
        assert_eq!(floats(&stream.download(&sum).unwrap().wait().unwrap()), [45.0]);
    });
}

/// Processor time that the calling thread has used, in nanoseconds.
#[cfg(target_os = "linux")]
fn used() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

#[cfg(target_os = "linux")]
#[test]
fn a7_waiting_sleeps() {
    on_each(&options(), |rig| {
        let stream = Arc::new(rig.device.stream());
        let held = rig.hold();
        let waiter = {
            let stream = stream.clone();
            let buffer = tensor(&rig.device, Storage::Private, 8);
            let work = stream.fill(buffer.buffer(), 0, 8, 1).unwrap();
            std::thread::spawn(move || {
                let before = used();
                work.wait().unwrap();
                used() - before
            })
        };
        let pause = Duration::from_millis(200);
        std::thread::sleep(pause);
        drop(held);
        let burnt = u128::from(waiter.join().unwrap());
        // A waiter that spins uses all of the pause (or its share of a busy machine's cores).
        assert!(burnt < pause.as_nanos() / 10, "{burnt} ns of processor time while waiting");
    });
}
