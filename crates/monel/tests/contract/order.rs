//! O1 to O4.

use crate::harness::*;
use monel::device::scripted::{Fault, Script};
use monel::device::{Device, Storage, software};
use monel::{CancelToken, DType, Error, Graph, Stream, Tensor};

#[test]
fn o1_32_streams_share_one_queue_thread() {
    for threads in 1..4 {
        let mut options = options();
        (options.threads, options.settings.encode_helpers) = (threads, 0);
        let device = software::create(&options).unwrap();
        let streams: Vec<Stream> = (0..32).map(|_| device.stream()).collect();
        let (a, b) = (tensor(&device, Storage::Shared, 8), tensor(&device, Storage::Shared, 8));
        let recording = device.record(&count_up("one", &a, &b, 1)).unwrap();
        for stream in &streams {
            drop(stream.submit(&recording).unwrap());
        }
        for stream in &streams {
            stream.synchronize().unwrap();
        }
        let [_, streams, _, running, _] = device.counts().snapshot();
        assert_eq!((streams, running), (32, threads));
    }
}

#[test]
fn o1_opening_twice_gives_the_same_device() {
    let (a, b) = (monel::device::open_cpu().unwrap(), monel::device::open_cpu().unwrap());
    assert!(a.is_same(&b));
    let counts = a.counts();
    drop(b);
    drop(a);
    eventually("the device is released", || counts.snapshot() == [0; 5]);
}

#[test]
fn o2_upload_then_graph_sees_the_data() {
    on_each(&options(), |rig| {
        for storage in [Storage::Shared, Storage::Private] {
            let (a, b) = (tensor(&rig.device, storage, 64), tensor(&rig.device, storage, 64));
            let streams = [rig.device.stream(), rig.device.stream(), rig.device.stream()];
            let recording = rig.device.record(&count_up("plus one", &a, &b, 1)).unwrap();
            let mut downloads = Vec::new();
            for i in 0..100 {
                let value = i as f32;
                drop(streams[i % 3].upload(&a, &float_bytes(&[value; 64])).unwrap());
                drop(streams[(i / 3) % 3].submit(&recording).unwrap());
                downloads.push((value, streams[(i + 1) % 3].download(&b).unwrap()));
            }
            for (value, download) in downloads {
                assert_eq!(floats(&download.wait().unwrap()), [value + 1.0; 64]);
            }
        }
    });
}

#[test]
fn o2_increments_from_several_threads_all_count() {
    on_each(&options(), |rig| {
        let a = tensor(&rig.device, rig.device.default_storage(), 64);
        let mut graph = Graph::new("increment");
        let leaf = graph.leaf(&a);
        graph.apply_into(monel::ops::Scale { scale: 1.0, bias: 1.0 }, &[leaf], leaf).unwrap();
        let recording = rig.device.record(&graph).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let stream = rig.device.stream();
                    (0..50).for_each(|_| drop(stream.submit(&recording).unwrap()));
                });
            }
        });
        let sum = rig.device.stream().download(&a).unwrap().wait().unwrap();
        assert_eq!(floats(&sum), [200.0; 64]);
    });
}

#[test]
fn o2_a_stream_keeps_the_order_of_calls_also_where_no_bytes_demand_it() {
    let (device, script) = scripted(&tiny_chunks());
    let [a, b, c] = [(); 3].map(|()| tensor(&device, Storage::Private, 8));
    let stream = device.stream();
    script.hold_encode("slow", 1);
    let slow = stream.submit(&device.record(&count_up("slow", &a, &b, 3)).unwrap()).unwrap();
    let unrelated = stream.fill(c.buffer(), 0, 32, 1).unwrap();
    assert_eq!(script.run_all(), 1, "the first chunk only");
    script.release();
    eventually("all ran", || {
        script.run_all();
        unrelated.is_done()
    });
    slow.wait().unwrap();
    unrelated.wait().unwrap();
    let order: Vec<_> = script.log().into_iter().map(|r| (r.graph, r.chunk)).collect();
    let expected = [("slow", 0), ("slow", 1), ("slow", 2), ("fill", 0)].map(|(g, c)| (g.to_string(), c));
    assert_eq!(order, expected);
}

