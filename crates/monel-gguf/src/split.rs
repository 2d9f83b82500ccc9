//! Models split over several files.
//!
//! Each part is a complete GGUF file with its own data section. The first has the model's metadata; each says in
//! `split.no` (from 0), `split.count` and `split.tensors.count` what it is a part of. The files lie side by side and are
//! named `NAME-00001-of-00003.gguf`, so any one of them leads to all the others.

use crate::{Error, Metadata};
use std::path::{Path, PathBuf};

/// What a part says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Split {
    /// From 0.
    pub number: u32,
    pub count: u32,
    /// Tensors of all parts together, if said.
    pub tensors: Option<u64>,
}

impl Split {
    /// `None` if this is a whole model.
    pub fn of(metadata: &Metadata) -> Result<Option<Split>, Error> {
        let count = metadata.get_u32("split.count")?.unwrap_or(0);
        if count < 2 {
            return Ok(None);
        }
        let number = metadata.require_u32("split.no")?;
        if number >= count {
            return Err(Error::SplitNumber { number, count });
        }
        let tensors = metadata.get_u64("split.tensors.count")?;
        Ok(Some(Split { number, count, tensors }))
    }

    /// Checks that the part at place `number` of `count` is that part.
    pub fn check_place(found: Option<Split>, number: u32, count: u32) -> Result<(), Error> {
        // A whole model is the only part of itself.
        let (found, found_count) = found.map_or((0, 1), |split| (split.number, split.count));
        if (found, found_count) == (number, count) {
            return Ok(());
        }
        Err(Error::SplitMismatch { found, found_count, number, count })
    }

    /// The path of another part, given this one's.
    pub fn sibling(&self, path: &Path, number: u32) -> Result<PathBuf, Error> {
        let ending = self.ending(self.number);
        let stem =
            path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(&ending));
        match stem {
            Some(stem) => Ok(path.with_file_name(format!("{stem}{}", self.ending(number)))),
            None => Err(Error::SplitName { number: self.number, count: self.count, expected: ending }),
        }
    }

    fn ending(&self, number: u32) -> String {
        format!("-{:05}-of-{:05}.gguf", u64::from(number) + 1, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_leads_to_the_others() {
        let split = Split { number: 1, count: 3, tensors: None };
        let path = Path::new("dir/model-00002-of-00003.gguf");
        assert_eq!(split.sibling(path, 0).unwrap(), Path::new("dir/model-00001-of-00003.gguf"));
        assert_eq!(split.sibling(path, 2).unwrap(), Path::new("dir/model-00003-of-00003.gguf"));
    }

    #[test]
    fn a_name_that_does_not_fit_is_refused() {
        let split = Split { number: 1, count: 3, tensors: None };
        for name in ["model.gguf", "model-00001-of-00003.gguf", "model-00002-of-00002.gguf", ".."] {
            let error = split.sibling(Path::new(name), 1).unwrap_err();
            assert!(error.to_string().contains("\"-00002-of-00003.gguf\""), "{error}");
        }
    }

    #[test]
    fn one_part_is_a_whole_model() {
        let mut metadata = Metadata::new();
        metadata.insert("split.count", 1u16);
        assert_eq!(Split::of(&metadata).unwrap(), None);
        metadata.insert("split.count", 2u16);
        assert!(matches!(Split::of(&metadata), Err(Error::MissingKey { .. })));
        metadata.insert("split.no", 1u16);
        metadata.insert("split.tensors.count", 5i32);
        assert_eq!(Split::of(&metadata).unwrap(), Some(Split { number: 1, count: 2, tensors: Some(5) }));
        metadata.insert("split.no", 2u16);
        assert!(matches!(Split::of(&metadata), Err(Error::SplitNumber { number: 2, count: 2 })));
    }
}
