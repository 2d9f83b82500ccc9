//! E1 to E5.

use crate::harness::*;
use crate::transfers::block_on;
use monel::device::scripted::{Fault, Script};
use monel::device::{Device, Storage};
use monel::{CancelToken, DType, Error, Graph, Recording, Stream, Tensor};

#[test]
fn e1_a_panicking_kernel_is_an_error_and_the_device_goes_on() {
    on_each_host(&options(), |rig| {
        let (stream, other) = (rig.device.stream(), rig.device.stream());
        let error = stream.submit(&lone(&rig.device, "bad", Panics)).unwrap().wait().unwrap_err();
        assert!(error.to_string().contains("as the test wants"), "{error}");
        let a = tensor(&rig.device, Storage::Private, 8);
        other.fill(a.buffer(), 0, 32, 5).unwrap().wait().unwrap();
        stream.recover().unwrap();
        assert_eq!(stream.download(&a).unwrap().wait().unwrap(), [5; 32]);
    });
}

#[test]
fn e1_a_panicking_encoder_is_an_error_also_on_a_helper() {
    for helpers in [0, 1] {
        let mut options = tiny_chunks();
        options.settings.encode_helpers = helpers;
        on_each_host(&options, |rig| {
            let stream = rig.device.stream();
            let first = stream.submit(&lone(&rig.device, "bad", PanicsInEncoding));
            assert!(matches!(first.map(drop), Err(Error::Kernel(_))), "the first chunk is the caller's");
            let (a, b) = (tensor(&rig.device, Storage::Private, 8), tensor(&rig.device, Storage::Private, 1));
            let mut graph = count_up("good, then bad", &a, &a, 3);
            let place = graph.leaf(&b);
            graph.apply_into(PanicsInEncoding, &[], place).unwrap();
            let error = stream.submit(&rig.device.record(&graph).unwrap()).unwrap().wait().unwrap_err();
            let Error::Failed { place, cause } = &error else { panic!("{error}") };
            assert_eq!(place.chunk, 3);
            assert!(cause.to_string().contains("as the test wants"), "{error}");
            stream.recover().unwrap();
            stream.run(&count_up("afterwards", &a, &a, 3)).unwrap();
        });
    }
}

/// A file whose length cannot be asked for.
struct Unreadable;

impl monel::HostMapping for Unreadable {
    fn bytes(&self) -> &[u8] {
        #[repr(align(4096))]
        struct Page([u8; 4096]);
        static PAGE: Page = Page([0; 4096]);
        &PAGE.0
    }
    fn name(&self) -> String {
        "unreadable".into()
    }
    fn current_len(&self) -> Option<u64> {
        panic!("as the test wants")
    }
}

#[test]
fn e1_other_peoples_code_that_panics_does_not_stop_the_device() {
    struct Waker;
    impl std::task::Wake for Waker {
        fn wake(self: std::sync::Arc<Self>) {
            panic!("as the test wants")
        }
    }
    on_each_host(&options(), |rig| {
        let stream = rig.device.stream();
        let mapped = rig.device.map(std::sync::Arc::new(Unreadable), &[0..64]).unwrap();
        let weights = mapped.tensor(0, monel::Desc::new(DType::F32, &[16]).unwrap()).unwrap();
        let error = stream.download(&weights).unwrap().wait().unwrap_err();
        assert!(error.to_string().contains("as the test wants"), "{error}");
        stream.recover().unwrap();

        let held = rig.hold();
        let a = tensor(&rig.device, Storage::Private, 8);
        let mut fill = stream.fill(a.buffer(), 0, 32, 3).unwrap();
        let waker = std::sync::Arc::new(Waker).into();
        let mut context = std::task::Context::from_waker(&waker);
        assert!(std::pin::Pin::new(&mut fill).poll(&mut context).is_pending());
        drop(held);
        fill.wait().unwrap();
        assert_eq!(stream.download(&a).unwrap().wait().unwrap(), [3; 32]);
    });
}