#[test]
fn o3_a_slow_or_failing_encoder_delays_nobody_else() {
    let (device, script) = scripted(&tiny_chunks());
    let [a, b, c, d] = [(); 4].map(|()| tensor(&device, Storage::Private, 8));
    let (one, two) = (device.stream(), device.stream());
    script.hold_encode("slow", 1);
    let slow = one.submit(&device.record(&count_up("slow", &a, &b, 3)).unwrap()).unwrap();
    let quick = two.submit(&device.record(&count_up("quick", &c, &d, 1)).unwrap()).unwrap();
    assert_eq!(script.run_all(), 2, "the first chunk of the one, all of the other");
    assert!(quick.is_done() && !slow.is_done());
    script.release();
    eventually("the rest is committed", || script.pending().len() == 2);
    script.run_all();
    slow.wait().unwrap();

    script.fault(Fault::Encode { graph: "broken".into(), chunk: 2 });
    let broken = one.submit(&device.record(&count_up("broken", &a, &b, 5)).unwrap()).unwrap();
    let after = two.submit(&device.record(&count_up("after", &c, &d, 1)).unwrap()).unwrap();
    eventually("both are committed as far as they go", || {
        script.run_all();
        broken.is_done() && after.is_done()
    });
    after.wait().unwrap();
    let Err(Error::Failed { place, .. }) = broken.wait() else { panic!("it failed") };
    assert_eq!((place.graph.as_str(), place.chunk), ("broken", 2));
    assert!(!script.log().iter().any(|r| r.graph == "broken" && r.chunk >= 2), "the rest never ran");
}

/// Two devices, the first of which does nothing until told to.
fn two_devices() -> (Device, Script, Device) {
    let (slow, script) = scripted(&options());
    (slow, script, software::create(&options()).unwrap())
}

#[test]
fn o4_an_event_orders_two_devices_without_the_host() {
    let (slow, script, fast) = two_devices();
    let (s, f) = (slow.stream(), fast.stream());
    let (x, y) = (tensor(&slow, Storage::Private, 8), tensor(&slow, Storage::Private, 8));
    let work = s.submit(&slow.record(&count_up("before", &x, &y, 1)).unwrap()).unwrap();
    let event = s.record_event();
    f.wait_event(&event);
    let a = tensor(&fast, Storage::Shared, 8);
    let later = f.upload(&a, &[1; 32]).unwrap();
    let other = fast.stream();
    let b = tensor(&fast, Storage::Shared, 8);
    other.upload(&b, &[2; 32]).unwrap().wait().unwrap();
    assert!(event.result().is_none() && !later.is_done(), "the host was not blocked, the stream is");
    assert!(!other.download(&a).unwrap().is_done(), "and so is who depends on it");
    script.run_all();
    work.wait().unwrap();
    later.wait().unwrap();
    assert!(matches!(event.result(), Some(Ok(()))));
    assert_eq!(other.download(&a).unwrap().wait().unwrap(), [1; 32]);
}

#[test]
fn o4_an_event_between_two_software_devices() {
    let devices = [(); 2].map(|()| software::create(&options()).unwrap());
    let streams = devices.each_ref().map(Device::stream);
    let tensors = devices.each_ref().map(|d| tensor(d, Storage::Private, 256));
    drop(streams[0].upload(&tensors[0], &float_bytes(&[0.0; 256])).unwrap());
    let next = devices.each_ref().map(|d| tensor(d, Storage::Private, 256));
    let add = [0, 1].map(|i| devices[i].record(&count_up("add", &tensors[i], &next[i], 3)).unwrap());
    for round in 0..20 {
        let (here, there) = (round % 2, (round + 1) % 2);
        drop(streams[here].submit(&add[here]).unwrap());
        streams[there].wait_event(&streams[here].record_event());
        drop(streams[there].copy_from(&streams[here], &next[here], &tensors[there]).unwrap());
    }
    let result = streams[0].download(&tensors[0]).unwrap().wait().unwrap();
    assert_eq!(floats(&result), [60.0; 256]);
    streams.iter().for_each(|s| s.synchronize().unwrap());
}

