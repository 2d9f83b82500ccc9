//! A model's files as one.
//!
//! Opening reads the headers and nothing else: metadata is copied out of the file (strings packed, see
//! [`StringArray`](crate::StringArray)), tensors stay where they are. Whether a model comes in one file or in twenty
//! shows in [`TensorInfo::part`] only.

use crate::parse::{TensorTable, parse};
use crate::part::Source;
use crate::split::Split;
use crate::{Advice, Error, Metadata, Part, TensorInfo};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// An open model: metadata, a list of tensors, and their data in place.
#[derive(Debug)]
pub struct Gguf {
    parts: Vec<Arc<Part>>,
    metadata: Metadata,
    table: TensorTable,
}

impl Gguf {
    /// Opens a file, and with any part of a split model all its parts.
    ///
    /// # Errors
    /// Whatever is wrong with the file, as an [`Error::InFile`] that names it.
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf, Error> {
        let path = path.as_ref();
        Gguf::open_all(path).map_err(|error| error.in_file(path))
    }

    fn open_all(path: &Path) -> Result<Gguf, Error> {
        let model = Gguf::single(Source::open(path)?, Some(path))?;
        let Some(split) = Split::of(&model.metadata)? else { return Ok(model) };
        let mut parts = Parts::default();
        for number in 0..split.count {
            let part = split.sibling(path, number)?;
            let source = Source::open(&part).map_err(|cause| Error::SplitPartMissing {
                number,
                count: split.count,
                part: part.clone(),
                cause: Box::new(cause),
            })?;
            parts.add(source, Some(&part), split.count).map_err(|error| error.in_file(&part))?;
        }
        parts.finish()
    }

    /// Reads a whole model from memory, or anything that has bytes.
    ///
    /// # Errors
    /// Whatever is wrong with it; [`Error::SplitAlone`] if it is only a part.
    pub fn from_bytes(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<Gguf, Error> {
        let model = Gguf::single(Source::Memory(Box::new(bytes)), None)?;
        match Split::of(&model.metadata)? {
            None => Ok(model),
            Some(Split { number, count, .. }) => Err(Error::SplitAlone { number, count }),
        }
    }

    /// Reads a split model whose parts are all in memory, in order.
    ///
    /// # Errors
    /// Whatever is wrong with one of them, or with their order or number.
    pub fn from_parts<B: AsRef<[u8]> + Send + Sync + 'static>(
        parts: impl IntoIterator<Item = B, IntoIter: ExactSizeIterator>,
    ) -> Result<Gguf, Error> {
        let sources = parts.into_iter();
        let count = u32::try_from(sources.len()).unwrap_or(u32::MAX);
        let mut parts = Parts::default();
        for bytes in sources {
            parts.add(Source::Memory(Box::new(bytes)), None, count)?;
        }
        parts.finish()
    }

    fn single(source: Source, path: Option<&Path>) -> Result<Gguf, Error> {
        let mut parts = Parts::default();
        parts.metadata = parts.read(source, path)?;
        parts.finish()
    }

    /// The version of the format (of the first file), 2 or 3.
    pub fn version(&self) -> u32 {
        self.parts.first().map_or(0, |part| part.version())
    }

