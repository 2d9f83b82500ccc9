//! From a conversation to the text that a model was trained to continue.
//!
//! Every model that was trained on conversations brings a template for them, written in Jinja as Python runs it. Rendering it with
//! anything less than a Jinja engine would be guessing, so `minijinja` runs it, set up as the trainers' tools
//! set theirs up: blocks eat the line break behind them, Python's string and dictionary methods work, and the functions
//! `raise_exception`, `strftime_now` and the filter `tojson` behave as they do there.
//! A template comes from a file and is a program. It cannot reach anything outside, its steps and memory are bounded, and
//! whatever it does wrong is an error that names the line. The engine follows the nesting of code and of values by
//! recursion, so both are read on threads whose stacks hold the deepest that the bounds allow; values that hold
//! themselves, which have no depth, cannot be made (`namespace.rs`).
//!
//! The result is a prompt in which control tokens count: turn it into ids by
//! [`Tokenizer::encode_prompt`](crate::tokenizer::Tokenizer::encode_prompt). A message that spells out a control token
//! becomes one, as everywhere that templates are used.

mod json;
mod namespace;

use crate::tokenizer::{TokenId, Tokenizer};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use monel_gguf::Metadata;
use serde::Deserialize;
use std::time::SystemTime;

/// The name under which the environment knows the template; it has no suffix, so nothing is escaped.
const NAME: &str = "chat_template";

/// Bytes of a template, at most: the longest in use have 40 thousand.
const LONGEST: usize = 128 << 10;

/// Steps that any rendering may take, each worth 64 bytes of memory. A conversation of 1,000 messages takes about 30,000.
const FUEL: u64 = 256 << 10;

/// Steps more for every so many bytes of messages and variables: a step pays for copying 64.
const BYTES_A_STEP: u64 = 8;

/// Stack that a step of a rendering may need later. The cheapest way to put a value into another (`[[[x]]]`) takes one and a half
/// steps a level, and to compare, write or drop a level takes up to 470 bytes, measured with and without optimization.
const STACK_A_STEP: usize = 512;

/// Stack that a byte of a template may need while it is read; 430 were measured (`-----x`).
const STACK_A_BYTE: usize = 1024;

/// Stack for everything that is bounded otherwise.
const STACK: usize = 4 << 20;

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who speaks: mostly `system`, `user` or `assistant`; the template decides what it knows.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into() }
    }
}

/// What a template can be told beside the messages.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatOptions {
    /// Whether the model is to answer: the text ends with the beginning of its turn. On by default.
    pub add_generation_prompt: bool,
    /// The time that `strftime_now` tells, in the local time zone. `None`: the clock's.
    pub now: Option<SystemTime>,
    /// More variables for the template, such as `enable_thinking` or `tools`.
    pub variables: Vec<(String, serde_json::Value)>,
}

impl Default for ChatOptions {
    fn default() -> ChatOptions {
        ChatOptions { add_generation_prompt: true, now: None, variables: Vec::new() }
    }
}

/// Why there is no text for a conversation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The model was not trained on conversations, or its file has lost the template.
    #[error(
        "the model file has no chat template (tokenizer.chat_template); it can only continue a text as it is"
    )]
    NoTemplate,
    /// The template is there, but is no text.
    #[error("the model's chat template can't be read: {reason}")]
    Metadata {
        /// What it is instead.
        reason: String,
    },
    /// The template is not Jinja.
    #[error("the model's chat template can't be read, line {line}: {reason}")]
    Syntax {
        /// Line of the template, from 1.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// The system gave no thread that a template could be read or run on.
    #[error(
        "the model's chat template was not used: it takes a thread with a stack of up to {} MiB, and the system started none ({reason})",
        .stack >> 20
    )]
    NoThread {
        /// Bytes of its stack.
        stack: usize,
        /// In the system's words.
        reason: String,
    },
    /// The template failed at these messages.
    #[error("the model's chat template failed in line {line}: {reason}")]
    Render {
        /// Line of the template, from 1; 0 where it is not known.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// The template itself says that it does not take these messages, by `raise_exception`.
    #[error("the model's chat template refuses the conversation (line {line}): {message}")]
    Refused {
        /// Line of the template, from 1; 0 where it is not known.
        line: usize,
        /// In the template's words.
        message: String,
    },
}

/// A model's template, read and ready.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
    source: String,
}

