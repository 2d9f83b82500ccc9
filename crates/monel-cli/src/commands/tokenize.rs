//! `monel tokenize`: text on stdin, ids on stdout.

use std::io::Write;

use anyhow::Context as _;
use monel_gguf::Gguf;
use monel_llm::tokenizer::Tokenizer;
use serde_json::json;

use crate::args::tokenize::Args;
use crate::exit::Outcome;
use crate::output::Output;
use crate::session;
use crate::{input, interrupt};

/// Prints the ids of every byte of stdin.
///
/// # Errors
/// When the model or stdin cannot be read, and stdout's errors.
pub fn run<W: Write>(args: &Args, out: &mut Output<W>) -> anyhow::Result<Outcome> {
    let tokenizer = tokenizer(args.model.spec())?;
    let text = input::stdin(input::LONGEST_TEXT).context("cannot read the text from standard input")?;
    let encoding = interrupt::ends_here();
    let ids = tokenizer.encode(&text, !args.no_special, !args.no_special)?;
    drop(encoding);
    if args.json {
        out.json(&json!({ "ids": ids }))?;
    } else {
        let words: Vec<String> = ids.iter().map(u32::to_string).collect();
        out.line(words.join(" "))?;
    }
    Ok(Outcome::Done)
}

/// The vocabulary of a model, without its weights.
///
/// # Errors
/// When the model cannot be found, fetched or read.
pub fn tokenizer(spec: &str) -> anyhow::Result<Tokenizer> {
    let gguf = Gguf::open(session::path(spec)?)?;
    Ok(Tokenizer::from_gguf(gguf.metadata())?)
}
