//! Weights: from a file to tensors on a device.
//!
//! Matrices that the device wants in another layout are repacked by the device itself, a few at a time. A device that
//! sees the host's memory does that straight from the file's mapping, whose pages are let go as soon as they are
//! repacked, so a model never lies in memory twice; for others the file is read ([`Crossing`]). An embedding that is
//! only looked up is used in place where the device can; norms, biases and what cannot stay are uploaded.

use crate::arch::{ABOVE_ZERO, Architecture, Hyper};
use crate::context::floats;
use crate::crossing::{self, Crossing};
use crate::error::{Error, Result};
use monel::device::{HostMapping, Mapped};
use monel::{DType, Desc, Device, Graph, Needs, Storage, Stream, Tensor, Value};
use monel_gguf::{Advice, Gguf, Part, TensorInfo};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Bytes repacked by one graph: large enough to keep all threads busy, small enough to let pages go early.
const BATCH: u64 = 8 << 20;
/// Rows by which a large tensor is cut: a multiple of every packed layout's group.
const ROW_GROUP: usize = 64;
/// Tensors under this are copied even where they could stay in the file: a norm of 2 kB would keep a page of up to
/// 2 MB of its neighbours in memory.
const SMALL: u64 = 64 << 10;

/// The tensors of a model on a device, and its numbers.
pub struct Weights {
    /// The model's numbers.
    pub hyper: Hyper,
    tensors: HashMap<String, Tensor>,
}

/// How far loading is: bytes done and in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// A tensor that the model needs, and the type it will have on the device.
pub(crate) struct Wanted<'a> {
    pub info: &'a TensorInfo,
    pub natural: Desc,
    /// The type to keep it in; the same as `natural`'s when it stays as it is.
    pub target: Desc,
}

impl Wanted<'_> {
    /// Whether the device keeps it in another layout than the file.
    pub fn changes(&self) -> bool {
        self.natural != self.target
    }

    /// Whether it is used where it lies in the file.
    fn stays(&self, maps: bool) -> bool {
        !self.changes() && self.info.bytes >= SMALL && maps
    }
}

/// Rows of a tensor that are copied by one graph.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub wanted: &'a Wanted<'a>,
    pub first: usize,
    pub rows: usize,
}

impl Piece<'_> {
    /// Where its bytes lie in the tensor's data in the file.
    pub fn bytes(&self) -> Range<usize> {
        let row = self.wanted.natural.nb[1];
        self.first * row..(self.first + self.rows) * row
    }
}

/// A tensor's rows in pieces of about `most` bytes: an embedding can be half the model, and would otherwise lie in
/// memory twice.
fn pieces<'a>(wanted: &'a Wanted<'a>, most: u64) -> impl Iterator<Item = Piece<'a>> {
    let (all, row) = (wanted.natural.ne[1], wanted.natural.nb[1].max(1));
    let step = (most as usize / row).max(1).next_multiple_of(ROW_GROUP);
    (0..all).step_by(step).map(move |first| Piece { wanted, first, rows: step.min(all - first) })
}

