//! `monel run`: one prompt, one answer, streamed.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use monel_llm::chat::{ChatError, ChatOptions, Message};
use monel_llm::tokenizer::{DecodeOptions, StreamDecoder};
use monel_llm::{Generated, Model, ModelFile, Request, Stop};
use serde::Serialize;

use crate::args::run::{Args, Input};
use crate::exit::Outcome;
use crate::output::{Output, note};
use crate::timeline::Timeline;
use crate::{interrupt, session};

/// The JSON of a run.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    device: &'a str,
    seed: u64,
    prompt_ids: &'a [u32],
    ids: Vec<u32>,
    text: &'a str,
    stop: &'static str,
    steps: Vec<StepReport<'a>>,
    timings: Timings,
}

#[derive(Serialize)]
struct StepReport<'a> {
    id: u32,
    logprob: Option<f32>,
    top: &'a [(u32, f32)],
}

#[derive(Serialize)]
struct Timings {
    load_ms: f64,
    prompt_tokens: usize,
    prompt_ms: f64,
    predicted_tokens: usize,
    predicted_ms: f64,
}

/// What to continue.
enum Prompt {
    Ids(Vec<u32>),
    Text(String),
}

/// Generates; prints the text as it comes, or one JSON object at the end.
///
/// # Errors
/// Whatever keeps the model from being loaded or run, and stdout's errors.
pub fn run<W: Write>(args: &Args, out: &mut Output<W>) -> anyhow::Result<Outcome> {
    // Flags and stdin first: nobody should wait for a model to hear about a typo.
    let prompt = match args.input()? {
        Input::Ids(ids) => Prompt::Ids(ids),
        Input::Prompt(source) => Prompt::Text(source.read("run")?),
    };
    let timeline = Timeline::create(args.trace.as_deref())?;
    let file = ModelFile::open(session::path(args.input.spec())?)?;
    let device = session::device(args.device.device.as_deref(), args.threads.threads)?;
    let options = session::context_options(&file, args.ctx_size, &args.cache);
    let model = session::load(file, &device, &options)?;
    let prompt_ids = match prompt {
        Prompt::Ids(ids) => ids,
        Prompt::Text(text) => prompt_ids(&model, &text, args.raw)?,
    };
    let mut context = session::context(&model, &options)?;
    timeline.begin(&device);
    let sampling = session::sampling(&args.sampling);
    let request = Request {
        prompt: prompt_ids,
        max_tokens: args.n_predict.tokens(),
        sampling,
        logprobs: args.logprobs.map(|n| n as usize).or(args.json.then_some(0)),
        ignore_end: false,
        cancel: session::cancel_on_interrupt(),
    };
    let options = DecodeOptions { continues: true, ..DecodeOptions::default() };
    let mut decoder = StreamDecoder::new(&model.tokenizer, options);
    let (mut text, mut written) = (String::new(), Ok(()));
    let result = context.generate(&request, &mut |step| {
        let piece = decoder.push(step.id).unwrap_or_default();
        if args.json {
            text.push_str(piece);
        } else if !piece.is_empty() {
            written = out.text(piece);
        }
        written.is_ok()
    });
    // A timeline of a run that failed is wanted most, and one that cannot be written is no reason to lose the result.
    let timeline = timeline.finish(&device);
    written?;
    let generated = result?;
    let rest = decoder.finish();
    if args.json {
        text.push_str(rest);
        out.json(&report(&model, &device.info().id, &request, &generated, &text))?;
    } else {
        out.text(rest)?;
        out.text("\n")?;
        summary(&model, &request, &generated);
    }
    timeline?;
    Ok(if generated.stop == Stop::Cancelled { Outcome::Interrupted } else { Outcome::Done })
}

/// The prompt in the model's chat template, or as it is.
fn prompt_ids(model: &Arc<Model>, prompt: &str, raw: bool) -> anyhow::Result<Vec<u32>> {
    let template = if raw { None } else { Some(model.chat_template()) };
    match template {
        Some(Ok(template)) => {
            let messages = [Message::new("user", prompt)];
            let _encoding = interrupt::ends_here();
            let text = template.render(&messages, &ChatOptions::default())?;
            Ok(model.tokenizer.encode_prompt(&text)?)
        }
        Some(Err(ChatError::NoTemplate)) => {
            note(
                "this model has no chat template: continuing the text as it is (--raw says so from the start)",
            );
            session::encode(model, prompt, true, true)
        }
        Some(Err(error)) => Err(error.clone()).context("use --raw to continue the text as it is"),
        None => session::encode(model, prompt, true, true),
    }
}

fn report<'a>(
    model: &'a Model,
    device: &'a str,
    request: &'a Request,
    generated: &'a Generated,
    text: &'a str,
) -> Report<'a> {
    let steps = generated.steps.iter().map(|s| StepReport { id: s.id, logprob: s.logprob, top: &s.top });
    Report {
        model: &model.name,
        device,
        seed: request.sampling.seed,
        prompt_ids: &request.prompt,
        ids: generated.steps.iter().map(|s| s.id).collect(),
        text,
        stop: generated.stop.name(),
        steps: steps.collect(),
        timings: Timings {
            load_ms: ms(model.load_time),
            prompt_tokens: generated.prompt_tokens,
            prompt_ms: ms(generated.prompt_time),
            predicted_tokens: generated.steps.len(),
            predicted_ms: ms(generated.predicted_time),
        },
    }
}

/// One line of speeds, and why it ended where that is not plain.
pub fn summary(model: &Model, request: &Request, generated: &Generated) {
    match generated.stop {
        Stop::Context => note("[the context is full: ask for a larger one with -c]"),
        Stop::Cancelled => note("[stopped]"),
        Stop::End | Stop::Length => {}
    }
    let rate = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
    // The first token comes with the prompt.
    let predicted = generated.steps.len().saturating_sub(1);
    note(format_args!(
        "load {:.0} ms | prompt {} tokens in {:.0} ms ({:.0} tok/s) | generated {} tokens, {:.1} tok/s | seed {}",
        ms(model.load_time),
        generated.prompt_tokens,
        ms(generated.prompt_time),
        rate(generated.prompt_tokens, generated.prompt_time),
        generated.steps.len(),
        rate(predicted, generated.predicted_time),
        request.sampling.seed,
    ));
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