/// A script with a stream, and a graph of six chunks from `a` to `b`.
fn scripted_graph(name: &str) -> (Device, Script, Stream, Recording, [Tensor; 2]) {
    let (device, script) = scripted(&tiny_chunks());
    let tensors = [(); 2].map(|()| tensor(&device, Storage::Private, 8));
    let recording = device.record(&count_up(name, &tensors[0], &tensors[1], 6)).unwrap();
    let stream = device.stream();
    (device, script, stream, recording, tensors)
}

fn kernel_fault(graph: &str, chunk: usize) -> Fault {
    Fault::Kernel { graph: graph.into(), chunk, op: "scale blk.3".into() }
}

#[test]
fn e2_the_first_failure_is_named_and_told_to_everybody() {
    let (device, script, stream, recording, [a, b]) = scripted_graph("prefill");
    script.fault(kernel_fault("prefill", 1));
    let failing = stream.submit(&recording).unwrap();
    let after = stream.submit(&recording).unwrap();
    let download = stream.download(&b).unwrap();
    eventually("all is encoded", || recording.is_encoded());
    // Waiters of every kind, some of them asleep.
    std::thread::scope(|scope| {
        let waiters = [
            scope.spawn(|| after.wait().unwrap_err()),
            scope.spawn(|| block_on(download).unwrap_err()),
            scope.spawn(|| stream.synchronize().unwrap_err()),
        ];
        script.run_all();
        let first = failing.wait().unwrap_err();
        let Error::Failed { place, .. } = &first else { panic!("{first}") };
        assert_eq!((place.graph.as_str(), place.chunk), ("prefill", 1));
        assert_eq!(place.op.as_deref(), Some("scale blk.3"));
        for waiter in waiters {
            let error = waiter.join().unwrap();
            assert!(error.to_string().contains("prefill (chunk 1), scale blk.3"), "{error}");
        }
        // Chunk 2 was on the device already and drained.
        assert!(!script.log().iter().any(|r| r.chunk > 2), "the rest never ran");
        // What comes now is refused with that first error, and nothing of it runs.
        let ran = script.log().len();
        for refused in [
            stream.submit(&recording).map(drop),
            stream.upload(&a, &[0; 32]).map(drop),
            stream.fill(a.buffer(), 0, 1, 0).map(drop),
            stream.download(&a).map(drop),
        ] {
            let Err(Error::Poisoned { first: found }) = refused else { panic!("{refused:?}") };
            assert_eq!(found.to_string(), first.to_string());
        }
        assert_eq!((script.run_all(), script.log().len()), (0, ran));
    });
    drop(device);
}

#[test]
fn e2_the_op_is_named_by_the_device_too() {
    on_each_host(&options(), |rig| {
        let error =
            rig.device.stream().submit(&lone(&rig.device, "decode", Fails)).unwrap().wait().unwrap_err();
        let Error::Failed { place, .. } = &error else { panic!("{error}") };
        assert_eq!((place.graph.as_str(), place.chunk, place.op.as_deref()), ("decode", 0, Some("fails")));
    });
}

#[test]
fn e2_what_was_on_the_device_behind_a_failure_fails_too() {
    on_each_host(&options(), |rig| {
        let stream = rig.device.stream();
        let bad = lone(&rig.device, "bad", Fails);
        let a = tensor(&rig.device, Storage::Private, 8);
        let held = rig.hold();
        let failing = stream.submit(&bad).unwrap();
        let unrelated = stream.fill(a.buffer(), 0, 32, 1).unwrap();
        let other = rig.device.stream();
        let elsewhere = other.fill(tensor(&rig.device, Storage::Private, 8).buffer(), 0, 32, 1);
        drop(held);
        assert!(matches!(failing.wait(), Err(Error::Failed { .. })));
        assert!(matches!(unrelated.wait(), Err(Error::Poisoned { .. })), "it is the same stream's");
        elsewhere.unwrap().wait().unwrap();
    });
}