    /// The model's metadata: that of the first file.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in the order of the files.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.table.tensors
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.table.index.get(name).map(|&at| &self.table.tensors[at])
    }

    /// The tensor with this name, which must be there.
    ///
    /// # Errors
    /// [`Error::MissingTensor`].
    pub fn require_tensor(&self, name: &str) -> Result<&TensorInfo, Error> {
        self.tensor(name).ok_or_else(|| Error::MissingTensor { tensor: name.to_string() })
    }

    /// The files, in order; [`TensorInfo::part`] is an index into this list.
    pub fn parts(&self) -> &[Arc<Part>] {
        &self.parts
    }

    /// The file a tensor is in and the range of its bytes there, for use in place. Keep the `Arc` as long as the bytes
    /// are used.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] if the description isn't one of [`tensors`](Gguf::tensors).
    pub fn locate(&self, tensor: &TensorInfo) -> Result<(&Arc<Part>, Range<u64>), Error> {
        let TensorInfo { ref name, part, offset, bytes, .. } = *tensor;
        match self.parts.get(part) {
            Some(part) if self.tensor(name) == Some(tensor) => Ok((part, part.range_of(tensor))),
            _ => Err(Error::ForeignTensor { tensor: name.clone(), part, offset, bytes }),
        }
    }

    /// A tensor's data in place. It starts at a multiple of the file's alignment from the start of the file, so in a
    /// mapped file it is aligned to that in memory too, up to the size of a page.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`], and [`Error::FileShrunk`] if the file was cut since it was opened.
    pub fn data(&self, tensor: &TensorInfo) -> Result<&[u8], Error> {
        let (part, range) = self.locate(tensor)?;
        part.bytes(range)
    }

    /// Copies a tensor's data, from its byte `start` on, as [`Part::read`].
    ///
    /// # Errors
    /// [`Error::ForeignTensor`], [`Error::RangePastEnd`] for bytes behind the tensor's, [`Error::FileShrunk`] if the file
    /// was cut since it was opened, or the system's refusal.
    pub fn read(&self, tensor: &TensorInfo, start: u64, out: &mut [u8]) -> Result<(), Error> {
        let (part, range) = self.locate(tensor)?;
        let end = start.saturating_add(out.len() as u64);
        if end > tensor.bytes {
            let at = |n: u64| range.start.saturating_add(n);
            return Err(part.named(Error::RangePastEnd {
                start: at(start),
                end: at(end),
                file_bytes: part.file_bytes(),
            }));
        }
        part.read(range.start + start, out)
    }

    /// Tells the system what will happen to a tensor's data, as [`Part::advise`].
    ///
    /// # Errors
    /// [`Error::ForeignTensor`], or the system's refusal.
    pub fn advise(&self, tensor: &TensorInfo, advice: Advice) -> Result<bool, Error> {
        let (part, range) = self.locate(tensor)?;
        part.advise(range, advice)
    }
}

/// Files being put together.
#[derive(Default)]
struct Parts {
    parts: Vec<Arc<Part>>,
    metadata: Metadata,
    table: TensorTable,
    announced_tensors: Option<u64>,
}

impl Parts {
    /// Reads the next file, whatever it says about itself. Returns what it says.
    fn read(&mut self, source: Source, path: Option<&Path>) -> Result<Metadata, Error> {
        let header = parse(source.bytes(), self.parts.len(), &mut self.table)?;
        self.parts.push(Arc::new(Part {
            path: path.map(Path::to_path_buf),
            source,
            version: header.version,
            alignment: header.alignment,
            data_start: header.data_start,
        }));
        Ok(header.metadata)
    }

    /// Reads the next of `count` parts.
    fn add(&mut self, source: Source, path: Option<&Path>, count: u32) -> Result<(), Error> {
        let number = self.parts.len() as u32;
        let metadata = self.read(source, path)?;
        let split = Split::of(&metadata)?;
        Split::check_place(split, number, count)?;
        if number == 0 {
            self.announced_tensors = split.and_then(|split| split.tensors);
            self.metadata = metadata;
        }
        Ok(())
    }

    fn finish(self) -> Result<Gguf, Error> {
        let found = self.table.tensors.len() as u64;
        match self.announced_tensors {
            Some(expected) if expected != found => Err(Error::SplitTensorCount { found, expected }),
            _ if self.parts.is_empty() => Err(Error::Empty),
            _ => Ok(Gguf { parts: self.parts, metadata: self.metadata, table: self.table }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_can_be_shared_between_threads() {
        fn shared<T: Send + Sync + 'static>() {}
        shared::<Gguf>();
        shared::<Part>();
        shared::<Error>();
    }
}
