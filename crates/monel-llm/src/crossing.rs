//! Weights for a device that cannot use a file in place: read, carried over and repacked, several batches at once.
//!
//! Copying bytes out of the system's cache is what takes the time, and one core does not fill a bus. So several threads
//! take batches from a counter, each with a stream of its own. A batch goes from the file straight into staging memory,
//! lands in a slice of device memory and is repacked from there by one graph; what needs no repacking is uploaded to
//! where it stays. A thread has two slices and waits only for the batch before the one it has just handed over. Which
//! thread carries what changes from run to run; the weights do not, since no two batches write the same bytes.

use crate::error::{Error, Result};
use crate::weights::{ALIGN, Piece, Wanted, batches, missing};
use monel::{Buffer, Desc, Device, Graph, Stream, Submission, Tensor};
use monel_gguf::Gguf;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

/// Bytes a batch has at least, and a piece of a tensor at most: some 200 µs of a bus, against some 100 µs to plan and
/// record its graph.
const BATCH: u64 = 4 << 20;
/// More threads fill no bus better, and each has its slices.
const MOST_THREADS: usize = 8;
/// Slices of a thread: one is filled while the other is repacked.
const SLICES: usize = 2;

/// How many threads carry: one a core, at most [`MOST_THREADS`].
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get().min(MOST_THREADS))
}

/// The way of a model's weights to a device.
pub(crate) struct Crossing<'a> {
    batches: Vec<Vec<Piece<'a>>>,
    threads: usize,
    /// Bytes in which every batch can land.
    slice: usize,
}

/// What several threads share while they carry.
struct Shared<'a> {
    gguf: &'a Gguf,
    device: &'a Device,
    /// Where each tensor goes.
    targets: &'a HashMap<String, Tensor>,
    /// The next batch.
    next: AtomicUsize,
    /// Set at the first failure: nobody begins another batch.
    stop: AtomicBool,
}

/// A batch that was handed over.
struct Sent {
    bytes: u64,
    submissions: Vec<Submission>,
}

impl<'a> Crossing<'a> {
    /// Cuts the tensors into batches for at most so many threads.
    pub fn new(wanted: &'a [Wanted<'a>], threads: usize) -> Crossing<'a> {
        let batches = batches(wanted, BATCH);
        let landed = |batch: &Vec<Piece<'_>>| batch.iter().map(landed).sum();
        let slice = batches.iter().map(landed).max().unwrap_or(0);
        Crossing { threads: threads.clamp(1, batches.len().max(1)), batches, slice }
    }

    /// Bytes of device memory that are used on the way and given back at its end.
    pub fn landing(&self) -> u64 {
        (self.threads * SLICES * self.slice) as u64
    }

    /// Carries everything to `targets`, which hold every tensor by its name. `carried` hears on this thread of the bytes
    /// of each batch that has arrived. The first failure ends the work of all threads.
    pub fn run(
        &self,
        gguf: &Gguf,
        device: &Device,
        targets: &HashMap<String, Tensor>,
        carried: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let shared = &Shared { gguf, device, targets, next, stop };
        let (sender, receiver) = channel();
        let work = |sender: &Sender<Result<u64>>| {
            if let Err(error) = self.carry(shared, sender) {
                shared.stop.store(true, Ordering::Relaxed);
                // It is gone only where the caller unwinds.
                let _ = sender.send(Err(error));
            }
        };
        std::thread::scope(|scope| {
            let mut started = 0;
            for _ in 0..self.threads {
                let (work, sender) = (&work, sender.clone());
                let thread = std::thread::Builder::new().name("monel-weights".into());
                started += usize::from(thread.spawn_scoped(scope, move || work(&sender)).is_ok());
            }
            if started == 0 {
                // A system that has no thread left still has this one.
                work(&sender);
            }
            drop(sender);
            let mut failure = None;
            for message in receiver {
                match message {
                    Ok(bytes) => carried(bytes),
                    Err(error) => _ = failure.get_or_insert(error),
                }
            }
            failure.map_or(Ok(()), Err)
        })
    }

    /// One thread's work.
    fn carry(&self, shared: &Shared<'_>, sender: &Sender<Result<u64>>) -> Result<()> {
        let stream = shared.device.stream();
        let landing = shared.device.allocate(shared.device.default_storage(), SLICES * self.slice)?;
        let arrived = |sent: Sent| {
            sent.submissions.into_iter().try_for_each(Submission::wait)?;
            if sender.send(Ok(sent.bytes)).is_err() {
                shared.stop.store(true, Ordering::Relaxed);
            }
            Ok::<_, Error>(())
        };
        let mut before = None;
        let mut slice = 0;
        while !shared.stop.load(Ordering::Relaxed) {
            let Some(batch) = self.batches.get(shared.next.fetch_add(1, Ordering::Relaxed)) else { break };
            let sent = send(shared, &stream, (&landing, slice * self.slice), batch)?;
            before.replace(sent).map_or(Ok(()), arrived)?;
            slice = (slice + 1) % SLICES;
        }
        before.map_or(Ok(()), arrived)
    }
}