/// A stream that failed to write `b`.
fn damaged(device: &Device, b: &Tensor) -> Stream {
    let stream = device.stream();
    let mut graph = Graph::new("broken");
    let place = graph.leaf(&b.slice(0, 0, 1).unwrap());
    graph.apply_into(Fails, &[], place).unwrap();
    drop(stream.submit(&device.record(&graph).unwrap()).unwrap());
    stream
}

#[test]
fn e2_damaged_data_fails_whoever_reads_it_until_it_is_overwritten() {
    on_each_host(&options(), |rig| {
        let (b, c) = (tensor(&rig.device, Storage::Private, 8), tensor(&rig.device, Storage::Private, 8));
        let failing = damaged(&rig.device, &b);
        let other = rig.device.stream();
        let error = other.download(&b).unwrap().wait().unwrap_err();
        assert!(error.to_string().contains("broken"), "{error}");
        // Reading it poisoned the other stream too, and what that would have written.
        assert!(other.is_poisoned() && other.synchronize().is_err());
        other.recover().unwrap();
        let graph = count_up("reader", &b, &c, 1);
        assert!(other.run(&graph).is_err());
        other.recover().unwrap();
        // Bytes next to the damage are fine, and so are damaged ones that are overwritten, piece by piece.
        other.download_bytes(b.buffer(), 4, 28).unwrap().wait().unwrap();
        drop(other.fill(b.buffer(), 0, 2, 0).unwrap());
        drop(other.upload_bytes(b.buffer(), 2, &[0; 2]).unwrap());
        other.run(&graph).unwrap();
        assert_eq!(floats(&other.download(&c).unwrap().wait().unwrap()), [1.0; 8]);
        assert!(failing.is_poisoned(), "the stream itself still refuses");
    });
}

#[test]
fn e2_damage_outlives_its_stream_but_not_its_recovery_or_its_buffer() {
    on_each_host(&options(), |rig| {
        let b = tensor(&rig.device, Storage::Private, 8);
        drop(damaged(&rig.device, &b));
        let other = rig.device.stream();
        assert!(other.download(&b).unwrap().wait().is_err(), "its stream is gone, the garbage is not");
        other.recover().unwrap();
        drop(b);
        let b = tensor(&rig.device, Storage::Private, 8);
        let failing = damaged(&rig.device, &b);
        assert!(failing.synchronize().is_err());
        failing.recover().unwrap();
        other.download(&b).unwrap().wait().unwrap();
    });
}

#[test]
fn e3_synchronize_reports_once_and_the_stream_stays_poisoned_until_recover() {
    on_each_host(&options(), |rig| {
        let stream = rig.device.stream();
        let a = tensor(&rig.device, Storage::Private, 8);
        let bad = lone(&rig.device, "bad", Fails);
        for _ in 0..2 {
            let failing = stream.submit(&bad).unwrap();
            assert!(matches!(failing.wait(), Err(Error::Failed { .. })), "the submission resolves to it");
            assert!(matches!(stream.synchronize(), Err(Error::Failed { .. })), "told once");
            stream.synchronize().unwrap();
            assert!(stream.is_poisoned());
            assert!(matches!(stream.submit(&bad).map(drop), Err(Error::Poisoned { .. })));
            stream.synchronize().unwrap();
            stream.recover().unwrap();
            assert!(!stream.is_poisoned());
            stream.fill(a.buffer(), 0, 32, 1).unwrap().wait().unwrap();
            stream.synchronize().unwrap();
        }
    });
}