#[test]
fn o4_a_copy_between_devices_equals_the_synchronous_copy() {
    let mut small = options();
    small.settings.staging = 4096;
    let (slow, script) = scripted(&small);
    let fast = software::create(&small).unwrap();
    let (s, f) = (slow.stream(), fast.stream());
    let bytes: Vec<u8> = (0..50_000u32).map(|i| (i * 7 % 251) as u8).collect();
    let there = slow.allocate(Storage::Shared, 50_000).unwrap().tensor(0, DType::I32, &[12_500]).unwrap();
    let here = fast.allocate(Storage::Private, 50_004).unwrap().tensor(4, DType::I32, &[12_500]).unwrap();
    s.upload(&there, &bytes).unwrap().wait().unwrap();
    let copy = f.copy_from(&s, &there, &here).unwrap();
    // What comes later on either side does not disturb it.
    drop(s.fill(there.buffer(), 0, 50_000, 9).unwrap());
    let after = f.download(&here).unwrap();
    assert!(!copy.is_done(), "the source has not run anything, and the host is here");
    let encoded = slow.counts().snapshot()[4];
    assert!(encoded <= 5, "49 pieces pass through a ring of four, {encoded} commands are encoded");
    let _background = script.run_in_background();
    copy.wait().unwrap();
    assert_eq!(after.wait().unwrap(), bytes);
    assert_eq!(f.download_bytes(here.buffer(), 0, 4).unwrap().wait().unwrap(), [0; 4]);
    // And back, into memory that is in use.
    let back = s.copy_from(&f, &here, &there).unwrap();
    let result = s.download(&there).unwrap();
    back.wait().unwrap();
    assert_eq!(result.wait().unwrap(), bytes);
}

#[test]
fn o4_copies_between_every_device_and_the_cpu() {
    let mut small = options();
    small.settings.staging = 4096;
    let cpu = software::create(&small).unwrap();
    on_each(&small, |rig| {
        let (there, here) = (rig.device.stream(), cpu.stream());
        // Odd sizes and places: kernels copy words, the copy command the rest.
        for (offset, bytes) in [(0, 50_000), (16, 4096), (3, 4099), (4, 1028), (1, 1)] {
            let data: Vec<u8> = (0..bytes).map(|i| (i * 7 % 251) as u8).collect();
            let make = |device: &Device| device.allocate(Storage::Private, 2 * 50_064).unwrap();
            let (a, b, c) = (make(&cpu), make(&rig.device), make(&cpu));
            let rows = |buffer: &monel::Buffer, at: usize| buffer.tensor(at, DType::I32, &[bytes / 4]);
            drop(here.upload_bytes(&a, offset, &data).unwrap());
            if bytes % 4 == 0 && offset % 4 == 0 {
                drop(there.copy_from(&here, &rows(&a, offset).unwrap(), &rows(&b, offset).unwrap()).unwrap());
            } else {
                drop(there.upload_bytes(&b, offset, &data).unwrap());
            }
            // On the device, to a place of the same kind.
            let region = |at| monel::device::driver::Region::linear(at, bytes);
            let second = 50_064 + offset;
            drop(there.copy_region((&b, region(offset)), (&b, region(second))).unwrap());
            assert_eq!(
                there.download_bytes(&b, second, bytes).unwrap().wait().unwrap(),
                data,
                "{}",
                rig.name
            );
            let around = there.download_bytes(&b, second + bytes, 16).unwrap().wait().unwrap();
            assert_eq!(around, [0; 16], "{}", rig.name);
            if bytes % 4 == 0 && offset % 4 == 0 {
                drop(here.copy_from(&there, &rows(&b, second).unwrap(), &rows(&c, offset).unwrap()).unwrap());
                assert_eq!(here.download_bytes(&c, offset, bytes).unwrap().wait().unwrap(), data);
            }
        }
    });
}

