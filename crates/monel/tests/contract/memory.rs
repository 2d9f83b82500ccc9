//! M1 to M8, without M6, which only devices with residency have.

use crate::harness::*;
use monel::device::scripted::Fault;
use monel::device::{Device, HostMapping, Needs, Storage, software};
use monel::{DType, Desc, Error, Graph};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = 4096;

#[test]
fn m1_private_addresses_are_pages_of_their_own() {
    on_each(&options(), |rig| {
        let sizes = [1, 4095, 4096, 4097, 100_000, 1];
        let buffers: Vec<_> =
            sizes.iter().map(|&n| rig.device.allocate(Storage::Private, n).unwrap()).collect();
        let ranges: Vec<Range<u64>> =
            buffers.iter().map(|b| b.address()..b.address() + b.size() as u64).collect();
        for (i, r) in ranges.iter().enumerate() {
            assert!(r.start != 0 && r.start.is_multiple_of(PAGE as u64));
            assert!(ranges[..i].iter().all(|o| o.end <= r.start || r.end <= o.start), "{ranges:x?}");
        }
        let again: Vec<u64> = buffers.iter().map(|b| b.clone().address()).collect();
        assert!(again.iter().zip(&ranges).all(|(a, r)| *a == r.start), "stable");
        let highest = ranges.iter().map(|r| r.end).max().unwrap();
        drop(buffers);
        let next = rig.device.allocate(Storage::Private, 1).unwrap();
        assert!(next.address() >= highest, "a freed address is not given to somebody else");
    });
}

const CHILD: &str = "MONEL_TEST_TOUCHES_PRIVATE_MEMORY";

/// Not a test by itself: the body of the process that the next test watches.
#[test]
fn m1_child_touches_private_memory() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let device = software::create(&options()).unwrap();
    let buffer = device.allocate(Storage::Private, 64).unwrap();
    // SAFETY: none. It is the mistake that the address is there to catch, in a process made for it.
    let byte = unsafe { std::ptr::read_volatile(buffer.address() as *const u8) };
    panic!("read {byte} from private memory");
}

#[cfg(unix)]
#[test]
fn m1_a_host_touch_of_private_memory_faults() {
    use std::os::unix::process::ExitStatusExt;
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["memory::m1_child_touches_private_memory", "--exact"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let signal = output.status.signal();
    assert!(matches!(signal, Some(libc::SIGSEGV | libc::SIGBUS)), "{:?}", output.status);
}

#[test]
fn m2_bytes_are_reached_by_ordered_transfers_only() {
    on_each(&options(), |rig| {
        let stream = rig.device.stream();
        for storage in [Storage::Private, Storage::Shared] {
            let (a, b) = (tensor(&rig.device, storage, 8), tensor(&rig.device, storage, 8));
            let recording = rig.device.record(&count_up("graph", &a, &b, 1)).unwrap();
            let held = rig.hold();
            drop(stream.submit(&recording).unwrap());
            // An idle shared buffer would be written at once; these are in use, or private.
            let upload = stream.upload(&a, &[0x41; 32]).unwrap();
            assert!(!upload.is_done());
            drop(held);
            assert_eq!(floats(&stream.download(&b).unwrap().wait().unwrap()), [1.0; 8]);
        }
        let held = rig.hold();
        let idle = tensor(&rig.device, Storage::Private, 8);
        assert!(!stream.upload(&idle, &[1; 32]).unwrap().is_done(), "private memory is the device's");
        drop(held);
    });
}

#[test]
fn m3_shared_on_unified_memory_and_overridable() {
    on_each(&options(), |rig| {
        let expected = match rig.device.info().kind {
            monel::DeviceKind::Cpu | monel::DeviceKind::Integrated => Storage::Shared,
            _ => Storage::Private,
        };
        let tensor = rig.device.tensor(DType::F32, &[4]).unwrap();
        assert_eq!((rig.device.default_storage(), tensor.buffer().storage()), (expected, expected));
        for storage in [Storage::Private, Storage::Shared] {
            assert_eq!(rig.device.allocate(storage, 4).unwrap().storage(), storage);
        }
    });
}

/// A file's bytes in memory that can be made inaccessible, with inaccessible pages next door on both sides.
#[cfg(unix)]
pub struct Pages {
    base: *mut u8,
    len: usize,
    current: AtomicU64,
}

#[cfg(unix)]
mod pages {
    use super::*;

    // SAFETY: an address; the bytes are written before anybody else sees it.
    unsafe impl Send for Pages {}
    // SAFETY: as above.
    unsafe impl Sync for Pages {}

    impl Pages {
        /// Memory with `content` (whole pages) that can only be read.
        pub fn new(content: &[u8]) -> Arc<Pages> {
            assert!(content.len().is_multiple_of(PAGE));
            let all = content.len() + 2 * PAGE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a fresh mapping.
            let base = unsafe { libc::mmap(std::ptr::null_mut(), all, libc::PROT_NONE, flags, -1, 0) };
            assert_ne!(base, libc::MAP_FAILED);
            let base = base.cast::<u8>().wrapping_add(PAGE);
            let pages = Pages { base, len: content.len(), current: AtomicU64::new(content.len() as u64) };
            pages.protect(libc::PROT_READ | libc::PROT_WRITE);
            // SAFETY: the mapping has that many bytes, and nobody else knows it yet.
            unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), base, content.len()) };
            pages.protect(libc::PROT_READ);
            Arc::new(pages)
        }

        /// Changes what may be done with the memory.
        pub fn protect(&self, protection: i32) {
            // SAFETY: pages of this mapping.
            assert_eq!(unsafe { libc::mprotect(self.base.cast(), self.len, protection) }, 0);
        }

        /// As if somebody had cut the file.
        pub fn shrink(&self, len: u64) {
            self.current.store(len, Ordering::Release);
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: the whole mapping, which nobody uses any more.
            unsafe { libc::munmap(self.base.wrapping_sub(PAGE).cast(), self.len + 2 * PAGE) };
        }
    }

    impl HostMapping for Pages {
        fn bytes(&self) -> &[u8] {
            // SAFETY: the mapping lives as long as `self`.
            unsafe { std::slice::from_raw_parts(self.base, self.len) }
        }

        fn name(&self) -> String {
            "weights.gguf".into()
        }

        fn current_len(&self) -> Option<u64> {
            Some(self.current.load(Ordering::Acquire))
        }
    }
}