#[test]
fn e3_a_lost_device_resolves_everything_and_can_be_opened_again() {
    let (device, script, stream, recording, [a, b]) = scripted_graph("step");
    let (other, idle) = (device.stream(), device.stream());
    script.fault(Fault::Lost { graph: "step".into(), chunk: 1 });
    let failing = stream.submit(&recording).unwrap();
    let behind = other.download(&b).unwrap();
    eventually("all is encoded", || recording.is_encoded());
    script.step();
    script.step();
    let error = failing.wait().unwrap_err();
    let Error::Failed { place, .. } = &error else { panic!("{error}") };
    assert_eq!((place.graph.as_str(), place.chunk), ("step", 1));
    assert!(matches!(error.root(), Error::DeviceLost { .. }), "{error}");
    assert!(matches!(behind.wait().unwrap_err().root(), Error::DeviceLost { .. }));
    for s in [&stream, &other, &idle] {
        assert!(s.is_poisoned());
        let refused = s.fill(a.buffer(), 0, 1, 0).map(drop).unwrap_err();
        assert!(matches!(refused.root(), Error::DeviceLost { .. }), "{refused}");
        assert!(matches!(s.recover().unwrap_err().root(), Error::DeviceLost { .. }));
    }
    assert!(stream.synchronize().is_err() && stream.synchronize().is_ok());
    script.run_all();
    let counts = device.counts();
    drop((stream, other, idle, recording, a, b, device, script));
    eventually("nothing is left", || counts.snapshot() == [0; 5]);
    let (_device, script, stream, recording, [a, _]) = scripted_graph("step");
    let _background = script.run_in_background();
    stream.submit(&recording).unwrap().wait().unwrap();
    stream.download(&a).unwrap().wait().unwrap();
}

#[test]
fn e3_a_hang_is_a_timeout_of_its_chunk() {
    let (_device, script, stream, recording, _tensors) = scripted_graph("step");
    script.fault(Fault::Hang { graph: "step".into(), chunk: 0, limit_ms: 2000 });
    let failing = stream.submit(&recording).unwrap();
    script.run_all();
    let error = failing.wait().unwrap_err();
    assert!(matches!(error.root(), Error::Timeout { limit_ms: 2000, .. }), "{error}");
    assert_eq!(script.log()[0].ended.as_millis(), 2000, "by the device's clock");
    stream.recover().unwrap();
    let again = stream.submit(&recording).unwrap();
    let _background = script.run_in_background();
    again.wait().unwrap();
}

#[test]
fn e4_a_graph_that_cannot_run_is_refused_whole() {
    let (device, script) = scripted(&options());
    let (elsewhere, _script) = scripted(&options());
    let stream = device.stream();
    let (a, b) = (tensor(&device, Storage::Private, 8), tensor(&device, Storage::Private, 8));
    let before = device.counts().snapshot();
    let mut graph = count_up("bad op", &a, &b, 3);
    let leaf = graph.leaf(&b);
    graph.apply(Unsupported, &[leaf]).unwrap();
    let Err(Error::Unsupported { op, reason, .. }) = stream.run(&graph) else { panic!("refused") };
    assert!(op.contains("Unsupported") && op.contains("8") && reason == "nobody can", "{op}: {reason}");

    let foreign = tensor(&elsewhere, Storage::Private, 8);
    let graph = count_up("foreign", &a, &foreign, 1);
    assert!(matches!(stream.run(&graph), Err(Error::Foreign { .. })));
    assert!(matches!(stream.upload(&foreign, &[0; 32]).map(drop), Err(Error::Foreign { .. })));
    let recording = elsewhere.record(&count_up("foreign", &foreign, &foreign, 1)).unwrap();
    assert!(matches!(stream.submit(&recording).map(drop), Err(Error::Foreign { .. })));

    let mut graph = Graph::new("bad shape");
    let (x, y) = (graph.leaf(&a), graph.leaf(&tensor(&device, Storage::Private, 3)));
    assert!(matches!(graph.add(x, y), Err(Error::Shape { .. })));
    let other = Graph::new("other").leaf(&a);
    assert!(matches!(graph.add(x, other), Err(Error::Foreign { .. })));
    drop(graph);

    assert_eq!((script.run_all(), script.log().len()), (0, 0), "nothing ran");
    assert_eq!(device.counts().snapshot(), before);
    assert!(!stream.is_poisoned());
}

