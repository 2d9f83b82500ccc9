//! Weights: from a file's mapping to tensors on a device.
//!
//! Matrices that the device wants in another layout are repacked by the device itself, a few at a time, straight from
//! the mapping; the mapping's pages are let go as soon as they are repacked, so a model never lies in memory twice.
//! Everything else (norms, biases, an embedding that is only looked up) is used in place where the device can, or
//! uploaded.

use crate::arch::{Architecture, Hyper};
use crate::error::{Error, Result};
use monel::device::{HostMapping, Mapped};
use monel::{DType, Desc, Device, Graph, Needs, Storage, Stream, Tensor, Value};
use monel_gguf::{Advice, Gguf, Part, TensorInfo};
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes repacked by one graph: large enough to keep all threads busy, small enough to let pages go early.
const BATCH: u64 = 8 << 20;

/// The tensors of a model on a device, and its numbers.
pub struct Weights {
    /// The model's numbers.
    pub hyper: Hyper,
    tensors: HashMap<String, Tensor>,
}

/// How far loading is: bytes done and in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// A tensor that the model needs, and the type it will have on the device.
struct Wanted<'a> {
    info: &'a TensorInfo,
    natural: Desc,
    /// The type to keep it in; the same as `natural`'s when it stays as it is.
    target: Desc,
}

impl Weights {
    /// The tensor of a name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// The tensor of a name, as a leaf of a graph.
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

    /// Bytes read for one token of a decode step: every matrix once, and one row of a separate embedding.
    pub fn bytes_per_token(&self) -> u64 {
        let separate = self.output_name() == "output.weight";
        let read = |name: &str, t: &Tensor| match name {
            "token_embd.weight" if separate => t.desc().nb[1],
            _ => t.desc().span(),
        };
        self.tensors.iter().map(|(name, t)| read(name, t) as u64).sum()
    }

    /// What loading will need on the device (contract M7), from the file alone.
    pub fn needs(gguf: &Gguf, device: &Device, architecture: &Architecture, hyper: &Hyper) -> Result<Needs> {
        let mut needs = Needs::default();
        let (mut kept, mut mapped) = (0, 0);
        for wanted in wanted(gguf, device, architecture, hyper)? {
            match wanted.natural == wanted.target && maps(device) {
                true => mapped += wanted.natural.span() as u64,
                false => kept += wanted.target.span() as u64,
            }
        }
        needs.add("weights", kept, false);
        if mapped > 0 {
            needs.add("weights in the file", mapped, true);
        }
        Ok(needs)
    }

    /// Brings a model's weights to a device.
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
        let (stay, change): (Vec<_>, Vec<_>) =
            wanted.into_iter().partition(|w| w.natural == w.target && maps(&device));
        let views = map_parts(gguf, &device, stay.iter().chain(&change))?;
        for w in &stay {
            tensors.insert(w.info.name.clone(), in_place(gguf, &views, w)?);
            done += w.info.bytes;
        }
        progress(done, total);
        let mut batch: Vec<&Wanted<'_>> = Vec::new();
        let mut arena = Arena::new(&device, change.iter().map(|w| w.target.span()));
        for (i, w) in change.iter().enumerate() {
            batch.push(w);
            if batch.iter().map(|w| w.info.bytes).sum::<u64>() < BATCH && i + 1 < change.len() {
                continue;
            }
            for w in repack(gguf, stream, &views, &mut arena, &batch, &mut tensors)? {
                done += w;
                progress(done, total);
            }
            batch.clear();
        }
        Ok(Weights { hyper, tensors })
    }
}

fn missing(name: &str) -> Error {
    Error::Tensor { name: name.into(), found: "absent".into(), expected: "a tensor of the model".into() }
}

fn maps(device: &Device) -> bool {
    device.capabilities().contains(&"mapped-memory")
}