/// Bytes of a piece's place in a slice.
fn landed(piece: &Piece<'_>) -> usize {
    if piece.wanted.changes() { piece.bytes().len().next_multiple_of(ALIGN) } else { 0 }
}

/// Hands a batch over, which lands from a place in a buffer on.
fn send(
    shared: &Shared<'_>,
    stream: &Stream,
    (landing, mut at): (&Buffer, usize),
    batch: &[Piece<'_>],
) -> Result<Sent> {
    let mut graph = Graph::new("repack weights");
    let mut sent = Sent { bytes: 0, submissions: Vec::new() };
    for piece in batch {
        let info = piece.wanted.info;
        let target = shared.targets.get(&info.name).ok_or_else(|| missing(&info.name))?;
        let target = target.slice(1, piece.first, piece.rows)?;
        let read = |from: usize, out: &mut [u8]| {
            shared.gguf.read(info, (piece.bytes().start + from) as u64, out).map_err(Error::from)
        };
        sent.bytes += piece.bytes().len() as u64;
        if !piece.wanted.changes() {
            sent.submissions.push(stream.upload_with(&target, read)?);
            continue;
        }
        let natural = piece.wanted.natural;
        let source = Tensor::new(landing, at, Desc::new(natural.dtype, &[natural.ne[0], piece.rows])?)?;
        at += landed(piece);
        sent.submissions.push(stream.upload_with(&source, read)?);
        let (from, to) = (graph.leaf(&source), graph.leaf(&target));
        let copy = graph.copy_into(from, to)?;
        graph.set_name(copy, info.name.clone());
    }
    if graph.nodes().next().is_some() {
        sent.submissions.push(stream.submit(&stream.device().record(&graph)?)?);
    }
    Ok(sent)
}

#[cfg(all(test, feature = "vulkan"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use monel::DType;
    use monel::device::vulkan;
    use monel_gguf::{GgmlType, GgufWriter};
    use std::path::PathBuf;
    use tempfile::TempDir;

    /// A Vulkan device of the test's own, that of number `MONEL_VULKAN_DEVICE`, which compiles its kernels itself: no file of
    /// the user's is read or written. A machine without one skips the test and says so; with `MONEL_REQUIRE_VULKAN` that
    /// fails it.
    fn vulkan() -> Option<Device> {
        let index = std::env::var("MONEL_VULKAN_DEVICE")
            .map_or(0, |n| n.parse().expect("MONEL_VULKAN_DEVICE is a number"));
        let id = format!("vulkan:{index}");
        if vulkan::list().iter().all(|listing| listing.id != id) {
            let problems = vulkan::problems();
            let required = std::env::var_os("MONEL_REQUIRE_VULKAN").is_some();
            assert!(!required, "no device {id}: {problems:?}");
            println!("skipped: no device {id}: {problems:?}");
            return None;
        }
        let options = vulkan::Options { index, cache: None, ..vulkan::Options::default() };
        Some(vulkan::create(&options).unwrap().0)
    }

    /// A file, removed with its directory at the end.
    struct File {
        path: PathBuf,
        _directory: TempDir,
    }

    /// Matrices of many types with arbitrary bytes, smaller and larger than a batch, and vectors between them.
    fn file() -> File {
        let mut tensors = Vec::new();
        for (i, name) in ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "BF16", "F16", "Q5_0"].iter().enumerate() {
            let ty = GgmlType::from_name(name).unwrap();
            tensors.push((format!("large.{i}"), ty, vec![512, 20_000 + 100 * i as u64]));
            tensors.push((format!("small.{i}"), ty, vec![512, 96]));
            tensors.push((format!("vector.{i}"), GgmlType::F32, vec![1000 + i as u64]));
        }
        let mut header = GgufWriter::new();
        tensors.iter().for_each(|(name, ty, shape)| _ = header.tensor(name, *ty, shape).unwrap());
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model.gguf");
        let mut data = header.start(std::fs::File::create(&path).unwrap()).unwrap();
        let mut state = 7u64;
        for (name, ty, shape) in &tensors {
            let dtype = DType::parse(ty.name()).unwrap();
            let shape: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
            let mut bytes = vec![0; Desc::new(dtype, &shape).unwrap().span()];
            bytes.iter_mut().for_each(|byte| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *byte = (state >> 56) as u8;
            });
            data.tensor(name, &bytes).unwrap();
        }
        data.finish().unwrap();
        File { path, _directory: directory }
    }

    fn wanted<'a>(gguf: &'a Gguf, device: &Device) -> Vec<Wanted<'a>> {
        let of = |info: &'a monel_gguf::TensorInfo| {
            let shape: Vec<usize> = info.shape().iter().map(|&n| n as usize).collect();
            let natural = Desc::new(DType::parse(info.ty.name()).unwrap(), &shape).unwrap();
            let matrix = device.weight_type(natural.dtype, natural.ne);
            let target = Desc::new(if shape.len() == 1 { natural.dtype } else { matrix }, &shape).unwrap();
            Wanted { info, natural, target }
        };
        gguf.tensors().iter().map(of).collect()
    }

    fn targets(device: &Device, wanted: &[Wanted<'_>]) -> HashMap<String, Tensor> {
        let new = |w: &Wanted<'_>| {
            let buffer = device.allocate(device.default_storage(), w.target.span()).unwrap();
            (w.info.name.clone(), Tensor::new(&buffer, 0, w.target).unwrap())
        };
        wanted.iter().map(new).collect()
    }

    fn bytes(stream: &Stream, tensor: &Tensor) -> Vec<u8> {
        stream.download_bytes(tensor.buffer(), tensor.offset(), tensor.desc().span()).unwrap().wait().unwrap()
    }

    #[test]
    fn one_thread_and_several_carry_the_same_bits_as_whole_tensors_one_by_one() {
        let Some(device) = vulkan() else { return };
        let file = file();
        let gguf = Gguf::open(&file.path).unwrap();
        let wanted = wanted(&gguf, &device);
        assert!(wanted.iter().any(Wanted::changes) && !wanted.iter().all(Wanted::changes));
        let total: u64 = wanted.iter().map(|w| w.info.bytes).sum();
        let stream = device.stream();
        let plain = targets(&device, &wanted);
        for w in &wanted {
            let target = &plain[&w.info.name];
            let data = gguf.data(w.info).unwrap();
            if !w.changes() {
                stream.upload(target, data).unwrap().wait().unwrap();
                continue;
            }
            let buffer = device.allocate(device.default_storage(), data.len()).unwrap();
            let source = Tensor::new(&buffer, 0, w.natural).unwrap();
            drop(stream.upload(&source, data).unwrap());
            let mut graph = Graph::new("whole");
            let (from, to) = (graph.leaf(&source), graph.leaf(target));
            graph.copy_into(from, to).unwrap();
            stream.run(&graph).unwrap();
        }
        for threads in [1, 2, 5, 1000] {
            let crossing = Crossing::new(&wanted, threads);
            assert!(crossing.batches.len() > 8 && crossing.threads <= crossing.batches.len());
            assert!(crossing.slice as u64 <= 2 * BATCH + (1 << 20), "slices of {}", crossing.slice);
            let crossing = Crossing { threads: crossing.threads.min(MOST_THREADS), ..crossing };
            let carried = targets(&device, &wanted);
            let mut done = 0;
            crossing.run(&gguf, &device, &carried, &mut |bytes| done += bytes).unwrap();
            assert_eq!(done, total, "the bytes that were heard of");
            for (name, tensor) in &plain {
                assert!(
                    bytes(&stream, tensor) == bytes(&stream, &carried[name]),
                    "{name}, {threads} threads"
                );
            }
        }
    }

    #[test]
    fn files_in_place_give_the_same_bits_as_files_that_are_read() {
        let Some(device) = vulkan() else { return };
        let file = file();
        let gguf = Gguf::open(&file.path).unwrap();
        if !crate::weights::maps(&gguf, &device) {
            println!("skipped: {} does not use files in place", device.info().name);
            return;
        }
        let wanted = wanted(&gguf, &device);
        let stream = device.stream();
        let [read, placed] = [(); 2].map(|()| targets(&device, &wanted));
        Crossing::new(&wanted, 2).run(&gguf, &device, &read, &mut |_| ()).unwrap();
        let held = || std::sync::Arc::strong_count(&gguf.parts()[0]);
        let before = held();
        for batch in batches(&wanted, BATCH) {
            crate::weights::repack(&gguf, &stream, &batch, &placed).unwrap();
        }
        assert_eq!(held(), before, "nothing of the file is held");
        for (name, tensor) in &read {
            assert!(bytes(&stream, tensor) == bytes(&stream, &placed[name]), "{name}");
        }
    }

    #[test]
    fn a_file_that_is_cut_ends_all_threads_with_one_error() {
        let Some(device) = vulkan() else { return };
        let file = file();
        let gguf = Gguf::open(&file.path).unwrap();
        let wanted = wanted(&gguf, &device);
        let total: u64 = wanted.iter().map(|w| w.info.bytes).sum();
        let targets = targets(&device, &wanted);
        std::fs::File::options().write(true).open(&file.path).unwrap().set_len(total / 2).unwrap();
        for threads in [1, 4] {
            let mut done = 0;
            let failed =
                Crossing::new(&wanted, threads).run(&gguf, &device, &targets, &mut |bytes| done += bytes);
            let Err(Error::Gguf(error)) = failed else { panic!("{failed:?}") };
            assert!(matches!(error.cause(), monel_gguf::Error::FileShrunk { .. }), "{error}");
            assert!(done < total);
        }
        if crate::weights::maps(&gguf, &device) {
            let stream = device.stream();
            let all = batches(&wanted, BATCH);
            let mut errors =
                all.iter().filter_map(|b| crate::weights::repack(&gguf, &stream, b, &targets).err());
            let error = errors.next().unwrap().to_string();
            assert!(error.contains(file.path.to_str().unwrap()), "{error}");
        }
        // The device goes on.
        let w = wanted.iter().find(|w| !w.changes()).unwrap();
        let stream = device.stream();
        let data = vec![3; w.natural.span()];
        stream.upload(&targets[&w.info.name], &data).unwrap().wait().unwrap();
        assert_eq!(bytes(&stream, &targets[&w.info.name]), data);
    }
}