#[test]
fn o4_a_failure_before_an_event_fails_who_waits_for_it() {
    let (slow, script, fast) = two_devices();
    let (s, f) = (slow.stream(), fast.stream());
    let work = s.submit(&lone(&slow, "broken", Fails)).unwrap();
    let x = tensor(&slow, Storage::Private, 8);
    let y = tensor(&fast, Storage::Private, 8);
    let copy = f.copy_from(&s, &x, &y).unwrap();
    script.run_all();
    assert!(matches!(work.wait(), Err(Error::Failed { .. })));
    let error = copy.wait().unwrap_err();
    assert!(matches!(error.root(), Error::Kernel(_)), "{error}");
    assert!(f.is_poisoned() && f.synchronize().is_err());
    f.recover().unwrap();
    f.upload(&y, &[0; 32]).unwrap().wait().unwrap();
}

/// A stream of `fast` that waits for work of `slow`, and the tensors to see whether it did.
fn waiting(slow: &Device, fast: &Device) -> (Stream, Stream, Tensor) {
    let (s, f) = (slow.stream(), fast.stream());
    drop(s.fill(tensor(slow, Storage::Private, 8).buffer(), 0, 32, 1).unwrap());
    f.wait_event(&s.record_event());
    (s, f, tensor(fast, Storage::Shared, 8))
}

#[test]
fn o4_neither_a_direct_write_nor_a_cancelled_graph_lets_later_work_past_the_event() {
    let (slow, script, fast) = two_devices();
    let (_s, f, a) = waiting(&slow, &fast);
    let upload = f.upload(&a, &[3; 32]).unwrap();
    assert!(!upload.is_done(), "shared memory is idle, but the stream waits");
    script.run_all();
    upload.wait().unwrap();

    let (_s, f, a) = waiting(&slow, &fast);
    let token = CancelToken::new();
    let graph = count_up("cancelled", &a, &tensor(&fast, Storage::Shared, 8), 1);
    let cancelled = f.submit_with(&fast.record(&graph).unwrap(), Some(&token)).unwrap();
    token.cancel();
    assert!(matches!(cancelled.wait(), Err(Error::Cancelled)));
    let later = f.fill(a.buffer(), 0, 32, 4).unwrap();
    let other = fast.stream();
    other.fill(tensor(&fast, Storage::Shared, 8).buffer(), 0, 32, 4).unwrap().wait().unwrap();
    assert!(!later.is_done(), "the cancelled graph passed its event on");
    script.run_all();
    later.wait().unwrap();
}

#[test]
fn o4_an_event_comes_after_everything_before_it() {
    let (device, script) = scripted(&options());
    let stream = device.stream();
    let (a, b) = (tensor(&device, Storage::Shared, 8), tensor(&device, Storage::Shared, 8));
    // Last before the event: something that finishes before what came earlier.
    let running = stream.fill(a.buffer(), 0, 32, 1).unwrap();
    stream.upload(&b, &[1; 32]).unwrap().wait().unwrap();
    let after_direct_write = stream.record_event();
    let token = CancelToken::new();
    token.cancel();
    let recording = device.record(&count_up("cancelled", &b, &a, 1)).unwrap();
    assert!(matches!(stream.submit_with(&recording, Some(&token)).unwrap().wait(), Err(Error::Cancelled)));
    let after_cancelled = stream.record_event();
    assert!(!running.is_done());
    assert!(after_direct_write.result().is_none() && after_cancelled.result().is_none());
    script.run_all();
    for event in [after_direct_write, after_cancelled, stream.record_event()] {
        assert!(matches!(event.result(), Some(Ok(()))), "{event:?}");
    }
}
