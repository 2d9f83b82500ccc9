//! E6: dropping things in any order, with work in flight.

use crate::harness::*;
use monel::device::{Device, Storage, software};
use monel::{Buffer, CancelToken, Download, Event, Recording, Stream, Submission};
use proptest::prelude::*;

/// Anything that keeps a device alive.
#[allow(dead_code, reason = "held to be dropped")]
enum Thing {
    Device(Device),
    Stream(Stream),
    Buffer(Buffer),
    Recording(Recording),
    Submission(Submission),
    Download(Download),
    Event(Event),
    Token(CancelToken),
}

/// Work of every kind in flight, and all handles.
fn things(device: Device, cancel: bool) -> Vec<Thing> {
    let streams = [device.stream(), device.stream()];
    let (a, b) = (tensor(&device, Storage::Private, 256), tensor(&device, Storage::Shared, 256));
    let recording = device.record(&count_up("work", &a, &b, 40)).unwrap();
    let token = CancelToken::new();
    let mut things = vec![
        Thing::Submission(streams[0].upload(&a, &[0; 1024]).unwrap()),
        Thing::Submission(streams[0].submit_with(&recording, Some(&token)).unwrap()),
        Thing::Submission(streams[1].submit(&recording).unwrap()),
        Thing::Download(streams[1].download(&b).unwrap()),
    ];
    let event = streams[0].record_event();
    streams[1].wait_event(&event);
    things.push(Thing::Submission(streams[1].fill(b.buffer(), 0, 100, 3).unwrap()));
    if cancel {
        token.cancel();
    }
    let [one, two] = streams;
    things.extend([Thing::Event(event), Thing::Token(token), Thing::Recording(recording)]);
    things.extend([Thing::Stream(one), Thing::Stream(two), Thing::Device(device)]);
    things.extend([Thing::Buffer(a.buffer().clone()), Thing::Buffer(b.buffer().clone())]);
    things
}

#[test]
fn e6_any_order_of_dropping_leaves_nothing() {
    let orders =
        (prop::collection::vec(any::<prop::sample::Index>(), 16), any::<bool>(), 0usize..3, 1usize..4);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(80));
    runner
        .run(&orders, |(picks, cancel, helpers, threads)| {
            let mut options = tiny_chunks();
            (options.threads, options.settings.encode_helpers) = (threads, helpers);
            let device = software::create(&options).unwrap();
            let counts = device.counts();
            let mut things = things(device, cancel);
            for pick in picks {
                if !things.is_empty() {
                    drop(things.swap_remove(pick.index(things.len())));
                }
            }
            drop(things);
            eventually("all counts are zero", || counts.snapshot() == [0; 5]);
            Ok(())
        })
        .unwrap();
}

#[test]
fn e6_dropping_a_stream_waits_for_its_work() {
    on_each(&options(), |rig| {
        let a = tensor(&rig.device, Storage::Private, 8);
        let stream = rig.device.stream();
        let held = rig.hold();
        let work = stream.fill(a.buffer(), 0, 32, 6).unwrap();
        std::thread::scope(|scope| {
            let dropped = scope.spawn(|| drop(stream));
            (0..50).for_each(|_| std::thread::yield_now());
            assert!(!dropped.is_finished() && !work.is_done());
            drop(held);
            dropped.join().unwrap();
        });
        assert!(work.is_done());
        assert_eq!(rig.device.stream().download(&a).unwrap().wait().unwrap(), [6; 32]);
    });
}

#[test]
fn e6_memory_lives_as_long_as_the_device_uses_it() {
    on_each(&software::Options { memory_limit: Some(1 << 20), ..options() }, |rig| {
        let stream = rig.device.stream();
        let result = tensor(&rig.device, Storage::Private, 1000);
        let held = rig.hold();
        let free = rig.device.memory().free;
        let download = {
            let (a, b) =
                (tensor(&rig.device, Storage::Private, 1000), tensor(&rig.device, Storage::Private, 1000));
            drop(stream.upload(&a, &float_bytes(&[1.0; 1000])).unwrap());
            drop(stream.submit(&rig.device.record(&count_up("work", &a, &b, 1)).unwrap()).unwrap());
            drop(stream.copy(&b, &result).unwrap());
            stream.download(&b).unwrap()
        };
        assert!(rig.device.memory().free < free, "the memory is not");
        drop(held);
        assert_eq!(floats(&download.wait().unwrap()), [2.0; 1000]);
        eventually("it is free", || rig.device.memory().free >= free);
    });
}

#[test]
fn e6_a_token_does_not_collect_devices() {
    let token = CancelToken::new();
    for _ in 0..3 {
        let device = software::create(&options()).unwrap();
        let counts = device.counts();
        let a = tensor(&device, Storage::Private, 8);
        let recording = device.record(&count_up("work", &a, &a, 1)).unwrap();
        device.stream().submit_with(&recording, Some(&token)).unwrap().wait().unwrap();
        drop((device, a, recording));
        eventually("the token keeps nothing alive", || counts.snapshot() == [0; 5]);
    }
    token.cancel();
}
