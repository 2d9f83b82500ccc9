//! One file of a model and its bytes.
//!
//! Tensor data is used in place: a file is mapped, and an engine computes on the mapping; for a device with memory of
//! its own it is read straight to where the device takes it from ([`Part::read`]). A mapping has two dangers. The file
//! can be cut while it is mapped, and touching a page behind the new end kills the process; so every access through
//! [`Part::bytes`] first asks the system for the current length and answers with an error. A file cut between that
//! check and the use of the slice cannot be noticed, nor can bytes that change in place. And mapped pages stay counted
//! as the process's memory until they are let go, which [`Part::advise`] does.

use crate::{Error, TensorInfo};
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// One file (or buffer) of a model. It keeps its mapping alive: hold the `Arc<Part>` for as long as bytes are in use.
pub struct Part {
    pub(crate) path: Option<PathBuf>,
    pub(crate) source: Source,
    pub(crate) version: u32,
    pub(crate) alignment: u32,
    pub(crate) data_start: u64,
}

/// Where the bytes come from.
pub(crate) enum Source {
    File { map: memmap2::Mmap, file: File },
    Memory(Box<dyn AsRef<[u8]> + Send + Sync>),
}

/// What is going to happen to a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// It will be read soon: the system may begin to fetch it.
    WillNeed,
    /// It isn't needed any more: its pages leave the process's memory. Reading it again stays possible, and fetches
    /// the pages again.
    DontNeed,
}

impl Part {
    /// The file, unless the bytes came from memory.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// What tensor data is aligned to, in bytes from the start of the file.
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// Where the data section starts, in bytes from the start of the file.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// Length of the file when it was opened.
    pub fn file_bytes(&self) -> u64 {
        self.mapping().len() as u64
    }

    /// Whether the bytes are a mapped file, and not a buffer in memory.
    pub fn is_mapped(&self) -> bool {
        matches!(self.source, Source::File { .. })
    }

    /// The whole file in place, without a check of its current length. A mapped file starts on a page.
    pub fn mapping(&self) -> &[u8] {
        self.source.bytes()
    }

    /// A range of the file in place, after a look at the file's current length.
    pub fn bytes(&self, range: Range<u64>) -> Result<&[u8], Error> {
        let bytes = self.slice(&range)?;
        if let Source::File { map, file } = &self.source {
            let was = map.len() as u64;
            let now =
                file.metadata().map_err(|error| self.io("ask for the length of the file", error))?.len();
            if now < range.end {
                return Err(self.named(Error::FileShrunk { was, now, wanted: range.end }));
            }
        }
        Ok(bytes)
    }

    /// Copies the bytes from `start` on. A file is read, not looked at through its mapping: no page of the mapping becomes
    /// the process's memory, and a file that was cut is an error whenever that happened.
    pub fn read(&self, start: u64, out: &mut [u8]) -> Result<(), Error> {
        let end = start.saturating_add(out.len() as u64);
        let bytes = self.slice(&(start..end))?;
        match &self.source {
            Source::File { map, file } => {
                let read = read_at(file, start, out);
                let read = read.map_err(|error| self.io("read the file", error))?;
                if read < out.len() {
                    let (was, now) = (map.len() as u64, start + read as u64);
                    return Err(self.named(Error::FileShrunk { was, now, wanted: end }));
                }
            }
            Source::Memory(_) => out.copy_from_slice(bytes),
        }
        Ok(())
    }

    /// Tells the system what will happen to a range. Pages at its borders that it shares with neighbours are included;
    /// at worst a neighbour's page is fetched again. Returns whether there was anything to tell: a buffer in memory
    /// and systems other than Unix take no advice.
    pub fn advise(&self, range: Range<u64>, advice: Advice) -> Result<bool, Error> {
        let length = self.slice(&range)?.len();
        match &self.source {
            Source::File { map, .. } if length > 0 => {
                let told = advise(map, range.start as usize, length, advice);
                told.map_err(|error| self.io("advise the system about a mapped file", error))
            }
            _ => Ok(false),
        }
    }