/// Tensors of various lengths, packed at multiples of 32 bytes as in a GGUF file, with their first value.
#[cfg(unix)]
fn file() -> (Vec<u8>, Vec<(usize, usize, f32)>) {
    let (mut bytes, mut tensors) = (vec![0xee; 96], Vec::new());
    for i in 0..40usize {
        let n = 64 + i * 53 % 700;
        let values: Vec<f32> = (0..n).map(|j| (i * 1000 + j) as f32).collect();
        tensors.push((bytes.len(), n, values[0]));
        bytes.extend(float_bytes(&values));
        bytes.resize(bytes.len().next_multiple_of(32), 0xee);
    }
    bytes.resize(bytes.len().next_multiple_of(PAGE), 0xee);
    (bytes, tensors)
}

#[cfg(unix)]
#[test]
fn m4_a_mapped_file_is_used_in_place_through_few_views() {
    let (bytes, tensors) = file();
    let ranges: Vec<Range<usize>> = tensors.iter().map(|&(at, n, _)| at..at + n * 4).collect();
    for (largest, views) in [(8192, 2..41), (20_000, 2..10), (options().max_buffer, 1..2)] {
        let options = software::Options { max_buffer: largest, ..options() };
        on_each_that_maps(&options, |rig| {
            // Read only, and with inaccessible neighbours: whoever writes or strays dies here.
            let file = Pages::new(&bytes);
            let mapped = rig.device.map(file.clone(), &ranges).unwrap();
            assert!(views.contains(&mapped.views()), "{} views of {largest}", mapped.views());
            let stream = rig.device.stream();
            for &(at, n, first) in &tensors {
                let weights = mapped.tensor(at, Desc::new(DType::F32, &[n]).unwrap()).unwrap();
                assert!(weights.buffer().size() <= largest);
                let output = tensor(&rig.device, Storage::Private, n);
                stream.run(&count_up("use", &weights, &output, 1)).unwrap();
                let result = floats(&stream.download(&output).unwrap().wait().unwrap());
                assert!(result.iter().enumerate().all(|(j, v)| *v == first + j as f32 + 1.0));
                assert_eq!(stream.download(&weights).unwrap().wait().unwrap(), bytes[at..at + n * 4]);
                assert!(stream.upload(&weights, &vec![0; n * 4]).is_err(), "never written");
                assert!(stream.fill(weights.buffer(), 0, 1, 0).is_err());
                let mut graph = Graph::new("write");
                let (x, place) = (graph.leaf(&output), graph.leaf(&weights));
                graph.apply_into(monel::ops::Scale { scale: 1.0, bias: 0.0 }, &[x], place).unwrap();
                assert!(matches!(rig.device.record(&graph), Err(Error::Unsupported { .. })));
            }
            drop(mapped);
            assert_eq!(file.bytes(), bytes);
        });
    }
}

