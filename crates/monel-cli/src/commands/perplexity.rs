//! `monel perplexity`: how well a model predicts a text.

use std::io::{IsTerminal, Write};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use monel_llm::{ContextOptions, ModelFile, perplexity};
use serde_json::json;

use crate::args::perplexity::Args;
use crate::exit::Outcome;
use crate::output::{Output, note};
use crate::{input, session};

/// Prints the perplexity of a file's text; after Ctrl-C that of the chunks that were finished.
///
/// # Errors
/// When the text is too short or too long or cannot be read, whatever keeps the model from running, and stdout's errors.
pub fn run<W: Write>(args: &Args, out: &mut Output<W>) -> anyhow::Result<Outcome> {
    let text = input::file(&args.file, input::LONGEST_TEXT)
        .with_context(|| format!("cannot read the text {}", args.file.display()))?;
    let file = ModelFile::open(session::path(args.model.spec())?)?;
    let device = session::device(args.device.device.as_deref(), args.threads.threads)?;
    let window = args.ctx_size as usize;
    let cache = session::context_options(&file, None, &args.cache);
    let options = ContextOptions { context: Some(window), ..cache };
    let mut needs = file.needs(&device, &options)?;
    perplexity::add_needs(&file, window, &mut needs)?;
    let model = session::load_planned(file, &device, &needs)?;
    let ids = session::encode(&model, &text, true, false)?;
    let mut context = session::context(&model, &options)?;
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    if std::io::stderr().is_terminal() {
        let style = ProgressStyle::with_template("{pos}/{len} {wide_bar} {msg} ETA {eta}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_draw_target(ProgressDrawTarget::stderr());
    }
    let cancel = session::cancel_on_interrupt();
    let result = context.perplexity(&ids, window, &cancel, &mut |so_far, windows| {
        bar.set_length(windows as u64);
        bar.set_position(so_far.chunks as u64);
        bar.set_message(format!("ppl {:.3}", so_far.ppl));
    });
    bar.finish_and_clear();
    let result = result?;
    let windows = ids.len() / window;
    let stopped = result.chunks < windows;
    if stopped {
        note(format_args!("[stopped after {} of {windows} windows]", result.chunks));
    }
    if args.json {
        let (ppl, stderr, chunks, tokens) = (result.ppl, result.stderr, result.chunks, result.tokens);
        out.json(&json!({ "ppl": ppl, "stderr": stderr, "chunks": chunks, "tokens": tokens }))?;
    } else if result.chunks > 0 {
        let counts = format!("{} windows of {window}, {} tokens predicted", result.chunks, result.tokens);
        out.line(format_args!("perplexity {:.4} +/- {:.4} ({counts})", result.ppl, result.stderr))?;
    }
    Ok(if stopped { Outcome::Interrupted } else { Outcome::Done })
}
