//! Pipelines: each specialised kernel compiled once, on the thread that needs it first or in parallel ahead of a chunk.
//!
//! The driver's own cache of compiled code is kept in a file per driver and device, with a checksum in front because
//! drivers trust what they are given. It is not written, and the old one removed, when the device was lost: code that
//! took it down would do so again. What lies in its place and cannot be ours (a pipe, a device, a file without end) is
//! neither read nor replaced.

use super::gpu::Gpu;
use super::shader;
use crate::error::{Error, Result};
use crate::gpu::Source;
use crate::sync::lock;
use ash::vk;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};

/// A kernel's pipeline, or why it can never be one. Held while it is compiled.
type Slot = Arc<Mutex<Option<Result<vk::Pipeline, String>>>>;

/// Why there is no pipeline.
enum Failure {
    /// The kernel is not one.
    Kernel(String),
    /// What the driver said, which may be otherwise next time.
    Driver(Error),
}

impl From<String> for Failure {
    fn from(reason: String) -> Failure {
        Failure::Kernel(reason)
    }
}

/// All pipelines of a device.
pub struct Pipelines {
    gpu: Arc<Gpu>,
    cache: vk::PipelineCache,
    file: Option<PathBuf>,
    warning: Option<String>,
    changed: AtomicBool,
    slots: Mutex<HashMap<Source, Slot>>,
}

impl Drop for Pipelines {
    fn drop(&mut self) {
        self.save();
        if self.gpu.still_works() {
            return;
        }
        let slots = std::mem::take(&mut *lock(&self.slots));
        // SAFETY: encoded commands hold this, so nothing on the device uses the pipelines any more.
        unsafe {
            for pipeline in slots.into_values().filter_map(|slot| lock(&slot).take()?.ok()) {
                self.gpu.raw.destroy_pipeline(pipeline, None);
            }
            self.gpu.raw.destroy_pipeline_cache(self.cache, None);
        }
    }
}

impl Pipelines {
    /// An empty set over the cache file in `directory`, if there is one.
    pub fn new(gpu: Arc<Gpu>, directory: Option<PathBuf>) -> Result<Pipelines> {
        let file = directory.map(|d| d.join(format!("vulkan-{}.bin", gpu.adapter.cache_key)));
        let (file, data, warning) = match file.as_deref().map(read) {
            Some(Ok(data)) => (file, data, None),
            Some(Err(warning)) => (None, Vec::new(), Some(warning)),
            None => (None, Vec::new(), None),
        };
        let info = vk::PipelineCacheCreateInfo::default().initial_data(&data);
        // SAFETY: the structure lives through the call; the driver checks that the data are its own.
        let cache = unsafe { gpu.raw.create_pipeline_cache(&info, None) }
            .map_err(|e| gpu.error("making a pipeline cache", e))?;
        Ok(Pipelines { gpu, cache, file, warning, changed: AtomicBool::new(false), slots: Mutex::default() })
    }

    /// Why nothing is kept, where that is not what was asked for.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The pipeline of a kernel.
    pub fn get(&self, source: &Source) -> Result<vk::Pipeline> {
        let slot = {
            let mut slots = lock(&self.slots);
            slots.entry(source.clone()).or_default().clone()
        };
        let mut slot = lock(&slot);
        let made = match &*slot {
            Some(made) => made.clone(),
            None => match self.compile(source) {
                Ok(pipeline) => slot.insert(Ok(pipeline)).clone(),
                Err(Failure::Kernel(reason)) => slot.insert(Err(reason)).clone(),
                Err(Failure::Driver(error)) => return Err(error),
            },
        };
        made.map_err(|reason| Error::Kernel(format!("{}: {reason}", source.name())))
    }