/// All tensors in batches of `least` bytes or a little more, in their order.
pub(crate) fn batches<'a>(wanted: &'a [Wanted<'a>], least: u64) -> Vec<Vec<Piece<'a>>> {
    let mut batches = Vec::new();
    let (mut batch, mut bytes) = (Vec::new(), 0);
    for piece in wanted.iter().flat_map(|w| pieces(w, least)) {
        bytes += piece.bytes().len() as u64;
        batch.push(piece);
        if bytes >= least {
            batches.push(std::mem::take(&mut batch));
            bytes = 0;
        }
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    batches
}

impl Weights {
    /// The tensor of a name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// The tensor of a name, as a leaf of a graph.
    ///
    /// # Errors
    /// [`Error::Tensor`] where the model has none of that name.
    pub fn leaf(&self, graph: &mut Graph, name: &str) -> Result<Value> {
        let tensor = self.tensors.get(name).ok_or_else(|| missing(name))?;
        let value = graph.leaf(tensor);
        graph.set_name(value, name);
        Ok(value)
    }

    /// The output matrix: its own, or the embedding's.
    pub fn output_name(&self) -> &'static str {
        if self.tensors.contains_key("output.weight") { "output.weight" } else { "token_embd.weight" }
    }

    /// What loading will need on the device (contract M7), from the file alone.
    ///
    /// # Errors
    /// [`Error::Tensor`] for a tensor that is missing, of the wrong shape or type, or not known to the architecture,
    /// [`Error::Metadata`] for more layers than the file can have, and [`Error::Gguf`] where the file was cut.
    pub fn needs(gguf: &Gguf, device: &Device, architecture: &Architecture, hyper: &Hyper) -> Result<Needs> {
        let mut needs = Needs::default();
        let (mut kept, mut mapped) = (0, 0);
        let wanted = wanted(gguf, device, architecture, hyper)?;
        let maps = maps(gguf, device);
        for wanted in &wanted {
            match wanted.stays(maps) {
                true => mapped += wanted.natural.span() as u64,
                false => kept += wanted.target.span() as u64,
            }
        }
        needs.add("weights", kept, false);
        if !maps {
            needs.add("weights on their way", Crossing::new(&wanted, crossing::threads()).landing(), false);
        }
        if mapped > 0 {
            needs.add("weights in the file", mapped, true);
        }
        Ok(needs)
    }

    /// Brings a model's weights to a device. `progress` hears of bytes done and in all.
    ///
    /// # Errors
    /// Those of [`Weights::needs`], [`Error::Gguf`] where the file is cut meanwhile or cannot be read, and
    /// [`Error::Engine`] where the device has no memory for the weights or fails.
    pub fn load(
        gguf: &Gguf,
        stream: &Stream,
        architecture: &Architecture,
        mut hyper: Hyper,
        progress: Progress<'_>,
    ) -> Result<Weights> {
        let device = stream.device();
        let wanted = wanted(gguf, &device, architecture, &hyper)?;
        hyper.vocabulary = vocabulary(gguf)?;
        let total: u64 = wanted.iter().map(|w| w.info.bytes).sum();
        let mut tensors = HashMap::new();
        let mut done = 0;
        progress(0, total);
        let maps = maps(gguf, &device);
        let (stay, change): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|w| w.stays(maps));
        let places: Vec<_> =
            stay.iter().map(|w| Ok((w.info.part, range(gguf, w)?))).collect::<Result<_>>()?;
        let views = map_parts(gguf, &device, places.into_iter())?;
        for w in &stay {
            let tensor = in_place(&views, w, range(gguf, w)?.start, w.natural)?;
            tensors.insert(w.info.name.clone(), tensor);
            done += w.info.bytes;
        }
        progress(done, total);
        let mut arena = Arena::new(&device, change.iter().map(|w| w.target.span()));
        for w in &change {
            tensors.insert(w.info.name.clone(), arena.tensor(w.target)?);
        }
        if maps {
            for batch in batches(&change, BATCH) {
                repack(gguf, stream, &batch, &tensors)?;
                done += batch.iter().map(|p| p.bytes().len() as u64).sum::<u64>();
                progress(done, total);
            }
        } else {
            Crossing::new(&change, crossing::threads()).run(gguf, &device, &tensors, &mut |bytes| {
                done += bytes;
                progress(done, total);
            })?;
        }
        Ok(Weights { hyper, tensors })
    }
}

pub(crate) fn missing(name: &str) -> Error {
    Error::Tensor { name: name.into(), found: "absent".into(), expected: "a tensor of the model".into() }
}

/// Whether the device uses the file in place. A model in the program's own memory may begin anywhere; files begin at pages.
pub(crate) fn maps(gguf: &Gguf, device: &Device) -> bool {
    let page = device.info().page;
    device.capabilities().contains(&"mapped-memory")
        && gguf.parts().iter().all(|part| part.mapping().as_ptr().addr().is_multiple_of(page))
}

/// Tokens of the model: rows of its embedding.
pub(crate) fn vocabulary(gguf: &Gguf) -> Result<usize> {
    Ok(gguf.require_tensor("token_embd.weight")?.dims[1] as usize)
}

