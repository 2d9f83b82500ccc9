//! What a file is that isn't GGUF.
//!
//! Most files that are not GGUF are something recognisable: another model format, the pointer that git-lfs leaves when
//! the real file was not fetched, the error page of a web server. Saying which saves its owner a search.

use std::fmt;

/// What a file seems to be, judged by its first bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LooksLike {
    /// A safetensors file.
    Safetensors,
    /// A zip archive, as PyTorch checkpoints are.
    Zip,
    /// A bare Python pickle: an old PyTorch checkpoint.
    Pickle,
    /// One of the formats before GGUF, with its name.
    OldGgml(&'static str),
    /// What git-lfs leaves in place of a file, with the size of the real one if it says so.
    GitLfsPointer {
        /// Bytes of the real file.
        size: Option<u64>,
    },
    /// A web page.
    Html,
    /// JSON text.
    Json,
    /// A compressed file, with the name of the compression.
    Compressed(&'static str),
    /// HDF5, as Keras weights are.
    Hdf5,
    /// Nothing but zero bytes at the start: reserved, never written.
    Zeros,
    /// Some text.
    Text,
    /// None of these; the first bytes.
    Unknown(Vec<u8>),
}

impl LooksLike {
    /// Judges a file by its first bytes (64 are plenty, fewer are fine).
    pub fn of(bytes: &[u8]) -> LooksLike {
        let start = &bytes[..bytes.len().min(512)];
        let magics: [(&[u8], LooksLike); 14] = [
            (b"PK\x03\x04", LooksLike::Zip),
            (b"lmgg", LooksLike::OldGgml("GGML")),
            (b"fmgg", LooksLike::OldGgml("GGMF")),
            (b"tjgg", LooksLike::OldGgml("GGJT")),
            (b"algg", LooksLike::OldGgml("GGLA adapter")),
            (b"ggml", LooksLike::OldGgml("GGML, bytes reversed")),
            (b"\x1f\x8b", LooksLike::Compressed("gzip")),
            (b"\x28\xb5\x2f\xfd", LooksLike::Compressed("zstd")),
            (b"\xfd7zXZ\0", LooksLike::Compressed("xz")),
            (b"7z\xbc\xaf\x27\x1c", LooksLike::Compressed("7z")),
            (b"BZh", LooksLike::Compressed("bzip2")),
            (b"\x89HDF", LooksLike::Hdf5),
            (b"\x80\x02", LooksLike::Pickle),
            (b"\x80\x04", LooksLike::Pickle),
        ];
        if let Some((_, found)) = magics.into_iter().find(|(magic, _)| start.starts_with(magic)) {
            return found;
        }
        // Eight bytes of header length, then a JSON object.
        if let Some((length, rest)) = start.split_first_chunk::<8>()
            && (2..1 << 30).contains(&u64::from_le_bytes(*length))
            && rest.starts_with(b"{\"")
        {
            return LooksLike::Safetensors;
        }
        if start.iter().all(|&byte| byte == 0) {
            return LooksLike::Zeros;
        }
        match text_of(start) {
            Some(text) => LooksLike::of_text(text),
            None => LooksLike::Unknown(start[..start.len().min(8)].to_vec()),
        }
    }

    fn of_text(text: &str) -> LooksLike {
        let trimmed = text.trim_start();
        let lower = trimmed.get(..16).unwrap_or(trimmed).to_ascii_lowercase();
        if trimmed.starts_with("version https://git-lfs") {
            let size = trimmed.lines().find_map(|line| line.strip_prefix("size ")?.trim().parse().ok());
            LooksLike::GitLfsPointer { size }
        } else if lower.starts_with("<!doctype html") || lower.starts_with("<html") {
            LooksLike::Html
        } else if lower.starts_with(['{', '[']) {
            LooksLike::Json
        } else {
            LooksLike::Text
        }
    }
}

/// The bytes as text, if they are printable UTF-8 (a last character may be cut).
fn text_of(bytes: &[u8]) -> Option<&str> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    text.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t')).then_some(text)
}

impl fmt::Display for LooksLike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LooksLike::Safetensors => {
                f.write_str("this looks like a safetensors file; convert it to GGUF first")
            }
            LooksLike::Zip => f.write_str(
                "this looks like a zip archive, perhaps a PyTorch checkpoint; convert it to GGUF first",
            ),
            LooksLike::Pickle => f.write_str(
                "this looks like a Python pickle, perhaps a PyTorch checkpoint; convert it to GGUF first",
            ),
            LooksLike::OldGgml(name) => {
                write!(
                    f,
                    "this is the old ggml format {name} from before GGUF; convert the original model again"
                )
            }
            LooksLike::GitLfsPointer { size: Some(size) } => {
                write!(
                    f,
                    "this is a git-lfs pointer to a file of {size} bytes, not the file; run `git lfs pull`"
                )
            }
            LooksLike::GitLfsPointer { size: None } => {
                f.write_str("this is a git-lfs pointer, not the file; run `git lfs pull`")
            }
            LooksLike::Html => f.write_str("this is a web page, perhaps the error page of a failed download"),
            LooksLike::Json => f.write_str("this looks like JSON text"),
            LooksLike::Compressed(name) => write!(f, "this looks like a {name} file; unpack it first"),
            LooksLike::Hdf5 => f.write_str("this looks like an HDF5 file; convert it to GGUF first"),
            LooksLike::Zeros => {
                f.write_str("it starts with zero bytes only; a download or copy may not have finished")
            }
            LooksLike::Text => f.write_str("this looks like a text file"),
            LooksLike::Unknown(bytes) => {
                write!(f, "it starts with the bytes")?;
                bytes.iter().try_for_each(|byte| write!(f, " {byte:02x}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_files_are_recognised() {
        let mut safetensors = 40u64.to_le_bytes().to_vec();
        safetensors.extend(br#"{"a":{"dtype":"F32","shape":[],"data_"#);
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1234\n";
        let cases: [(&[u8], LooksLike); 12] = [
            (&safetensors, LooksLike::Safetensors),
            (b"PK\x03\x04rest", LooksLike::Zip),
            (b"\x80\x02}q", LooksLike::Pickle),
            (b"tjgg\x03\0\0\0", LooksLike::OldGgml("GGJT")),
            (pointer, LooksLike::GitLfsPointer { size: Some(1234) }),
            (b"  <!DOCTYPE html><html>", LooksLike::Html),
            (b"{\"error\": 404}", LooksLike::Json),
            (b"\x1f\x8b\x08", LooksLike::Compressed("gzip")),
            (b"\x89HDF\r\n", LooksLike::Hdf5),
            (&[0; 100], LooksLike::Zeros),
            (b"Entry not found", LooksLike::Text),
            (b"\x7fELF\x02\x01\x01\0\0", LooksLike::Unknown(b"\x7fELF\x02\x01\x01\0".to_vec())),
        ];
        for (bytes, expected) in cases {
            assert_eq!(LooksLike::of(bytes), expected);
        }
    }

    #[test]
    fn text_may_be_cut_within_a_character() {
        assert_eq!(LooksLike::of(&"grün".as_bytes()[..3]), LooksLike::Text);
    }
}
