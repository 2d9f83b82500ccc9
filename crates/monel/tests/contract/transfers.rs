//! T1 to T4.

use crate::harness::*;
use monel::device::driver::Region;
use monel::device::{Device, Storage};
use monel::{Buffer, Error};
use proptest::prelude::*;

const BOTH: [Storage; 2] = [Storage::Private, Storage::Shared];

fn noise(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|i| ((i + seed) * 167 % 253) as u8).collect()
}

#[test]
fn t1_the_callers_bytes_are_free_when_upload_returns() {
    on_each(&options(), |rig| {
        for storage in BOTH {
            let buffer = rig.device.allocate(storage, 1000).unwrap();
            let stream = rig.device.stream();
            let held = rig.hold();
            // Somebody is using the buffer, so a shared one cannot be written directly either.
            drop(stream.fill(&buffer, 0, 1000, 1).unwrap());
            let mut bytes = noise(500, 1);
            let upload = stream.upload_bytes(&buffer, 7, &bytes).unwrap();
            assert!(!upload.is_done(), "it waits on the queue for its turn, not on the host");
            bytes.fill(0);
            drop(bytes);
            drop(held);
            upload.wait().unwrap();
            assert_eq!(stream.download_bytes(&buffer, 7, 500).unwrap().wait().unwrap(), noise(500, 1));
        }
    });
}

#[test]
fn t1_staging_is_a_bounded_ring() {
    let mut options = options();
    options.settings.staging = 8192;
    on_each(&options, |rig| {
        let buffer = rig.device.allocate(Storage::Private, 1 << 20).unwrap();
        let stream = rig.device.stream();
        let bytes = noise(1 << 20, 3);
        drop(stream.upload_bytes(&buffer, 0, &bytes).unwrap());
        assert_eq!(stream.download_bytes(&buffer, 0, 1 << 20).unwrap().wait().unwrap(), bytes);
        let (now, peak) = rig.device.staging_usage();
        assert!(now == 0 && peak <= 8192, "{now} {peak}");
    });
}

/// What a caller's own code fails with.
#[derive(Debug)]
enum Fault {
    Engine(Error),
    Caller(usize),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Engine(error)
    }
}

#[test]
fn t1_an_upload_whose_bytes_fail_leaves_stream_and_staging_usable() {
    let mut options = options();
    options.settings.staging = 8192;
    on_each(&options, |rig| {
        let stream = rig.device.stream();
        let bytes = noise(40_000, 7);
        let good = |at: usize, out: &mut [u8]| {
            out.copy_from_slice(&bytes[at..at + out.len()]);
            Ok::<(), Fault>(())
        };
        for (storage, busy) in [(Storage::Private, false), (Storage::Shared, false), (Storage::Shared, true)]
        {
            let buffer = rig.device.allocate(storage, 40_064).unwrap();
            let tensor = buffer.tensor(64, monel::DType::F32, &[10_000]).unwrap();
            let held = busy.then(|| rig.hold());
            if busy {
                // Memory in use is not written directly: the bytes go through the ring.
                drop(stream.fill(&buffer, 0, 64, 9).unwrap());
            }
            let mut next = 0;
            let failed = stream.upload_with(&tensor, |at, out| {
                assert_eq!(at, next, "pieces in order");
                next += out.len();
                if at >= 4096 { Err(Fault::Caller(at)) } else { good(at, out) }
            });
            assert!(matches!(failed, Err(Fault::Caller(4096))), "{:?}", failed.err());
            drop(held);
            eventually("the room of pieces is given back", || rig.device.staging_usage().0 == 0);
            stream.synchronize().unwrap();
            stream.upload_with(&tensor, good).unwrap().wait().unwrap();
            assert_eq!(stream.download(&tensor).unwrap().wait().unwrap(), bytes);
            let refused = stream.upload(&tensor, &bytes[1..]);
            assert!(matches!(refused, Err(Error::OutOfRange { .. })));
        }
        let row = rig.device.tensor(monel::DType::F32, &[8, 8]).unwrap().permute([1, 0, 2, 3]).unwrap();
        let refused = stream.upload_with(&row, |_, _| -> Result<(), Fault> { panic!("nothing to fill") });
        assert!(matches!(refused, Err(Fault::Engine(Error::Shape { .. }))));
    });
}