/// The tensors of the model, checked, with the type each will be kept in.
fn wanted<'a>(
    gguf: &'a Gguf,
    device: &Device,
    architecture: &Architecture,
    hyper: &Hyper,
) -> Result<Vec<Wanted<'a>>> {
    let h = hyper;
    // Each layer has tensors, so this bounds what a number in the file makes us do.
    let tensors = gguf.tensors().len();
    if h.layers > tensors {
        let (key, found) = (format!("{}.block_count", h.arch), h.layers.to_string());
        return Err(Error::Metadata {
            key,
            found,
            expected: format!("at most the file's {tensors} tensors"),
        });
    }
    let mut names: Vec<(String, bool)> =
        vec![("token_embd.weight".into(), false), ("output_norm.weight".into(), false)];
    names.extend([("output.weight".to_string(), true), ("rope_freqs.weight".to_string(), true)]);
    for layer in 0..h.layers {
        names.extend(
            architecture.layer_tensors.iter().map(|(s, optional)| (format!("blk.{layer}.{s}"), *optional)),
        );
    }
    refuse_others(gguf, architecture, &names)?;
    let (queries, keys) = (h.key_head * h.heads, h.key_head * h.kv_heads);
    let values = h.value_head * h.kv_heads;
    let separate_output = gguf.tensor("output.weight").is_some();
    let vocabulary = vocabulary(gguf)?;
    let mut list = Vec::new();
    for (name, optional) in names {
        let info = match (gguf.tensor(&name), optional) {
            (Some(info), _) => info,
            (None, true) => continue,
            (None, false) => {
                return Err(gguf.require_tensor(&name).err().map_or_else(|| missing(&name), Error::from));
            }
        };
        let suffix =
            name.split_once('.').map_or("", |(_, rest)| rest.split_once('.').map_or(rest, |(_, s)| s));
        let shape: &[usize] = match (name.as_str(), suffix) {
            ("token_embd.weight" | "output.weight", _) => &[h.width, vocabulary],
            ("rope_freqs.weight", _) => &[h.rope.dims / 2],
            (_, "attn_q.weight") => &[h.width, queries],
            (_, "attn_q.bias") => &[queries],
            (_, "attn_k.weight") => &[h.width, keys],
            (_, "attn_k.bias") => &[keys],
            (_, "attn_v.weight") => &[h.width, values],
            (_, "attn_v.bias") => &[values],
            (_, "attn_output.weight") => &[h.value_head * h.heads, h.width],
            (_, "attn_q_norm.weight" | "attn_k_norm.weight") => &[h.key_head],
            (_, "ffn_gate.weight" | "ffn_up.weight") => &[h.width, h.ffn],
            (_, "ffn_down.weight") => &[h.ffn, h.width],
            _ => &[h.width],
        };
        let found = || format!("{} {:?}", info.ty, info.shape());
        let wrong = |expected: String| Error::Tensor { name: name.clone(), found: found(), expected };
        if info.shape().iter().map(|&d| d as usize).ne(shape.iter().copied()) {
            return Err(wrong(format!("the shape {shape:?}")));
        }
        let known = || {
            let types: Vec<_> = DType::STORAGE.iter().filter(|t| !t.is_integer()).collect();
            wrong(format!("one of the types {types:?}"))
        };
        let dtype = DType::parse(info.ty.name()).filter(|t| !t.is_integer()).ok_or_else(known)?;
        if shape.len() == 1 && dtype != DType::F32 {
            return Err(wrong("F32".into()));
        }
        if name == "rope_freqs.weight" {
            check_factors(gguf, info)?;
        }
        let natural = Desc::new(dtype, shape)?;
        let looked_up_only = name == "token_embd.weight" && separate_output;
        let target =
            if looked_up_only || shape.len() == 1 { dtype } else { device.weight_type(dtype, natural.ne) };
        list.push(Wanted { info, natural, target: Desc::new(target, shape)? });
    }
    Ok(list)
}

/// Angles are divided by the factors of rotation: refuses those that nothing can be divided by.
fn check_factors(gguf: &Gguf, info: &TensorInfo) -> Result<()> {
    let factors = floats(gguf.data(info)?);
    match factors.iter().enumerate().find(|(_, f)| !(f.is_finite() && **f > 0.0)) {
        None => Ok(()),
        Some((at, factor)) => Err(Error::Tensor {
            name: info.name.clone(),
            found: format!("{factor} in place {at}"),
            expected: ABOVE_ZERO.to_string(),
        }),
    }
}

/// Refuses a tensor that nothing would read: a model computed without it is another model. Old files have the angles of
/// rotation, which follow from the metadata.
fn refuse_others(gguf: &Gguf, architecture: &Architecture, names: &[(String, bool)]) -> Result<()> {
    let known: HashSet<&str> = names.iter().map(|(name, _)| name.as_str()).collect();
    let other = |t: &&TensorInfo| !known.contains(t.name.as_str()) && !t.name.contains(".attn_rot_embd.");
    match gguf.tensors().iter().find(other) {
        None => Ok(()),
        Some(info) => Err(Error::Tensor {
            name: info.name.clone(),
            found: format!("{} {:?} in the file", info.ty, info.shape()),
            expected: format!(
                "no tensor of that name: this program's '{}' does not use it",
                architecture.name
            ),
        }),
    }
}