/// Travels inside of the engine's error, to tell a refusal from a mistake.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Reads a template. `bos_token` and `eos_token` are the texts of those tokens, which templates write; empty where the model
    /// has none.
    ///
    /// # Errors
    /// [`ChatError::Syntax`].
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<ChatTemplate, ChatError> {
        if source.len() > LONGEST {
            let reason = format!("it has {} bytes, expected at most {LONGEST}", source.len());
            return Err(ChatError::Syntax { line: 1, reason });
        }
        let environment = with_stack(STACK + source.len() * STACK_A_BYTE, || read(source))?;
        if let Some(line) = namespace::put_into_another(source) {
            let reason = "a namespace may come to hold itself, which has no end; expected attributes without namespaces";
            return Err(ChatError::Syntax { line, reason: reason.into() });
        }
        Ok(ChatTemplate {
            environment,
            bos_token: bos_token.to_owned(),
            eos_token: eos_token.to_owned(),
            source: source.to_owned(),
        })
    }

    /// The template of a model file, `tokenizer.chat_template`.
    ///
    /// # Errors
    /// [`ChatError::NoTemplate`], [`ChatError::Metadata`], [`ChatError::Syntax`].
    pub fn from_gguf(metadata: &Metadata, tokenizer: &Tokenizer) -> Result<ChatTemplate, ChatError> {
        let source = metadata
            .get_str("tokenizer.chat_template")
            .map_err(|error| ChatError::Metadata { reason: error.to_string() })?
            .ok_or(ChatError::NoTemplate)?;
        let text = |id: Option<TokenId>| id.and_then(|id| tokenizer.piece(id).ok()).unwrap_or_default();
        ChatTemplate::new(source, &text(tokenizer.bos()), &text(tokenizer.eos()))
    }

    /// The template as the file has it.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The text of a conversation.
    ///
    /// # Errors
    /// [`ChatError::Refused`] where the template doesn't take such a conversation, [`ChatError::Render`] where it fails.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String, ChatError> {
        let given: usize = messages.iter().map(|message| message.role.len() + message.content.len()).sum();
        let variables: usize = options.variables.iter().map(|(_, value)| value.to_string().len()).sum();
        // A message takes steps of its own, and lists of tools are walked through value by value.
        let bytes = given + messages.len() * 1024 + variables * 16;
        let fuel = FUEL + bytes as u64 / BYTES_A_STEP;
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        with_stack(STACK + fuel as usize * STACK_A_STEP, || self.run(&environment, messages, options))
    }

    fn run(
        &self,
        environment: &Environment<'static>,
        messages: &[Message],
        options: &ChatOptions,
    ) -> Result<String, ChatError> {
        let template = environment.get_template(NAME).map_err(|error| failure(&error))?;
        let messages = messages.iter().map(|message| {
            Value::from_pairs([("role", message.role.as_str()), ("content", message.content.as_str())])
        });
        let now = options.now;
        let mut context = vec![
            ("messages", messages.collect::<Vec<_>>().into()),
            ("add_generation_prompt", options.add_generation_prompt.into()),
            ("bos_token", self.bos_token.as_str().into()),
            ("eos_token", self.eos_token.as_str().into()),
            // Templates ask whether these are none.
            ("tools", Value::from(())),
            ("documents", Value::from(())),
            ("strftime_now", Value::from_function(move |format: String| strftime(&format, now))),
        ];
        for (name, value) in &options.variables {
            let value = Value::deserialize(value).map_err(|error| ChatError::Render {
                line: 0,
                reason: format!("the variable `{name}` can't be handed over: {error}"),
            })?;
            context.push((name, value));
        }
        template.render(Value::from_pairs(context)).map_err(|error| failure(&error))
    }
}

/// Reads a template into an environment of its own.
fn read(source: &str) -> Result<Environment<'static>, ChatError> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|error| failure(&error))?);
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.add_filter("tojson", json::to_json);
    // What they write is not what Python writes, and takes minutes for a value that is nested thousands deep.
    environment.remove_filter("pprint");
    environment.remove_global("debug");
    environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    environment
        .add_template_owned(NAME, source.to_owned())
        .map_err(|error| ChatError::Syntax { line: error.line().unwrap_or(0), reason: reason(&error) })?;
    Ok(environment)
}

/// Runs `work` on a thread with a stack of so many bytes, of which only what is used takes memory.
fn with_stack<T: Send>(
    stack: usize,
    work: impl FnOnce() -> Result<T, ChatError> + Send,
) -> Result<T, ChatError> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("chat template".into()).stack_size(stack);
        let thread = builder
            .spawn_scoped(scope, work)
            .map_err(|error| ChatError::NoThread { stack, reason: error.to_string() })?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.source).finish_non_exhaustive()
    }
}

/// The time in the words of `format` (as the C function `strftime` has them).
fn strftime(format: &str, now: Option<SystemTime>) -> Result<String, minijinja::Error> {
    let written = || {
        let time = jiff::Timestamp::try_from(now.unwrap_or_else(SystemTime::now))?;
        jiff::fmt::strtime::format(format, &time.to_zoned_datetime(jiff::tz::TimeZone::system()))
    };
    written()
        .map_err(|error| minijinja::Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
}

/// The engine's error in our words.
fn failure(error: &minijinja::Error) -> ChatError {
    let line = error.line().unwrap_or(0);
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = source {
        if let Some(Raised(message)) = current.downcast_ref() {
            return ChatError::Refused { line, message: message.clone() };
        }
        source = current.source();
    }
    ChatError::Render { line, reason: reason(error) }
}

/// What the engine found, without the name we gave the template.
fn reason(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

#[cfg(test)]
mod tests;