#[test]
fn t1_staging_is_bounded_for_many_threads_that_fill_it_at_once() {
    // Pieces are a quarter of the ring.
    const THREADS: usize = 4;
    const SIZE: usize = 100_000;
    let mut options = options();
    options.settings.staging = 8192;
    on_each(&options, |rig| {
        let together = std::sync::Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for seed in 0..THREADS {
                let (together, device) = (&together, &rig.device);
                scope.spawn(move || {
                    let stream = device.stream();
                    let buffer = device.allocate(Storage::Private, SIZE).unwrap();
                    let tensor = buffer.tensor(0, monel::DType::F32, &[SIZE / 4]).unwrap();
                    let bytes = noise(SIZE, seed);
                    let upload = stream.upload_with(&tensor, |at, out| {
                        if at == 0 {
                            // Nobody goes on before every thread has a piece to fill.
                            together.wait();
                        }
                        out.copy_from_slice(&bytes[at..at + out.len()]);
                        Ok::<(), Error>(())
                    });
                    drop(upload.unwrap());
                    assert_eq!(stream.download(&tensor).unwrap().wait().unwrap(), bytes, "thread {seed}");
                });
            }
        });
        assert_eq!(rig.device.staging_usage(), (0, 8192));
    });
}

#[test]
fn t2_downloads_of_any_size_and_alignment() {
    on_each(&options(), |rig| {
        for storage in BOTH {
            let buffer = rig.device.allocate(storage, 5000).unwrap();
            let stream = rig.device.stream();
            let bytes = noise(5000, 5);
            drop(stream.upload_bytes(&buffer, 0, &bytes).unwrap());
            let sizes = (0..70).chain([255, 1023, 4096, 4097]);
            let all: Vec<_> = sizes
                .flat_map(|size| [0, 1, 3, 64, 901].map(|at| (at, size)))
                .map(|(at, size)| (at, size, stream.download_bytes(&buffer, at, size).unwrap()))
                .collect();
            for (at, size, download) in all {
                assert_eq!(download.wait().unwrap(), bytes[at..at + size], "{size} bytes at {at}");
            }
            assert!(matches!(stream.download_bytes(&buffer, 5000, 1), Err(Error::OutOfRange { .. })));
            assert!(matches!(stream.download_bytes(&buffer, usize::MAX, 2), Err(Error::OutOfRange { .. })));
            assert!(stream.download_bytes(&buffer, 5000, 0).unwrap().wait().unwrap().is_empty());
            let wild = Region { offset: 1, row: 2, rows: usize::MAX, stride: usize::MAX / 2 };
            assert!(stream.download_region(&buffer, wild).is_err());
        }
    });
}

#[test]
fn t2_a_download_is_a_future() {
    on_each(&options(), |rig| {
        let buffer = rig.device.allocate(Storage::Private, 64).unwrap();
        let stream = rig.device.stream();
        let held = rig.hold();
        drop(stream.fill(&buffer, 0, 64, 7).unwrap());
        let download = stream.download_bytes(&buffer, 1, 62).unwrap();
        let release = std::thread::scope(|scope| {
            let bytes = scope.spawn(|| block_on(download));
            (0..50).for_each(|_| std::thread::yield_now());
            assert!(!bytes.is_finished());
            drop(held);
            bytes.join().unwrap()
        });
        assert_eq!(release.unwrap(), [7; 62]);
    });
}

/// The smallest executor: parks until woken.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

const SIZE: usize = 400;

#[derive(Clone, Debug)]
enum Move {
    Upload(Region, u8),
    Fill(Region, u8),
    Clear(u8),
    /// From the other buffer: offset, and the row length there, which divides the bytes.
    Copy(Region, Region),
}

/// Runs inside a buffer of `SIZE` bytes, of any size from 0.
fn region() -> impl Strategy<Value = Region> {
    (0usize..60, 0usize..8, 0usize..20, 0usize..60).prop_map(|(row, rows, gap, offset)| {
        let stride = row + gap;
        let span = if rows == 0 { 0 } else { (rows - 1) * stride + row };
        let rows = if span + offset > SIZE { 1 } else { rows };
        Region { offset, row, rows, stride }
    })
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        (region(), any::<u8>()).prop_map(|(r, v)| Move::Upload(r, v)),
        (region(), any::<u8>()).prop_map(|(r, v)| Move::Fill(r, v)),
        any::<u8>().prop_map(Move::Clear),
        (region(), 0usize..100, any::<bool>()).prop_map(|(to, offset, strided)| {
            let from = if strided && to.rows > 1 {
                Region { offset: offset.min(20), row: to.bytes(), rows: 1, stride: to.bytes() }
            } else {
                Region { offset: to.offset, ..to }
            };
            let fits = from.range().end <= SIZE;
            Move::Copy(if fits { from } else { Region::linear(0, to.bytes()) }, to)
        }),
    ]
}

fn positions(r: &Region) -> Vec<usize> {
    (0..r.rows).flat_map(|i| (0..r.row).map(move |j| r.offset + i * r.stride + j)).collect()
}

