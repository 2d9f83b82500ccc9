//! Mapped memory: a file's bytes used in place, through few large views (contract M4).
//!
//! The start of what is needed is rounded down and the end up to a page. Where that exceeds the device's largest
//! buffer it is cut into overlapping views such that every tensor lies whole in one of them; finding the view of a
//! tensor is a binary search (M5).

use super::Device;
use super::driver::{HostMapping, Storage};
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::tensor::{Desc, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// A mapping on a device.
pub struct Mapped {
    name: String,
    /// Views by their first byte in the mapping.
    views: Vec<(Range<usize>, Buffer)>,
}

/// The views that cover `tensors` (byte ranges of a mapping of `len` bytes): starts and ends at pages, none longer than
/// `largest`, each tensor whole in one. The number of views is at most the number of tensors.
fn cut(
    tensors: &[Range<usize>],
    len: usize,
    page: usize,
    largest: usize,
) -> Result<Vec<Range<usize>>, Range<usize>> {
    let mut sorted: Vec<&Range<usize>> = tensors.iter().filter(|t| !t.is_empty()).collect();
    sorted.sort_by_key(|t| (t.start, t.end));
    let mut views: Vec<Range<usize>> = Vec::new();
    for t in sorted {
        let start = t.start / page * page;
        // The last page may be cut by the end of the file; bytes past it are never touched.
        let end = t.end.next_multiple_of(page).min(len);
        match views.last_mut() {
            Some(view) if t.end <= view.end => {}
            Some(view) if end - view.start <= largest => view.end = end,
            _ if end - start <= largest => views.push(start..end),
            _ => return Err(t.clone()),
        }
    }
    Ok(views)
}

/// A mapped file that was cut since faults when it is touched past its end, so its length is checked before use.
pub(crate) fn check_mapping(mapping: &Arc<dyn HostMapping>, end: usize) -> Result<()> {
    match mapping.current_len() {
        Some(found) if found < end as u64 => {
            Err(Error::MappingShrank { what: mapping.name(), expected: end as u64, found })
        }
        _ => Ok(()),
    }
}

impl Device {
    /// Whether host memory can be used in place.
    pub(crate) fn can_map(&self) -> bool {
        self.core.driver.can_import()
    }

    /// Makes byte ranges of a mapping usable in place. The mapping starts at a page ([`Info::page`](super::Info::page)).
    pub fn map(&self, mapping: Arc<dyn HostMapping>, tensors: &[Range<usize>]) -> Result<Mapped> {
        if !self.can_map() {
            return Err(Error::Unsupported {
                device: self.info().name.clone(),
                op: "mapped memory".to_string(),
                reason: "the device cannot use host memory in place".into(),
            });
        }
        let (name, start, len) = (mapping.name(), mapping.bytes().as_ptr(), mapping.bytes().len());
        // Tensors are as aligned as their offsets say only then.
        if !tensors.is_empty() && !start.addr().is_multiple_of(self.info().page) {
            return Err(Error::Unsupported {
                device: self.info().name.clone(),
                op: format!("using {name} in place"),
                reason: format!("it begins at {start:?}, expected a multiple of {}", self.info().page),
            });
        }
        if let Some(t) = tensors.iter().find(|t| t.start > t.end || t.end > len) {
            let (offset, bytes) = (t.start, t.end.wrapping_sub(t.start));
            return Err(Error::OutOfRange { what: name, offset, bytes, size: len });
        }
        let (page, largest) =
            (self.info().page, self.info().max_buffer / self.info().page * self.info().page);
        let ranges = cut(tensors, len, page, largest).map_err(|t| Error::TooLarge {
            device: self.info().name.clone(),
            what: format!("bytes {t:?} of {name}"),
            wanted: (t.end.next_multiple_of(page).min(len) - t.start / page * page) as u64,
            largest: largest as u64,
        })?;
        let mut views = Vec::new();
        for range in ranges {
            let memory = self.core.driver.import(&mapping, range.clone())?;
            views.push((range.clone(), self.core.adopt(memory, Storage::Mapped, range.len())));
        }
        Ok(Mapped { name, views })
    }
}

impl Mapped {
    /// The tensor at a byte offset of the mapping.
    pub fn tensor(&self, offset: usize, desc: Desc) -> Result<Tensor> {
        let end = offset.saturating_add(desc.span());
        // Views are sorted by start and by end: the first one that ends late enough is the only candidate that
        // may also start early enough, because overlapping views repeat whole tensors.
        let first = self.views.partition_point(|(range, _)| range.end < end);
        match self.views.get(first) {
            Some((range, buffer)) if range.start <= offset => Tensor::new(buffer, offset - range.start, desc),
            _ => Err(Error::OutOfRange {
                what: format!("{desc} in the views of {}", self.name),
                offset,
                bytes: desc.span(),
                size: self.views.last().map_or(0, |(r, _)| r.end),
            }),
        }
    }

    /// How many views there are.
    pub fn views(&self) -> usize {
        self.views.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m4_every_tensor_lies_whole_in_one_view() {
        let tensors: Vec<Range<usize>> = (0..40).map(|i| i * 1000 + 32..(i + 1) * 1000 + 32).collect();
        let len = 41_000;
        for largest in [8192, 12288, 40960, 1 << 20] {
            let views = cut(&tensors, len, 4096, largest).unwrap();
            for v in &views {
                assert!(v.start.is_multiple_of(4096) && (v.end.is_multiple_of(4096) || v.end == len));
                assert!(v.len() <= largest);
            }
            for t in &tensors {
                assert!(views.iter().any(|v| v.start <= t.start && t.end <= v.end), "{t:?} in {views:?}");
            }
        }
        // One view, up to the last page that a tensor touches; a file's end may lie in it.
        let (whole, cut_short) = (0..40_960, 0..40_500);
        assert_eq!(cut(&tensors, len, 4096, 1 << 20).unwrap(), [whole]);
        assert_eq!(cut(&tensors, 40_500, 4096, 1 << 20).unwrap(), [cut_short]);
        let large = 0..5000;
        assert_eq!(
            cut(std::slice::from_ref(&large), 5000, 4096, 4096),
            Err(large),
            "too large is an answer, not a loop"
        );
    }
}
