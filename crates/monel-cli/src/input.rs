//! Texts from outside: files, standard input and its lines, each with a bound, since a device or a pipe may have no end.

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::Path;

use crate::interrupt;

/// Bytes of a prompt, at most: more than any context holds.
pub const LONGEST_PROMPT: u64 = 64 << 20;

/// Bytes of a text that is taken apart or measured, at most: the largest collections in use have a billion.
pub const LONGEST_TEXT: u64 = 256 << 20;

/// A file's bytes, if there are at most so many. Ctrl-C ends the program while it waits for a pipe.
///
/// # Errors
/// When the file cannot be read or is longer.
pub fn file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let _waiting = interrupt::ends_here();
    let file = File::open(path)?;
    // Files know their length; pipes and devices say 0.
    if file.metadata()?.len() > most {
        return Err(too_long(most));
    }
    up_to(file, most)
}

/// The bytes on standard input, if there are at most so many. Ctrl-C ends the program while it waits for them.
///
/// # Errors
/// When it cannot be read or there are more.
pub fn stdin(most: u64) -> io::Result<Vec<u8>> {
    let _waiting = interrupt::ends_here();
    up_to(io::stdin().lock(), most)
}

/// The next line without its end (`\n` or `\r\n`), if it has at most so many bytes; `None` where there is no more.
///
/// # Errors
/// When it cannot be read or is longer.
pub fn line(from: &mut impl BufRead, most: u64) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    if from.take(most + 1).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.pop_if(|&mut last| last == b'\n').is_some() {
        line.pop_if(|&mut last| last == b'\r');
    }
    if line.len() as u64 > most { Err(too_long(most)) } else { Ok(Some(line)) }
}

fn up_to(from: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_long(most)) } else { Ok(bytes) }
}

fn too_long(most: u64) -> io::Error {
    io::Error::other(format!("it has more than {} MiB, expected a text of at most that", most >> 20))
}

/// Bytes as text.
///
/// # Errors
/// Says that `what` is not UTF-8, and which byte is the first that is wrong.
pub fn utf8(bytes: Vec<u8>, what: &str) -> anyhow::Result<String> {
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        anyhow::anyhow!("{what} is not UTF-8 text: byte {at} is {:#04x}", e.as_bytes()[at])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_refused_and_what_fits_is_whole() {
        assert_eq!(up_to(&b"four"[..], 4).unwrap(), b"four");
        let error = up_to(io::repeat(0), 3 << 20).unwrap_err().to_string();
        assert!(error.contains("more than 3 MiB"), "{error}");
    }

    #[test]
    fn lines_lose_their_ends_and_keep_the_rest() {
        let mut from = &b"a\r\n\n\r\xff\nlast\r"[..];
        let lines: Vec<Vec<u8>> = std::iter::from_fn(|| line(&mut from, 5).unwrap()).collect();
        assert_eq!(lines, [&b"a"[..], b"", b"\r\xff", b"last\r"]);
        assert!(line(&mut io::BufReader::new(io::repeat(b'x')), 1 << 20).is_err());
    }

    #[test]
    fn the_first_wrong_byte_is_named() {
        let error = utf8(b"ab\xff".to_vec(), "the line").unwrap_err().to_string();
        assert_eq!(error, "the line is not UTF-8 text: byte 2 is 0xff");
    }
}
