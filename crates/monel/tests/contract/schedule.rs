//! O2, at random: sequences of uploads, graphs, fills, copies and downloads over several streams and threads, against
//! the same sequence on plain bytes.

use crate::harness::*;
use monel::device::software::Options;
use monel::device::{Device, Storage};
use monel::ops::{Binary, BinaryKind};
use monel::{Buffer, DType, Download, Graph, Recording, Stream};
use proptest::prelude::*;

const N: usize = 48;
const BYTES: usize = N * 4;

#[derive(Clone, Debug)]
enum Call {
    Upload {
        to: usize,
        at: usize,
        bytes: Vec<u8>,
    },
    Fill {
        to: usize,
        at: usize,
        len: usize,
        value: u8,
    },
    Copy {
        from: usize,
        to: usize,
        at: usize,
        len: usize,
    },
    /// out = (a + b) * a, out of place.
    Graph {
        out: usize,
    },
    Download {
        from: usize,
        at: usize,
        len: usize,
    },
}

fn range() -> impl Strategy<Value = (usize, usize)> {
    (0..BYTES).prop_flat_map(|at| (Just(at), 0..=BYTES - at))
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        1 => (0usize..3, range(), any::<u8>()).prop_map(|(to, (at, len), seed)| {
            let bytes = (0..len).map(|i| (i as u8).wrapping_mul(31) ^ seed).collect();
            Call::Upload { to, at, bytes }
        }),
        1 => (0usize..3, range(), any::<u8>())
            .prop_map(|(to, (at, len), value)| Call::Fill { to, at, len, value }),
        1 => (0usize..3, 1usize..3, range())
            .prop_map(|(from, d, (at, len))| Call::Copy { from, to: (from + d) % 3, at, len }),
        3 => (0usize..3).prop_map(|out| Call::Graph { out }),
        2 => (0usize..3, range()).prop_map(|(from, (at, len))| Call::Download { from, at, len }),
    ]
}

fn plan() -> impl Strategy<Value = Vec<(usize, Call)>> {
    prop::collection::vec((0usize..3, call()), 1..40)
}

struct World {
    buffers: [Buffer; 3],
    graphs: [Recording; 3],
    model: [Vec<u8>; 3],
}

impl World {
    fn new(device: &Device) -> World {
        let kinds = [Storage::Private, Storage::Shared, Storage::Private];
        let buffers = kinds.map(|kind| device.allocate(kind, BYTES).unwrap());
        let tensors = buffers.each_ref().map(|b| b.tensor(0, DType::I32, &[N]).unwrap());
        let graphs = [0, 1, 2].map(|out| {
            let mut graph = Graph::new("out = (a + b) * a");
            let leaves = tensors.each_ref().map(|t| graph.leaf(t));
            let (a, b) = (leaves[(out + 1) % 3], leaves[(out + 2) % 3]);
            let sum = graph.add(a, b).unwrap();
            graph.apply_into(Binary { kind: BinaryKind::Mul }, &[sum, a], leaves[out]).unwrap();
            device.record(&graph).unwrap()
        });
        World { buffers, graphs, model: [(); 3].map(|()| vec![0; BYTES]) }
    }

    /// Makes the call, and what a download of it has to give.
    fn call(&mut self, stream: &Stream, call: &Call) -> monel::Result<Option<(Download, Vec<u8>)>> {
        match call {
            Call::Upload { to, at, bytes } => {
                drop(stream.upload_bytes(&self.buffers[*to], *at, bytes)?);
                self.model[*to][*at..at + bytes.len()].copy_from_slice(bytes);
            }
            Call::Fill { to, at, len, value } => {
                drop(stream.fill(&self.buffers[*to], *at, *len, *value)?);
                self.model[*to][*at..at + len].fill(*value);
            }
            Call::Copy { from, to, at, len } => {
                let region = monel::device::driver::Region::linear(*at, *len);
                drop(stream.copy_region((&self.buffers[*from], region), (&self.buffers[*to], region))?);
                let bytes = self.model[*from][*at..at + len].to_vec();
                self.model[*to][*at..at + len].copy_from_slice(&bytes);
            }
            Call::Graph { out } => {
                drop(stream.submit(&self.graphs[*out])?);
                let ints = |i: usize| -> Vec<i32> {
                    let bytes = &self.model[(out + i) % 3];
                    bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect()
                };
                let (a, b) = (ints(1), ints(2));
                let result: Vec<i32> =
                    a.iter().zip(&b).map(|(a, b)| a.wrapping_add(*b).wrapping_mul(*a)).collect();
                self.model[*out] = bytes(&result);
            }
            Call::Download { from, at, len } => {
                let download = stream.download_bytes(&self.buffers[*from], *at, *len)?;
                return Ok(Some((download, self.model[*from][*at..at + len].to_vec())));
            }
        }
        Ok(None)
    }
}

/// Makes the calls over three streams, then compares every download and the final bytes.
fn run(device: &Device, calls: &[(usize, Call)]) {
    let streams = [(); 3].map(|()| device.stream());
    let mut world = World::new(device);
    let mut downloads = Vec::new();
    for (stream, call) in calls {
        downloads.extend(world.call(&streams[*stream], call).unwrap());
    }
    for (i, (buffer, model)) in world.buffers.iter().zip(&world.model).enumerate() {
        downloads.push((streams[i].download_bytes(buffer, 0, BYTES).unwrap(), model.clone()));
    }
    for (download, expected) in downloads {
        assert_eq!(download.wait().unwrap(), expected);
    }
    streams.iter().for_each(|s| s.synchronize().unwrap());
}

fn on_all(options: &Options, cases: u32, threads: usize) {
    for rig in rigs(options) {
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(cases));
        let plans = prop::collection::vec(plan(), threads);
        let result = runner.run(&plans, |plans| {
            std::thread::scope(|scope| {
                let device = &rig.device;
                let running: Vec<_> =
                    plans.iter().map(|calls| scope.spawn(move || run(device, calls))).collect();
                let failed = running.into_iter().filter_map(|t| t.join().err()).count();
                prop_assert_eq!(failed, 0);
                Ok(())
            })
        });
        result.unwrap_or_else(|e| panic!("on {}: {e}", rig.name));
    }
}

#[test]
fn o2_random_schedules_over_three_streams() {
    on_all(&options(), 80, 1);
    let mut small = tiny_chunks();
    (small.settings.staging, small.settings.in_flight) = (128, 1);
    on_all(&small, 40, 1);
}

#[test]
fn o2_random_schedules_from_three_threads() {
    on_all(&tiny_chunks(), 30, 3);
}