fn vocabulary(gguf: &Gguf) -> Result<usize> {
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
    let mut names: Vec<(String, bool)> =
        vec![("token_embd.weight".into(), false), ("output_norm.weight".into(), false)];
    names.extend([("output.weight".to_string(), true), ("rope_freqs.weight".to_string(), true)]);
    for layer in 0..h.layers {
        names.extend(
            architecture.layer_tensors.iter().map(|(s, optional)| (format!("blk.{layer}.{s}"), *optional)),
        );
    }
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
        let known = || wrong(format!("one of the types {:?}", DType::STORAGE));
        let dtype = DType::parse(info.ty.name()).filter(|t| !t.is_integer()).ok_or_else(known)?;
        if shape.len() == 1 && dtype != DType::F32 {
            return Err(wrong("F32".into()));
        }
        let natural = Desc::new(dtype, shape)?;
        let looked_up_only = name == "token_embd.weight" && separate_output;
        let target =
            if looked_up_only || shape.len() == 1 { dtype } else { device.weight_type(dtype, natural.ne) };
        list.push(Wanted { info, natural, target: Desc::new(target, shape)? });
    }
    Ok(list)
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

    fn current_len(&self) -> Option<u64> {
        std::fs::metadata(self.0.path()?).ok().map(|m| m.len())
    }
}

fn map_parts<'a>(
    gguf: &Gguf,
    device: &Device,
    wanted: impl Iterator<Item = &'a Wanted<'a>>,
) -> Result<Vec<Option<Mapped>>> {
    let mut ranges = vec![Vec::new(); gguf.parts().len()];
    for w in wanted {
        let (_, range) = gguf.locate(w.info)?;
        ranges[w.info.part].push(range.start as usize..range.end as usize);
    }
    let mut views = Vec::new();
    for (part, ranges) in gguf.parts().iter().zip(ranges) {
        views.push(match maps(device) {
            true => Some(device.map(Arc::new(Mapping(part.clone())), &ranges)?),
            false => None,
        });
    }
    Ok(views)
}

fn in_place(gguf: &Gguf, views: &[Option<Mapped>], w: &Wanted<'_>) -> Result<Tensor> {
    let (_, range) = gguf.locate(w.info)?;
    match &views[w.info.part] {
        Some(mapped) => Ok(mapped.tensor(range.start as usize, w.natural)?),
        None => Err(missing(&w.info.name)),
    }
}

/// Repacks a batch on the device and lets go of its pages; gives the bytes of each.
fn repack(
    gguf: &Gguf,
    stream: &Stream,
    views: &[Option<Mapped>],
    arena: &mut Arena<'_>,
    batch: &[&Wanted<'_>],
    tensors: &mut HashMap<String, Tensor>,
) -> Result<Vec<u64>> {
    let device = stream.device();
    let mut graph = Graph::new("repack weights");
    let mut uploads = Vec::new();
    for w in batch {
        let target = arena.tensor(w.target)?;
        if w.natural == w.target {
            uploads.push(stream.upload(&target, gguf.data(w.info)?)?);
        } else {
            let source = match &views[w.info.part] {
                Some(_) => in_place(gguf, views, w)?,
                None => {
                    let source = device.tensor(w.natural.dtype, &w.natural.ne)?;
                    uploads.push(stream.upload(&source, gguf.data(w.info)?)?);
                    source
                }
            };
            let (from, to) = (graph.leaf(&source), graph.leaf(&target));
            let copy = graph.copy_into(from, to)?;
            graph.set_name(copy, w.info.name.clone());
        }
        tensors.insert(w.info.name.clone(), target);
    }
    if graph.nodes().next().is_some() {
        stream.run(&graph)?;
    }
    uploads.into_iter().try_for_each(|u| u.wait())?;
    for w in batch {
        gguf.advise(w.info, Advice::DontNeed)?;
    }
    Ok(batch.iter().map(|w| w.info.bytes).collect())
}

/// Few large buffers for many tensors.
struct Arena<'a> {
    device: &'a Device,
    left: u64,
    buffer: Option<(monel::Buffer, usize)>,
}

const ALIGN: usize = 64;

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
