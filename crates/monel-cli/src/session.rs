//! What most commands begin with: a device, a model on it, a context.
//!
//! Nothing is decided here that a library could decide: flags become fields, and people are told on stderr what was
//! chosen and how far loading is.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use monel::{CancelToken, Device, Needs};
use monel_llm::{Context, ContextOptions, Model, ModelFile, Sampling};

use crate::args::common::{CacheArgs, SamplingArgs};
use crate::args::parse::Seed;
use crate::output::note;
use crate::{interrupt, models};

/// Physical cores: what `-t` is without a flag.
pub fn default_threads() -> usize {
    num_cpus::get_physical().max(1)
}

/// Opens the device that the flags name and says which one it is.
///
/// # Errors
/// When there is no such device, with those there are.
pub fn device(spec: Option<&str>, threads: Option<u32>) -> anyhow::Result<Device> {
    let threads = threads.map_or_else(default_threads, |t| t as usize);
    let device = monel::device::open(spec, threads)?;
    let info = device.info();
    note(format_args!("device: {} ({}, {})", info.id, info.name, info.features.join(", ")));
    info.warnings.iter().for_each(|warning| note(format_args!("warning: {warning}")));
    Ok(device)
}

/// The path of a model, fetched first if it is a name.
///
/// # Errors
/// When it is neither a file nor a known name, or cannot be fetched.
pub fn path(spec: &str) -> anyhow::Result<std::path::PathBuf> {
    Ok(models::resolve(spec, models::progress::stderr().as_ref())?)
}

/// The context's options from the flags; 0 positions mean the model's own number.
pub fn context_options(file: &ModelFile, size: Option<u32>, cache: &CacheArgs) -> ContextOptions {
    let context = match size {
        Some(0) => Some(file.hyper().context),
        Some(n) => Some(n as usize),
        None => None,
    };
    ContextOptions { context, keys: cache.cache_type_k, values: cache.cache_type_v }
}

/// Loads a model, after a look at whether it fits, with a progress bar when it takes long. Ctrl-C ends the program
/// meanwhile: there is nothing to keep.
///
/// # Errors
/// When the file is no model, does not fit into memory, or the device fails.
pub fn load(file: ModelFile, device: &Device, options: &ContextOptions) -> anyhow::Result<Arc<Model>> {
    let needs = file.needs(device, options)?;
    load_planned(file, device, &needs)
}

/// As [`load`], for work that needs more than a model and its context.
///
/// # Errors
/// As [`load`].
pub fn load_planned(file: ModelFile, device: &Device, needs: &Needs) -> anyhow::Result<Arc<Model>> {
    needs.check(device)?;
    let _loading = interrupt::ends_here();
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    let began = std::time::Instant::now();
    let model = file.load(device, &mut |done, total| {
        // Models that load in a blink need no bar.
        if bar.is_hidden() && began.elapsed() > Duration::from_millis(300) && std::io::stderr().is_terminal()
        {
            let style = ProgressStyle::with_template("loading {wide_bar} {bytes}/{total_bytes}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let model = model?;
    model.tokenizer.warnings().iter().for_each(|w| note(format_args!("warning: {w}")));
    Ok(Arc::new(model))
}

/// The ids of a text. A long one takes seconds, and Ctrl-C ends the program meanwhile.
///
/// # Errors
/// Those of the tokenizer.
pub fn encode(
    model: &Model,
    text: impl AsRef<[u8]>,
    add_special: bool,
    parse_special: bool,
) -> anyhow::Result<Vec<u32>> {
    let _encoding = interrupt::ends_here();
    Ok(model.tokenizer.encode(text, add_special, parse_special)?)
}

/// A context with the model's device memory behind it.
///
/// # Errors
/// When there is no memory for its cache.
pub fn context(model: &Arc<Model>, options: &ContextOptions) -> anyhow::Result<Context> {
    Ok(Context::new(model.clone(), options)?)
}

/// Sampling from the flags; a random seed is drawn here, so that it can be printed.
pub fn sampling(args: &SamplingArgs) -> Sampling {
    let seed = match args.seed {
        Seed::Fixed(seed) => seed,
        Seed::Random => random_seed(),
    };
    Sampling {
        temperature: args.temp,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        repeat_penalty: args.repeat_penalty,
        presence_penalty: args.presence_penalty,
        seed,
        ..Sampling::default()
    }
}

/// 32 random bits: short enough to be typed again. The standard library's hasher is keyed by the system's randomness.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() & 0xffff_ffff
}

/// A token that the first Ctrl-C cancels.
pub fn cancel_on_interrupt() -> CancelToken {
    let token = CancelToken::new();
    let cancelled = token.clone();
    interrupt::on_first(move || cancelled.cancel());
    token
}
