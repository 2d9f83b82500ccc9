//! Arrays of strings, packed.
//!
//! A tokenizer brings a quarter of a million strings of a few bytes each. One allocation per string would dominate the
//! time to open a model, so all of them lie in one buffer with one table of ends beside it. The buffer is a copy: a
//! tokenizer keeps working when the file is later cut or its pages are given back.
//! Strings are bytes here. Tokens are not always UTF-8, so text is asked for separately and can be refused.

/// An immutable list of byte strings in one buffer.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct StringArray {
    bytes: Vec<u8>,
    /// `ends[i]` is where string `i` ends in `bytes`; it starts where the one before it ends.
    ends: Vec<u64>,
}

impl StringArray {
    /// From its parts. `ends` must ascend and its last entry be the length of `bytes`.
    pub(crate) fn from_packed(bytes: Vec<u8>, ends: Vec<u64>) -> StringArray {
        debug_assert!(ends.is_sorted() && ends.last().copied().unwrap_or(0) == bytes.len() as u64);
        StringArray { bytes, ends }
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of all strings together.
    pub fn total_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes of string `index`; `None` past the end.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = usize::try_from(*self.ends.get(index)?).ok()?;
        let start = match index {
            0 => 0,
            _ => usize::try_from(self.ends[index - 1]).ok()?,
        };
        self.bytes.get(start..end)
    }

    /// String `index` as text: `None` past the end, an error where its bytes aren't UTF-8.
    pub fn get_str(&self, index: usize) -> Option<Result<&str, std::str::Utf8Error>> {
        self.get(index).map(std::str::from_utf8)
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + '_ {
        // Every index below the length has a string; the default is never taken.
        (0..self.len()).map(|index| self.get(index).unwrap_or_default())
    }
}

impl<S: AsRef<[u8]>> FromIterator<S> for StringArray {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> StringArray {
        let mut array = StringArray::default();
        for string in strings {
            array.bytes.extend_from_slice(string.as_ref());
            array.ends.push(array.bytes.len() as u64);
        }
        array
    }
}

impl std::fmt::Debug for StringArray {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(String::from_utf8_lossy)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_come_back_in_order() {
        let array: StringArray = ["a", "", "longer", "ü"].into_iter().collect();
        assert_eq!(array.len(), 4);
        assert_eq!(array.total_bytes(), 9);
        assert_eq!(array.get(0), Some(&b"a"[..]));
        assert_eq!(array.get(1), Some(&b""[..]));
        assert_eq!(array.get_str(3), Some(Ok("ü")));
        assert_eq!(array.get(4), None);
        assert_eq!(array.iter().collect::<Vec<_>>(), [&b"a"[..], b"", b"longer", "ü".as_bytes()]);
    }

    #[test]
    fn bytes_that_are_no_text_are_kept_and_refused_as_text() {
        let array: StringArray = [&b"\xff\xfe"[..]].into_iter().collect();
        assert_eq!(array.get(0), Some(&b"\xff\xfe"[..]));
        assert!(array.get_str(0).unwrap().is_err());
    }
}