#[cfg(unix)]
#[test]
fn m4_what_cannot_be_covered_is_an_error() {
    let (bytes, _) = file();
    let options = software::Options { max_buffer: 8192, ..options() };
    on_each_host(&options, |rig| {
        let file = Pages::new(&bytes);
        let too_large = rig.device.map(file.clone(), &[100..200, 4000..12_300]);
        assert!(matches!(too_large, Err(Error::TooLarge { largest: 8192, .. })));
        let outside = rig.device.map(file.clone(), &[bytes.len() - 10..bytes.len() + 1]);
        assert!(matches!(outside, Err(Error::OutOfRange { .. })));
        let backwards = Range { start: usize::MAX, end: 3 };
        assert!(matches!(rig.device.map(file, &[backwards]), Err(Error::OutOfRange { .. })));
        assert_eq!(rig.device.counts().snapshot()[0], 0, "nothing is left of the attempts");
    });
}

#[cfg(unix)]
#[test]
fn m4_a_file_that_shrank_is_an_error_of_the_submission() {
    let (bytes, tensors) = file();
    on_each_that_maps(&options(), |rig| {
        let file = Pages::new(&bytes);
        let (at, n, _) = tensors[39];
        let mapped = rig.device.map(file.clone(), &[at..at + n * 4]).unwrap();
        let weights = mapped.tensor(at, Desc::new(DType::F32, &[n]).unwrap()).unwrap();
        let output = tensor(&rig.device, Storage::Private, n);
        let recording = rig.device.record(&count_up("use", &weights, &output, 1)).unwrap();
        let stream = rig.device.stream();
        stream.submit(&recording).unwrap().wait().unwrap();
        file.shrink(4096);
        // Really gone: touching it is a fault of the process.
        file.protect(libc::PROT_NONE);
        for failing in [stream.submit(&recording).unwrap().wait(), {
            stream.recover().unwrap();
            stream.download(&weights).unwrap().wait().map(drop)
        }] {
            let error = failing.unwrap_err();
            assert!(matches!(error.root(), Error::MappingShrank { found: 4096, .. }), "{error}");
            assert!(error.to_string().contains("weights.gguf"), "{error}");
        }
        stream.recover().unwrap();
        stream.fill(output.buffer(), 0, 4, 0).unwrap().wait().unwrap();
    });
}

#[test]
fn m5_an_address_leads_to_its_buffer_or_to_an_error() {
    on_each(&options(), |rig| {
        let buffers: Vec<_> = (1..50)
            .map(|i| {
                let storage = if i % 2 == 0 { Storage::Private } else { Storage::Shared };
                rig.device.allocate(storage, i * 777).unwrap()
            })
            .collect();
        for b in &buffers {
            for offset in [0, b.size() / 2, b.size() - 1] {
                let (found, at) = rig.device.find(b.address() + offset as u64).unwrap();
                assert_eq!((found.id(), at), (b.id(), offset));
            }
        }
        let gone = rig.device.allocate(Storage::Private, 10).unwrap().address();
        let past = buffers[1].address() + buffers[1].size() as u64;
        for nobody in [0, 1, gone, past, u64::MAX] {
            assert!(matches!(rig.device.find(nobody), Err(Error::UnknownAddress { .. })), "{nobody:x}");
        }
    });
}