/// A part of the model as memory the engine can use in place.
struct Mapping(Arc<Part>);

impl HostMapping for Mapping {
    fn bytes(&self) -> &[u8] {
        self.0.mapping()
    }

    fn name(&self) -> String {
        self.0.path().map_or_else(|| "the model in memory".to_string(), |p| p.display().to_string())
    }

    /// That of the file that was opened: its path may be another file's by now.
    fn current_len(&self) -> Option<u64> {
        let whole = self.0.file_bytes();
        match self.0.bytes(0..whole) {
            Ok(_) => Some(whole),
            Err(error) => match error.cause() {
                monel_gguf::Error::FileShrunk { now, .. } => Some(*now),
                _ => None,
            },
        }
    }
}

/// Byte ranges of tensors' data in the file, each with its part, as memory to be used in place: a mapping of each part
/// that has any.
fn map_parts(
    gguf: &Gguf,
    device: &Device,
    ranges: impl Iterator<Item = (usize, Range<usize>)>,
) -> Result<Vec<Option<Mapped>>> {
    let mut by_part = vec![Vec::new(); gguf.parts().len()];
    ranges.for_each(|(part, range)| by_part[part].push(range));
    let map = |(part, ranges): (&Arc<Part>, Vec<_>)| match ranges.is_empty() {
        true => Ok(None),
        false => Ok(Some(device.map(Arc::new(Mapping(part.clone())), &ranges)?)),
    };
    gguf.parts().iter().zip(by_part).map(map).collect()
}

/// Where a tensor's data lies in its part.
fn range(gguf: &Gguf, w: &Wanted<'_>) -> Result<Range<usize>> {
    let (_, range) = gguf.locate(w.info)?;
    Ok(range.start as usize..range.end as usize)
}

fn in_place(views: &[Option<Mapped>], w: &Wanted<'_>, at: usize, desc: Desc) -> Result<Tensor> {
    match &views[w.info.part] {
        Some(mapped) => Ok(mapped.tensor(at, desc)?),
        None => Err(missing(&w.info.name)),
    }
}

/// Repacks a batch straight from the file's pages and lets go of them: a device may hold the pages of what is mapped, so
/// only a batch is mapped at a time.
pub(crate) fn repack(
    gguf: &Gguf,
    stream: &Stream,
    batch: &[Piece<'_>],
    tensors: &HashMap<String, Tensor>,
) -> Result<()> {
    let place = |piece: &Piece<'_>| {
        let (start, bytes) = (range(gguf, piece.wanted)?.start, piece.bytes());
        Ok::<_, Error>(start + bytes.start..start + bytes.end)
    };
    let changing = batch.iter().filter(|piece| piece.wanted.changes());
    let places: Vec<_> = changing.map(|p| Ok((p.wanted.info.part, place(p)?))).collect::<Result<_>>()?;
    let views = map_parts(gguf, &stream.device(), places.into_iter())?;
    let mut graph = Graph::new("repack weights");
    let mut uploads = Vec::new();
    for piece in batch {
        let w = piece.wanted;
        let target = tensors.get(&w.info.name).ok_or_else(|| missing(&w.info.name))?;
        let target = target.slice(1, piece.first, piece.rows)?;
        if !w.changes() {
            uploads.push(stream.upload(&target, &gguf.data(w.info)?[piece.bytes()])?);
            continue;
        }
        let rows = Desc::new(w.natural.dtype, &[w.natural.ne[0], piece.rows])?;
        let source = in_place(&views, w, place(piece)?.start, rows)?;
        let (from, to) = (graph.leaf(&source), graph.leaf(&target));
        let copy = graph.copy_into(from, to)?;
        graph.set_name(copy, w.info.name.clone());
    }
    if graph.nodes().next().is_some() {
        stream.run(&graph)?;
    }
    uploads.into_iter().try_for_each(|u| u.wait())?;
    drop((graph, views));
    for piece in batch {
        gguf.advise(piece.wanted.info, Advice::DontNeed)?;
    }
    Ok(())
}

/// Few large buffers for many tensors.
struct Arena<'a> {
    device: &'a Device,
    left: u64,
    buffer: Option<(monel::Buffer, usize)>,
}

/// Where tensors begin in a buffer that several share.
pub(crate) const ALIGN: usize = 64;