    /// Compiles those of the kernels that are not, on as many threads as are worth it.
    pub fn prepare<'a>(&self, sources: impl Iterator<Item = &'a Source>) {
        let mut missing: Vec<&Source> = Vec::new();
        {
            let slots = lock(&self.slots);
            for source in sources {
                // One that is held is being compiled.
                let is_missing = |slot: &Slot| match slot.try_lock() {
                    Ok(made) => made.is_none(),
                    Err(TryLockError::Poisoned(made)) => made.into_inner().is_none(),
                    Err(TryLockError::WouldBlock) => false,
                };
                if slots.get(source).is_none_or(is_missing) && !missing.contains(&source) {
                    missing.push(source);
                }
            }
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(missing.len());
        if threads < 2 {
            return;
        }
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(source) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                // What fails here fails again, with its reason, where it is needed.
                let _ = self.get(source);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // Without a thread the others do the work.
                let _ = std::thread::Builder::new().name("monel compile".into()).spawn_scoped(scope, work);
            }
            work();
        });
    }

    fn compile(&self, source: &Source) -> Result<vk::Pipeline, Failure> {
        let used = &self.gpu.used;
        let target = shader::Target {
            version: if self.gpu.adapter.api >= vk::API_VERSION_1_3 { (1, 6) } else { (1, 5) },
            int8: used.int8,
            dot: used.dot,
            invocations: used.invocations,
        };
        let driver = |e| Failure::Driver(self.gpu.error(&format!("compiling {}", source.name()), e));
        let words = shader::compile(&source.text()?, target)?;
        let mut size = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default();
        let mut flags = vk::PipelineShaderStageCreateFlags::empty();
        if source.full_subgroups() {
            let fixed = used
                .subgroup_fixed
                .ok_or_else(|| "full subgroups cannot be demanded of this device".to_string())?;
            size.required_subgroup_size = fixed;
            flags = vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS;
        }
        let info = vk::ShaderModuleCreateInfo::default().code(&words);
        // SAFETY: naga validated the module, and it uses only features that the device has.
        let module = unsafe { self.gpu.raw.create_shader_module(&info, None) }.map_err(driver)?;
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .flags(flags)
            .name(c"main");
        let stage = if source.full_subgroups() { stage.push_next(&mut size) } else { stage };
        let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(self.gpu.layout)];
        // SAFETY: module and layout are valid through the call; the cache locks itself.
        let made = unsafe { self.gpu.raw.create_compute_pipelines(self.cache, &info, None) };
        // SAFETY: pipelines do not need their module.
        unsafe { self.gpu.raw.destroy_shader_module(module, None) };
        self.changed.store(true, Ordering::Relaxed);
        match made {
            Ok(pipelines) => pipelines.first().copied().ok_or_else(|| "no pipeline".to_string().into()),
            Err((_, e)) => Err(driver(e)),
        }
    }

    /// Writes the cache's file if there is something new. What cannot be written is compiled again next time.
    fn save(&self) {
        let Some(file) = &self.file else { return };
        if self.gpu.is_lost() {
            let _ = std::fs::remove_file(file);
            return;
        }
        if !self.changed.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: a cache of this device.
        let Ok(data) = (unsafe { self.gpu.raw.get_pipeline_cache_data(self.cache) }) else { return };
        let Some(directory) = file.parent() else { return };
        let sealed = seal(&data);
        if sealed.len() as u64 > MOST {
            return;
        }
        // Written beside and moved, so that another process never reads half of it.
        static SAVED: AtomicU64 = AtomicU64::new(0);
        let nth = SAVED.fetch_add(1, Ordering::Relaxed);
        let beside = file.with_extension(format!("{}.{nth}.tmp", std::process::id()));
        let opened = std::fs::create_dir_all(directory).and_then(|()| File::create_new(&beside));
        // What lies there already is not ours to remove.
        let Ok(mut opened) = opened else { return };
        if opened.write_all(&sealed).and_then(|()| std::fs::rename(&beside, file)).is_err() {
            let _ = std::fs::remove_file(&beside);
        }
    }
}

/// The user's directory for caches of this program.
pub fn default_directory() -> Option<PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = if cfg!(windows) {
        from("LOCALAPPDATA")
    } else {
        from("XDG_CACHE_HOME").or_else(|| from("HOME").map(|home| home.join(".cache")))
    };
    base.map(|base| base.join("monel"))
}

/// Bytes of a cache's file, at most; drivers make some megabytes of all kernels.
const MOST: u64 = 256 << 20;

/// The compiled code in a cache's file; empty where there is none, or none that is whole. The error says what lies there
/// instead of a file of ours.
fn read(file: &Path) -> Result<Vec<u8>, String> {
    let Ok(found) = std::fs::metadata(file) else { return Ok(Vec::new()) };
    let ignored = |what: &str| {
        let file = file.display();
        format!("compiled kernels are not kept: {file} {what}, expected a file of this program; remove it")
    };
    if !found.is_file() {
        return Err(ignored("is no regular file"));
    }
    if found.len() > MOST {
        return Err(ignored(&format!("has {} bytes, more than {MOST}", found.len())));
    }
    let mut bytes = Vec::new();
    // What cannot be read is compiled again.
    let whole = File::open(file).and_then(|f| f.take(MOST).read_to_end(&mut bytes)).is_ok();
    Ok(if whole { unseal(&bytes).unwrap_or_default() } else { Vec::new() })
}

const MAGIC: &[u8; 8] = b"monelvk1";

/// FNV-1a, 64 bits.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

fn seal(data: &[u8]) -> Vec<u8> {
    [MAGIC.as_slice(), &checksum(data).to_le_bytes(), data].concat()
}

fn unseal(bytes: &[u8]) -> Option<Vec<u8>> {
    let (sum, data) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
    (u64::from_le_bytes(*sum) == checksum(data)).then(|| data.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_files_are_not_given_to_the_driver() {
        let sealed = seal(b"compiled code");
        assert_eq!(unseal(&sealed).as_deref(), Some(b"compiled code".as_slice()));
        for i in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[i] ^= 1;
            assert_eq!(unseal(&damaged), None, "byte {i}");
            assert!(unseal(&sealed[..i]).is_none(), "cut at {i}");
        }
    }

    #[test]
    fn only_files_of_a_bounded_length_are_read() {
        let place =
            |name: &str| std::env::temp_dir().join(format!("monel-pipelines-{}-{name}", std::process::id()));
        let file = place("file");
        assert_eq!(read(&file), Ok(Vec::new()), "there is none yet");
        std::fs::write(&file, seal(b"compiled code")).unwrap();
        assert_eq!(read(&file).as_deref(), Ok(b"compiled code".as_slice()));
        std::fs::write(&file, b"damaged").unwrap();
        assert_eq!(read(&file), Ok(Vec::new()));
        File::options().write(true).open(&file).unwrap().set_len(MOST + 1).unwrap();
        assert!(read(&file).unwrap_err().contains("268435457 bytes"));
        std::fs::remove_file(&file).unwrap();
        assert!(read(&std::env::temp_dir()).unwrap_err().contains("no regular file"));
        if cfg!(unix) {
            let pipe = place("pipe");
            assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
            assert!(read(&pipe).unwrap_err().contains("no regular file"));
            std::fs::remove_file(&pipe).unwrap();
            assert!(read(Path::new("/dev/zero")).is_err());
        }
    }
}
