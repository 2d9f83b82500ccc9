//! `monel detokenize`: ids on stdin, text on stdout.

use std::io::Write;

use anyhow::Context as _;
use monel_llm::tokenizer::DecodeOptions;
use serde_json::json;

use crate::args::detokenize::Args;
use crate::args::parse;
use crate::exit::Outcome;
use crate::input;
use crate::output::Output;

/// Prints the text of the ids; special tokens as their names, without those that the model adds around a text.
///
/// # Errors
/// When the model or stdin cannot be read, an id is none, and stdout's errors.
pub fn run<W: Write>(args: &Args, out: &mut Output<W>) -> anyhow::Result<Outcome> {
    let tokenizer = super::tokenize::tokenizer(args.model.spec())?;
    let text = input::stdin(input::LONGEST_TEXT).context("cannot read ids from standard input")?;
    let text = input::utf8(text, "standard input")?;
    let ids = parse::ids(&text).map_err(|e| anyhow::anyhow!("standard input: {e}"))?;
    let options = DecodeOptions { remove_special: true, unparse_special: true, continues: false };
    let bytes = tokenizer.decode(&ids, options)?;
    if args.json {
        out.json(&json!({ "text": String::from_utf8_lossy(&bytes) }))?;
    } else {
        // Ids of a model need not be a whole text: the bytes as they are.
        out.bytes(&bytes)?;
        out.text("\n")?;
    }
    Ok(Outcome::Done)
}