impl<'a> Arena<'a> {
    fn new(device: &'a Device, sizes: impl Iterator<Item = usize>) -> Arena<'a> {
        let left = sizes.map(|s| s.next_multiple_of(ALIGN) as u64).sum();
        Arena { device, left, buffer: None }
    }

    fn tensor(&mut self, desc: Desc) -> Result<Tensor> {
        let bytes = desc.span().next_multiple_of(ALIGN);
        let fits = self.buffer.as_ref().is_some_and(|(b, at)| at + bytes <= b.size());
        if !fits {
            let largest = self.device.info().max_buffer as u64;
            let size = self.left.min(largest.min(1 << 30)).max(bytes as u64) as usize;
            self.buffer = Some((self.device.allocate(storage(self.device), size)?, 0));
        }
        let Some((buffer, at)) = &mut self.buffer else { return Err(missing("arena")) };
        let tensor = Tensor::new(buffer, *at, desc)?;
        *at += bytes;
        self.left = self.left.saturating_sub(bytes as u64);
        Ok(tensor)
    }
}

fn storage(device: &Device) -> Storage {
    device.default_storage()
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use monel::device::software;
    use monel_gguf::{GgmlType, GgufWriter};
    use std::fs::File;

    /// Files are replaced by renaming while a model of theirs is in use; the mapping is the old file's then.
    #[test]
    fn a_file_in_place_is_the_one_that_was_opened_whatever_its_name_is_by_now() {
        let directory = tempfile::tempdir().unwrap();
        let [path, other] = ["model.gguf", "other.gguf"].map(|name| directory.path().join(name));
        let values: Vec<u8> = (0..1u32 << 16).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let mut header = GgufWriter::new();
        header.tensor("x", GgmlType::F32, &[256, 256]).unwrap();
        let mut data = header.start(File::create(&path).unwrap()).unwrap();
        data.tensor("x", &values).unwrap();
        data.finish().unwrap();
        let gguf = Gguf::open(&path).unwrap();
        let opened = File::options().write(true).open(&path).unwrap();
        let device = software::create(&software::Options { threads: 1, ..Default::default() }).unwrap();
        let stream = device.stream();
        let info = &gguf.tensors()[0];
        let natural = Desc::new(DType::F32, &[256, 256]).unwrap();
        let wanted = Wanted { info, natural, target: natural };
        let place = range(&gguf, &wanted).unwrap();
        let views = map_parts(&gguf, &device, std::iter::once((info.part, place.clone()))).unwrap();
        let tensor = in_place(&views, &wanted, place.start, natural).unwrap();
        let bytes = || stream.download(&tensor).unwrap().wait();

        // Another file of that name says nothing of this one, a shorter one least of all.
        std::fs::write(&other, "a shorter file").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert!(bytes().unwrap() == values);
        std::fs::remove_file(&path).unwrap();
        assert!(bytes().unwrap() == values);

        // A cut of this one is noticed, though the file of that name is whole.
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        opened.set_len(4096).unwrap();
        let error = bytes().unwrap_err();
        let monel::Error::MappingShrank { what, expected, found: 4096 } = error.root() else {
            panic!("{error}")
        };
        assert!(what.contains("model.gguf") && *expected == place.end as u64, "{error}");
        stream.recover().unwrap();
    }
    /// Bytes that begin one behind where the system's memory does.
    struct Shifted(Vec<u8>);

    impl AsRef<[u8]> for Shifted {
        fn as_ref(&self) -> &[u8] {
            &self.0[1..]
        }
    }

    #[test]
    fn a_model_in_memory_that_begins_anywhere_is_copied() {
        let mut header = GgufWriter::new();
        header.tensor("x", GgmlType::F32, &[256, 256]).unwrap();
        let values: Vec<u8> = (0..1u32 << 16).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let mut data = header.start(vec![0]).unwrap();
        data.tensor("x", &values).unwrap();
        let gguf = Gguf::from_bytes(Shifted(data.finish().unwrap())).unwrap();
        let device = software::create(&software::Options { threads: 1, ..Default::default() }).unwrap();
        assert!(!maps(&gguf, &device), "kernels would read floats where none begin");
        let natural = Desc::new(DType::F32, &[256, 256]).unwrap();
        let wanted = [Wanted { info: &gguf.tensors()[0], natural, target: natural }];
        let tensor = device.tensor(DType::F32, &[256, 256]).unwrap();
        let tensors = HashMap::from([("x".to_string(), tensor.clone())]);
        Crossing::new(&wanted, 1).run(&gguf, &device, &tensors, &mut |_| ()).unwrap();
        assert!(device.stream().download(&tensor).unwrap().wait().unwrap() == values);
    }
}
