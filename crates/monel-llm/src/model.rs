//! A model: a file, its vocabulary and template, and its weights on a device.

use crate::arch::{self, Architecture, Hyper};
use crate::chat::{ChatError, ChatTemplate};
use crate::context::ContextOptions;
use crate::error::Result;
use crate::tokenizer::Tokenizer;
use crate::weights::{Progress, Weights, vocabulary};
use monel::{Device, Needs, Stream};
use monel_gguf::Gguf;
use std::path::Path;
use std::time::{Duration, Instant};

/// A model ready to run. Contexts share it.
pub struct Model {
    /// Numbers and tensors.
    pub weights: Weights,
    /// The vocabulary.
    pub tokenizer: Tokenizer,
    /// How its layers are built.
    pub architecture: &'static Architecture,
    /// What people call it: `general.name`, or the file's name.
    pub name: String,
    /// Time from opening the file to weights on the device.
    pub load_time: Duration,
    template: Result<ChatTemplate, ChatError>,
    device: Device,
}

/// A file that was opened and understood, before anything is on a device.
pub struct ModelFile {
    gguf: Gguf,
    architecture: &'static Architecture,
    hyper: Hyper,
    opened: Instant,
}

impl ModelFile {
    /// Opens a file (or the first of several) and reads its numbers.
    ///
    /// # Errors
    /// [`Error::Gguf`](crate::Error::Gguf) for what is no GGUF file or cannot be read,
    /// [`Error::Architecture`](crate::Error::Architecture) and [`Error::Metadata`](crate::Error::Metadata) for a model
    /// that this crate does not know or that none can be.
    pub fn open(path: impl AsRef<Path>) -> Result<ModelFile> {
        let opened = Instant::now();
        let gguf = Gguf::open(path)?;
        let (architecture, hyper) = arch::detect(gguf.metadata())?;
        Ok(ModelFile { gguf, architecture, hyper, opened })
    }

    /// The file.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// The model's numbers.
    pub fn hyper(&self) -> &Hyper {
        &self.hyper
    }

    /// What the model and a context of it will need on a device (contract M7).
    ///
    /// # Errors
    /// Those of [`Weights::needs`] and [`ContextOptions::needs`].
    pub fn needs(&self, device: &Device, options: &ContextOptions) -> Result<Needs> {
        let mut needs = Weights::needs(&self.gguf, device, self.architecture, &self.hyper)?;
        let vocabulary = vocabulary(&self.gguf)?;
        options.needs(&Hyper { vocabulary, ..self.hyper.clone() }, &mut needs)?;
        Ok(needs)
    }

    /// Loads vocabulary and weights. `progress` hears of bytes done and in all.
    ///
    /// # Errors
    /// Those of [`Tokenizer::of_model`] and of [`Weights::load`]. A chat template that cannot be read is none: it is
    /// [`Model::chat_template`]'s.
    pub fn load(self, device: &Device, progress: Progress<'_>) -> Result<Model> {
        let ModelFile { gguf, architecture, hyper, opened } = self;
        let metadata = gguf.metadata();
        let stream: Stream = device.stream();
        let vocabulary = vocabulary(&gguf)?;
        // The vocabulary is read while the device repacks weights: both take tens of milliseconds.
        let (tokenizer, weights) = std::thread::scope(|scope| {
            let read = move || Tokenizer::of_model(metadata, vocabulary);
            let beside =
                std::thread::Builder::new().name("monel vocabulary".into()).spawn_scoped(scope, read);
            let weights = Weights::load(&gguf, &stream, architecture, hyper, progress);
            // Without a thread it is read afterwards.
            (beside.map_or_else(|_| Ok(read()), std::thread::ScopedJoinHandle::join), weights)
        });
        let tokenizer = match tokenizer {
            Ok(tokenizer) => tokenizer?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let weights = weights?;
        let template = ChatTemplate::from_gguf(metadata, &tokenizer);
        let path = gguf.parts().first().and_then(|p| p.path());
        let stem = path.and_then(|p| p.file_stem()).map(|s| s.to_string_lossy().into_owned());
        let name = metadata.get_str("general.name")?.map(str::to_string).or(stem);
        Ok(Model {
            weights,
            tokenizer,
            architecture,
            name: name.unwrap_or_else(|| "model".into()),
            load_time: opened.elapsed(),
            template,
            device: device.clone(),
        })
    }
}

impl Model {
    /// Opens and loads in one go.
    ///
    /// # Errors
    /// Those of [`ModelFile::open`] and [`ModelFile::load`].
    pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Model> {
        ModelFile::open(path)?.load(device, &mut |_, _| ())
    }

    /// The model's numbers.
    pub fn hyper(&self) -> &Hyper {
        &self.weights.hyper
    }

    /// The chat template, or why there is none.
    ///
    /// # Errors
    /// Those of [`ChatTemplate::from_gguf`].
    pub fn chat_template(&self) -> Result<&ChatTemplate, &ChatError> {
        self.template.as_ref()
    }

    /// The device it lies on.
    pub fn device(&self) -> &Device {
        &self.device
    }
}
