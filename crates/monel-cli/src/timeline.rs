//! The file of `--trace`: opened before the work, so that a path that cannot be written is heard of first, and written
//! after it, also when the work failed.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use monel::{Device, Trace};

/// A timeline on its way to a file; without a file it does nothing.
pub struct Timeline {
    to: Option<(BufWriter<File>, PathBuf, Arc<Trace>)>,
}

impl Timeline {
    /// Creates the file.
    ///
    /// # Errors
    /// When it cannot be created, and when it is a model, which nobody wants replaced.
    pub fn create(path: Option<&Path>) -> anyhow::Result<Timeline> {
        let Some(path) = path else { return Ok(Timeline { to: None }) };
        if is_model(path) {
            let expected = "expected a path of no file, or of one that may be replaced; nothing was written";
            anyhow::bail!("{}: it is a GGUF file: {expected}", failed(path));
        }
        let file = File::create(path).with_context(|| failed(path))?;
        Ok(Timeline { to: Some((BufWriter::new(file), path.to_path_buf(), Trace::new())) })
    }

    /// Records everything on the device from now on.
    pub fn begin(&self, device: &Device) {
        if let Some((_, _, trace)) = &self.to {
            device.set_trace(Some(trace.clone()));
        }
    }

    /// Ends the recording and writes it.
    ///
    /// # Errors
    /// When the file takes no more.
    pub fn finish(self, device: &Device) -> anyhow::Result<()> {
        let Some((mut file, path, trace)) = self.to else { return Ok(()) };
        device.set_trace(None);
        trace.write(&mut file).and_then(|()| file.flush()).with_context(|| failed(&path))
    }
}

/// Whether a GGUF file lies there.
fn is_model(path: &Path) -> bool {
    let mut magic = [0; 4];
    let regular = path.metadata().is_ok_and(|m| m.is_file());
    regular && File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == *b"GGUF"
}

fn failed(path: &Path) -> String {
    format!("cannot write the timeline {}", path.display())
}