fn check_moves(device: &Device, storage: Storage, moves: &[Move]) -> Result<(), TestCaseError> {
    let stream = device.stream();
    let buffers: [Buffer; 2] = [(); 2].map(|()| device.allocate(storage, SIZE).unwrap());
    let (mut model, other) = (noise(SIZE, 1), noise(SIZE, 2));
    drop(stream.upload_bytes(&buffers[0], 0, &model).unwrap());
    drop(stream.upload_bytes(&buffers[1], 0, &other).unwrap());
    for m in moves {
        let submission = match m {
            Move::Upload(r, seed) => {
                let bytes = noise(r.bytes(), usize::from(*seed));
                positions(r).into_iter().zip(&bytes).for_each(|(at, b)| model[at] = *b);
                stream.upload_region(&buffers[0], *r, &bytes)
            }
            Move::Fill(r, value) => {
                positions(r).into_iter().for_each(|at| model[at] = *value);
                stream.fill_region(&buffers[0], *r, *value)
            }
            Move::Clear(value) => {
                model.fill(*value);
                stream.clear(&buffers[0], *value)
            }
            Move::Copy(from, to) => {
                let pairs = positions(to).into_iter().zip(positions(from));
                pairs.for_each(|(t, f)| model[t] = other[f]);
                stream.copy_region((&buffers[1], *from), (&buffers[0], *to))
            }
        };
        drop(submission.map_err(|e| TestCaseError::fail(e.to_string()))?);
    }
    // The whole buffer is compared, so every byte that was not asked for is a canary.
    let [a, b] = buffers.each_ref().map(|b| stream.download_bytes(b, 0, SIZE).unwrap().wait().unwrap());
    prop_assert_eq!(a, model);
    prop_assert_eq!(b, other);
    stream.synchronize().map_err(|e| TestCaseError::fail(e.to_string()))
}

#[test]
fn t3_transfers_touch_exactly_the_bytes_asked_for() {
    let mut options = options();
    options.settings.staging = 256;
    for rig in rigs(&options) {
        let strategy = (prop::sample::select(BOTH.to_vec()), prop::collection::vec(moves(), 1..20));
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(60));
        runner
            .run(&strategy, |(storage, moves)| check_moves(&rig.device, storage, &moves))
            .unwrap_or_else(|e| panic!("on {}: {e}", rig.name));
    }
}

#[test]
fn t3_clear_covers_every_view_of_a_buffer() {
    on_each(&options(), |rig| {
        let buffer = rig.device.allocate(Storage::Private, 256).unwrap();
        let stream = rig.device.stream();
        let views = [0, 60, 252].map(|at| buffer.tensor(at, monel::DType::F32, &[1]).unwrap());
        views.iter().for_each(|v| drop(stream.upload(v, &[1; 4]).unwrap()));
        drop(stream.clear(&buffer, 0xff).unwrap());
        for view in &views {
            assert_eq!(stream.download(view).unwrap().wait().unwrap(), [0xff; 4]);
        }
    });
}

#[test]
fn t3_overlapping_copies_and_runs_are_refused() {
    on_each(&options(), |rig| {
        let buffer = rig.device.allocate(Storage::Shared, 100).unwrap();
        let stream = rig.device.stream();
        let (from, to) = (Region::linear(0, 50), Region::linear(49, 50));
        assert!(matches!(stream.copy_region((&buffer, from), (&buffer, to)), Err(Error::Shape { .. })));
        let folded = Region { offset: 0, row: 8, rows: 3, stride: 4 };
        assert!(matches!(stream.fill_region(&buffer, folded, 1), Err(Error::Shape { .. })));
        stream.copy_region((&buffer, from), (&buffer, Region::linear(50, 50))).unwrap().wait().unwrap();
    });
}

#[test]
fn t4_temporaries_are_bounded_and_reclaimed_without_a_synchronize() {
    on_each(&options(), |rig| {
        let counts = rig.device.counts();
        let commands = || counts.snapshot()[4];
        let buffer = rig.device.allocate(Storage::Private, 4096).unwrap();
        let stream = rig.device.stream();
        let mut most = 0;
        for i in 0..6000usize {
            match i % 3 {
                0 => drop(stream.upload_bytes(&buffer, i % 1000, &[1; 64]).unwrap()),
                1 => drop(stream.fill(&buffer, i % 1000, 64, 2).unwrap()),
                _ => drop(stream.download_bytes(&buffer, i % 1000, 64).unwrap()),
            }
            most = most.max(commands());
        }
        assert!(most <= monel::stream::MAX_OUTSTANDING + 1, "{most} transfers at once");
        eventually("all is reclaimed", || commands() == 0);
        assert_eq!(rig.device.staging_usage().0, 0);
        // A device that does not move at all holds the caller back instead of running out of memory.
        let held = rig.hold();
        std::thread::scope(|scope| {
            let many = scope.spawn(|| (0..3000).for_each(|_| drop(stream.fill(&buffer, 0, 8, 2).unwrap())));
            eventually("the limit is reached", || commands() >= monel::stream::MAX_OUTSTANDING);
            assert!(!many.is_finished() && commands() <= monel::stream::MAX_OUTSTANDING + 1);
            drop(held);
            many.join().unwrap();
        });
    });
}
