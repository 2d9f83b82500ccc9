//! A position in the bytes of a header.
//!
//! All reading goes through here, so that no length out of a file is ever believed before it was compared with what is
//! left. What comes back on a shortage is plain numbers; the caller, who knows what it was reading, names it.

use crate::{Error, MAX_HEADER_BYTES};

pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Length of the whole file, which may go on behind `bytes`.
    file_bytes: u64,
}

/// Fewer bytes left than wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Short {
    pub at: u64,
    pub wanted: u64,
    pub left: u64,
    /// The file has the bytes; the header just may not be that long.
    over_limit: bool,
}

impl Short {
    pub fn reading(self, what: impl Into<String>) -> Error {
        let Short { at, wanted, left, over_limit } = self;
        let what = what.into();
        match over_limit {
            true => Error::HeaderTooLarge { what, at, wanted },
            false => Error::Truncated { what, at, wanted, left },
        }
    }

    /// The limit's own error if that is what was met, else `otherwise`.
    pub fn unless_over_limit(self, what: impl Into<String>, otherwise: Error) -> Error {
        if self.over_limit { self.reading(what) } else { otherwise }
    }
}

impl<'a> Cursor<'a> {
    pub fn new(file: &'a [u8]) -> Cursor<'a> {
        Cursor::with_limit(file, MAX_HEADER_BYTES)
    }

    fn with_limit(file: &'a [u8], limit: u64) -> Cursor<'a> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Cursor { bytes: &file[..file.len().min(limit)], at: 0, file_bytes: file.len() as u64 }
    }

    pub fn position(&self) -> u64 {
        self.at as u64
    }

    /// Bytes to the end of the file.
    pub fn left(&self) -> u64 {
        self.file_bytes - self.at as u64
    }

    pub fn take(&mut self, wanted: u64) -> Result<&'a [u8], Short> {
        let rest = &self.bytes[self.at..];
        match usize::try_from(wanted).ok().and_then(|length| rest.get(..length)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => {
                let left = self.left();
                Err(Short { at: self.at as u64, wanted, left, over_limit: wanted <= left })
            }
        }
    }

    /// Fails as `take` would, and takes nothing.
    pub fn require(&self, wanted: u64) -> Result<(), Short> {
        self.fork().take(wanted).map(|_| ())
    }

    /// A second cursor at the same place.
    pub fn fork(&self) -> Cursor<'a> {
        Cursor { bytes: self.bytes, at: self.at, file_bytes: self.file_bytes }
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let taken = self.take(N as u64)?;
        let mut bytes = [0; N];
        bytes.copy_from_slice(taken);
        Ok(bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Short> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Short> {
        self.array().map(u64::from_le_bytes)
    }

    /// A string: its length in 8 bytes, then its bytes. `what` names it in errors.
    pub fn string(&mut self, what: impl Fn() -> String) -> Result<&'a [u8], Error> {
        let at = self.position();
        let length = self.u64().map_err(|short| short.reading(format!("the length of {}", what())))?;
        self.take(length).map_err(|short| {
            let too_long = Error::StringTooLong { what: what(), at, length, left: short.left };
            short.unless_over_limit(what(), too_long)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_taken_past_the_end() {
        let mut cursor = Cursor::new(&[1, 0, 0, 0, 2]);
        assert_eq!(cursor.u32().unwrap(), 1);
        let short = cursor.u64().unwrap_err();
        assert_eq!((short.at, short.wanted, short.left), (4, 8, 1));
        assert!(cursor.take(u64::MAX).is_err());
        assert_eq!(cursor.take(1).unwrap(), [2]);
    }

    #[test]
    fn a_header_ends_at_its_limit_though_the_file_goes_on() {
        let mut cursor = Cursor::with_limit(&[0; 100], 10);
        cursor.take(8).unwrap();
        let error = cursor.take(50).unwrap_err().reading("something");
        assert!(matches!(error, Error::HeaderTooLarge { at: 8, wanted: 50, .. }), "{error}");
        let error = cursor.take(93).unwrap_err().reading("something");
        assert!(matches!(error, Error::Truncated { left: 92, .. }), "{error}");
    }
}