    /// Where the data of one of this part's tensors lies in the file.
    pub(crate) fn range_of(&self, tensor: &TensorInfo) -> Range<u64> {
        let start = self.data_start.saturating_add(tensor.offset);
        start..start.saturating_add(tensor.bytes)
    }

    fn slice(&self, range: &Range<u64>) -> Result<&[u8], Error> {
        let bounds = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
        let slice = bounds.and_then(|(start, end)| self.mapping().get(start..end));
        slice.ok_or_else(|| {
            let Range { start, end } = *range;
            self.named(Error::RangePastEnd { start, end, file_bytes: self.file_bytes() })
        })
    }

    fn io(&self, action: &'static str, error: std::io::Error) -> Error {
        self.named(Error::Io { action, error })
    }

    pub(crate) fn named(&self, error: Error) -> Error {
        match &self.path {
            Some(path) => error.in_file(path),
            None => error,
        }
    }
}

impl AsRef<[u8]> for Part {
    /// The whole file, as [`Part::mapping`].
    fn as_ref(&self) -> &[u8] {
        self.mapping()
    }
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Part")
            .field("path", &self.path)
            .field("version", &self.version)
            .field("file_bytes", &self.file_bytes())
            .field("data_start", &self.data_start)
            .finish_non_exhaustive()
    }
}

impl Source {
    /// Maps a file. Looks at what it is first: opening a pipe would wait for somebody to write into it.
    pub fn open(path: &Path) -> Result<Source, Error> {
        let io = |action| move |error| Error::Io { action, error };
        let kind = fs::metadata(path).map_err(io("open the file"))?.file_type();
        if !kind.is_file() {
            return Err(Error::NotAFile {
                kind: if kind.is_dir() { "a directory" } else { "a pipe or device" },
            });
        }
        let file = File::open(path).map_err(io("open the file"))?;
        if file.metadata().map_err(io("ask for the length of the file"))?.len() == 0 {
            return Err(Error::Empty);
        }
        // SAFETY: the mapping is read-only and lives as long as the slices handed out from it. That nobody changes or
        // cuts the file meanwhile cannot be enforced on any system; the documentation of this module says what is
        // checked and what remains.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io("map the file into memory"))?;
        Ok(Source::File { map, file })
    }

    pub fn bytes(&self) -> &[u8] {
        match self {
            Source::File { map, .. } => map,
            Source::Memory(bytes) => (**bytes).as_ref(),
        }
    }
}

/// Reads at a position, without moving one that threads share. Gives fewer bytes than asked for at the end of the file.
fn read_at(file: &File, mut start: u64, out: &mut [u8]) -> std::io::Result<usize> {
    let mut done = 0;
    while done < out.len() {
        #[cfg(unix)]
        let read = std::os::unix::fs::FileExt::read_at(file, &mut out[done..], start);
        #[cfg(windows)]
        let read = std::os::windows::fs::FileExt::seek_read(file, &mut out[done..], start);
        match read {
            Ok(0) => break,
            Ok(n) => (done, start) = (done + n, start + n as u64),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(unix)]
fn advise(map: &memmap2::Mmap, start: usize, length: usize, advice: Advice) -> std::io::Result<bool> {
    match advice {
        Advice::WillNeed => map.advise_range(memmap2::Advice::WillNeed, start, length)?,
        Advice::DontNeed => {
            // SAFETY: dropping pages loses data only where they differ from the file. This mapping is a read-only one
            // of a file, so a dropped page is read from the file again when it is touched; slices into it stay valid.
            unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, length)? }
        }
    }
    Ok(true)
}

#[cfg(not(unix))]
fn advise(_: &memmap2::Mmap, _: usize, _: usize, _: Advice) -> std::io::Result<bool> {
    Ok(false)
}