#[test]
fn e5_cancel_in_the_middle_of_a_long_graph() {
    let (device, script) = scripted(&tiny_chunks());
    let (a, b) = (tensor(&device, Storage::Private, 8), tensor(&device, Storage::Private, 8));
    let stream = device.stream();
    for encoded in [false, true] {
        let recording = device.record(&count_up("prompt", &a, &b, 30)).unwrap();
        let token = CancelToken::new();
        script.hold_encode("prompt", 10);
        let prompt = stream.submit_with(&recording, Some(&token)).unwrap();
        if encoded {
            script.release();
            eventually("all is encoded", || recording.is_encoded());
        }
        for _ in 0..5 {
            eventually("the next chunk is there", || script.step());
        }
        let ran = script.log().len();
        token.cancel();
        assert!(!prompt.is_done(), "what was committed drains first");
        // The encoder of chunk 10 is late: it comes while the rest drains, changes nothing, and goes on to other work.
        let commands = || device.counts().snapshot()[4];
        let before = commands();
        script.release();
        eventually("the late chunk is encoded", || encoded || commands() > before);
        (0..50).for_each(|_| std::thread::yield_now());
        assert!(script.run_all() <= 2, "two chunks at most");
        assert!(matches!(prompt.wait(), Err(Error::Cancelled)));
        let next = device.record(&count_up("next prompt", &a, &b, 30)).unwrap();
        let next = stream.submit(&next).unwrap();
        assert!(!stream.is_poisoned());
        eventually("the stream is usable", || {
            script.run_all();
            next.is_done()
        });
        next.wait().unwrap();
        stream.synchronize().unwrap();
        let log = script.log();
        assert!(log[ran..].iter().filter(|r| r.graph == "prompt").count() <= 2);
    }
}

#[test]
fn e5_cancel_on_every_device_and_before_the_first_chunk() {
    on_each(&tiny_chunks(), |rig| {
        let (a, b) = (tensor(&rig.device, Storage::Private, 8), tensor(&rig.device, Storage::Private, 8));
        let stream = rig.device.stream();
        let recording = rig.device.record(&count_up("prompt", &a, &b, 500)).unwrap();
        let held = rig.hold();
        let token = CancelToken::new();
        let prompt = stream.submit_with(&recording, Some(&token)).unwrap();
        let same = stream.submit_with(&recording, Some(&token)).unwrap();
        token.cancel();
        drop(held);
        assert!(matches!(prompt.wait(), Err(Error::Cancelled)));
        assert!(matches!(same.wait(), Err(Error::Cancelled)), "one token over two submissions");
        let refused = stream.submit_with(&recording, Some(&token)).unwrap();
        assert!(matches!(refused.wait(), Err(Error::Cancelled)), "cancelled before it was submitted");
        stream.synchronize().unwrap();
        drop(stream.fill(a.buffer(), 0, 32, 0).unwrap());
        stream.submit(&recording).unwrap().wait().unwrap();
        assert_eq!(floats(&stream.download(&a).unwrap().wait().unwrap()), [500.0; 8]);
        assert_eq!(DType::F32, a.desc().dtype);
    });
}

/// A row outside its table is an error of the submission on every device, names the op, and harms nothing else.
#[test]
fn e2_a_wrong_row_number_fails_its_submission_everywhere() {
    on_each(&options(), |rig| {
        let table = tensor(&rig.device, Storage::Private, 8).reshape(&[4, 2]).unwrap();
        let ids = rig.device.tensor(DType::I32, &[1]).unwrap();
        let out = tensor(&rig.device, Storage::Private, 4);
        let mut graph = Graph::new("lookup");
        let [t, i, place] = [&table, &ids, &out].map(|t| graph.leaf(t));
        graph.apply_into(monel::ops::GetRows, &[t, i], place).unwrap();
        let recording = rig.device.record(&graph).unwrap();
        let stream = rig.device.stream();
        for (id, fails) in [(1, false), (2, true), (-1, true), (0, false)] {
            drop(stream.upload(&ids, &bytes(&[id])).unwrap());
            let outcome = stream.submit(&recording).unwrap().wait();
            assert_eq!(outcome.is_err(), fails, "row {id}");
            if let Err(error) = outcome {
                assert!(error.to_string().contains(&format!("row {id} of a table of 2 rows")), "{error}");
                assert!(error.to_string().contains("get_rows"), "{error}");
                stream.recover().unwrap();
            }
        }
    });
}
