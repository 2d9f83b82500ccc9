//! `monel chat`: a conversation in the terminal.
//!
//! The whole conversation is rendered by the model's template each time; the context evaluates only what it has not
//! seen. Ctrl-C stops an answer and keeps the conversation; Ctrl-D ends it.

use std::io::{ErrorKind, IsTerminal, Write};

use anyhow::Context as _;
use monel::CancelToken;
use monel_llm::chat::{ChatError, ChatOptions, Message};
use monel_llm::tokenizer::{DecodeOptions, StreamDecoder};
use monel_llm::{Context, ModelFile, Request, Sampling, Stop};
use rustyline::error::ReadlineError;

use crate::args::chat::Args;
use crate::args::common::PromptSource;
use crate::exit::Outcome;
use crate::output::{Output, note};
use crate::timeline::Timeline;
use crate::{input, interrupt, models, session, terminal};

/// Talks until the input ends.
///
/// # Errors
/// A model without a chat template, whatever keeps it from being loaded or run, and stdout's errors.
pub fn run<W: Write>(args: &Args, out: &mut Output<W>) -> anyhow::Result<Outcome> {
    let source = args.input.prompt("chat")?;
    let first = if source == PromptSource::Stdin { None } else { Some(source.read("chat")?) };
    let timeline = Timeline::create(args.trace.as_deref())?;
    let file = ModelFile::open(session::path(args.input.spec())?)?;
    let device = session::device(args.device.device.as_deref(), args.threads.threads)?;
    let options = session::context_options(&file, args.ctx_size, &args.cache);
    let model = session::load(file, &device, &options)?;
    if let Err(error) = model.chat_template() {
        anyhow::bail!("{error}: `monel run --raw` continues a text with this model");
    }
    let context = session::context(&model, &options)?;
    timeline.begin(&device);
    let sampling = session::sampling(&args.sampling);
    let mut talk = Talk { context, sampling, max_tokens: args.n_predict.tokens(), messages: Vec::new() };
    let result = talk.run(first, out);
    timeline.finish(&device)?;
    result
}

struct Talk {
    context: Context,
    sampling: Sampling,
    max_tokens: Option<usize>,
    messages: Vec<Message>,
}

impl Talk {
    fn run<W: Write>(&mut self, mut first: Option<String>, out: &mut Output<W>) -> anyhow::Result<Outcome> {
        let mut lines = Lines::open()?;
        note("Ctrl-C stops an answer, Ctrl-D ends the conversation, /clear forgets it.");
        loop {
            let line = match first.take() {
                Some(line) => line,
                None => match lines.next()? {
                    Some(line) => line,
                    None => return Ok(Outcome::Done),
                },
            };
            match line.trim() {
                "" => continue,
                "/clear" => self.messages.clear(),
                "/exit" | "/quit" => return Ok(Outcome::Done),
                text => self.answer(text, out)?,
            }
            if interrupt::terminated() {
                return Ok(Outcome::Interrupted);
            }
        }
    }

    fn answer<W: Write>(&mut self, text: &str, out: &mut Output<W>) -> anyhow::Result<()> {
        let cancel = CancelToken::new();
        let token = cancel.clone();
        let _stop = interrupt::while_here(move || token.cancel());
        // What came since the line was entered, before anybody listened.
        if interrupt::requested() {
            cancel.cancel();
        }
        let model = self.context.model().clone();
        self.messages.push(Message::new("user", text));
        let template = model.chat_template().map_err(ChatError::clone)?;
        let prompt =
            model.tokenizer.encode_prompt(&template.render(&self.messages, &ChatOptions::default())?)?;
        if prompt.len() >= self.context.capacity() {
            self.messages.pop();
            note(format_args!(
                "the conversation has {} tokens, the context holds {}: /clear forgets it, -c makes a larger one",
                prompt.len(),
                self.context.capacity()
            ));
            return Ok(());
        }
        let sampling = self.sampling.clone();
        let request = Request { prompt, max_tokens: self.max_tokens, sampling, cancel, ..Request::default() };
        let options = DecodeOptions { continues: true, ..DecodeOptions::default() };
        let mut decoder = StreamDecoder::new(&model.tokenizer, options);
        let (mut answer, mut written) = (String::new(), Ok(()));
        let generated = self.context.generate(&request, &mut |step| {
            let piece = decoder.push(step.id).unwrap_or_default();
            answer.push_str(piece);
            written = out.text(piece);
            written.is_ok()
        })?;
        written?;
        let rest = decoder.finish();
        out.text(rest)?;
        out.text("\n")?;
        answer.push_str(rest);
        self.messages.push(Message::new("assistant", answer));
        if generated.stop == Stop::Cancelled {
            interrupt::clear();
        }
        super::run::summary(&model, &request, &generated);
        Ok(())
    }
}

/// Lines of the user: edited, with history, where stdin is a terminal; as they come where it is not.
enum Lines {
    Terminal(Box<rustyline::DefaultEditor>, Option<std::path::PathBuf>),
    Pipe(std::io::StdinLock<'static>),
}

impl Lines {
    fn open() -> anyhow::Result<Lines> {
        if !std::io::stdin().is_terminal() {
            return Ok(Lines::Pipe(std::io::stdin().lock()));
        }
        terminal::keep();
        let mut editor = rustyline::DefaultEditor::new().context("cannot edit lines on this terminal")?;
        let history = models::cache_dir().ok().map(|dir| dir.join("chat-history.txt"));
        if let Some(path) = &history {
            // The first conversation has no history yet.
            let _ = editor.load_history(path);
        }
        Ok(Lines::Terminal(Box::new(editor), history))
    }

    /// The next line; an empty one for what is no text, which is said and left out.
    fn next(&mut self) -> anyhow::Result<Option<String>> {
        match self {
            Lines::Pipe(stdin) => {
                // What came too late for the answer before is dealt with.
                interrupt::clear();
                let _waiting = interrupt::ends_here();
                let line = input::line(stdin, input::LONGEST_PROMPT);
                let Some(line) = line.context("cannot read a line from standard input")? else {
                    return Ok(None);
                };
                Ok(Some(input::utf8(line, "the line").unwrap_or_else(|error| {
                    note(format_args!("{error}: it is left out"));
                    String::new()
                })))
            }
            Lines::Terminal(editor, history) => {
                interrupt::clear();
                let line = {
                    let _waiting = interrupt::terminates_here();
                    editor.readline("> ")
                };
                // What came while the line was edited was meant for the line. From here on it is for the answer.
                interrupt::clear();
                match line {
                    Ok(line) => {
                        let _ = editor.add_history_entry(&line);
                        if let Some(path) = history {
                            // History is a comfort: a full disk is no reason to end a conversation.
                            let _ = editor.append_history(path).or_else(|_| editor.save_history(path));
                        }
                        Ok(Some(line))
                    }
                    Err(ReadlineError::Eof) => Ok(None),
                    Err(ReadlineError::Interrupted) => Ok(Some(String::new())),
                    Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                        // The rest of what was pasted is no message of its own.
                        terminal::forget_typed();
                        note("the line is not UTF-8 text: it is left out (is the terminal set to UTF-8?)");
                        Ok(Some(String::new()))
                    }
                    Err(error) => Err(error).context("cannot read from the terminal"),
                }
            }
        }
    }
}