#[test]
fn m5_finding_races_with_dropping() {
    let device = software::create(&options()).unwrap();
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel::<u64>();
        let finder = device.clone();
        scope.spawn(move || receiver.iter().for_each(|address| drop(finder.find(address))));
        for _ in 0..3000 {
            let buffer = device.allocate(Storage::Private, 64).unwrap();
            sender.send(buffer.address()).unwrap();
            drop(buffer);
        }
        drop(sender);
    });
    assert_eq!(device.counts().snapshot()[0], 0);
}

fn limited(limit: u64) -> software::Options {
    software::Options { memory_limit: Some(limit), ..options() }
}

#[test]
fn m7_free_memory_never_underflows() {
    on_each(&limited(100_000), |rig| {
        let start = rig.device.memory();
        assert_eq!((start.total, start.free), (100_000, 100_000));
        let mut held = Vec::new();
        while let Ok(buffer) = rig.device.allocate(Storage::Private, 30_000) {
            held.push(buffer);
            let now = rig.device.memory();
            assert_eq!(now.free, 100_000 - 30_000 * held.len() as u64);
        }
        assert_eq!(held.len(), 3);
        held.push(rig.device.allocate(Storage::Shared, 10_000).unwrap());
        assert_eq!(rig.device.memory().free, 0);
        drop(held);
        assert_eq!(rig.device.memory().free, 100_000);
    });
}

#[test]
fn m7_a_model_that_cannot_fit_is_refused_up_front() {
    on_each(&limited(100_000), |rig| {
        let mut needs = Needs::default();
        needs.add("weights", 500_000, true);
        needs.add("KV cache", 60_000, false);
        needs.add("scratch", 40_000, false);
        needs.check(&rig.device).unwrap();
        assert_eq!(needs.resident(), 100_000, "mapped weights need not stay");
        let table = needs.to_string();
        for line in ["weights", "KV cache", "scratch", "mapped from the file", "resident"] {
            assert!(table.contains(line), "{table}");
        }
        needs.add("staging", 1, false);
        let Err(Error::OutOfMemory { wanted, free, what, .. }) = needs.check(&rig.device) else {
            panic!("it cannot fit")
        };
        assert_eq!((wanted, free), (100_001, 100_000));
        assert!(what.contains("KV cache 60000"), "{what}");
        needs.add("more", u64::MAX, false);
        assert!(needs.check(&rig.device).is_err(), "sums do not wrap");
    });
}

/// What is alive, and what is free.
fn state(device: &Device) -> ([usize; 5], u64) {
    (device.counts().snapshot(), device.memory().free)
}

#[test]
fn m8_a_failed_allocation_says_what_was_wanted_and_leaves_nothing() {
    on_each(&limited(100_000), |rig| {
        let kept = rig.device.allocate(Storage::Private, 40_000).unwrap();
        let before = state(&rig.device);
        let error = rig.device.allocate(Storage::Private, 70_000).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { wanted: 70_000, free: 60_000, .. }), "{error}");
        let error = rig.device.allocate(Storage::Shared, usize::MAX / 8).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { .. } | Error::TooLarge { .. }), "{error}");
        // A graph whose scratch memory does not fit.
        let x = kept.tensor(0, DType::F32, &[10_000]).unwrap();
        let mut graph = Graph::new("large");
        let leaf = graph.leaf(&x);
        let a = graph.scale(leaf, 2.0, 0.0).unwrap();
        let b = graph.scale(leaf, 3.0, 0.0).unwrap();
        let sum = graph.add(a, b).unwrap();
        graph.apply_into(monel::ops::Scale { scale: 1.0, bias: 0.0 }, &[sum], leaf).unwrap();
        let Err(Error::OutOfMemory { wanted, free: 60_000, .. }) = rig.device.record(&graph) else {
            panic!("its scratch memory does not fit")
        };
        assert!(wanted >= 80_000);
        assert_eq!(state(&rig.device), before);
        rig.device.allocate(Storage::Private, 60_000).unwrap();
    });
}

#[test]
fn m8_the_nth_allocation_fails_and_all_before_it_are_released() {
    let (device, script) = scripted(&options());
    for n in 0..3 {
        script.fault(Fault::Allocation(n));
        let all: Result<Vec<_>, Error> = (0..3).map(|_| device.tensor(DType::F32, &[100])).collect();
        assert!(matches!(all, Err(Error::OutOfMemory { wanted: 400, .. })), "{n}");
        assert_eq!(device.counts().snapshot()[0], 0);
    }
}
