//! What can go wrong between a file and a text.

use crate::chat::ChatError;
use crate::tokenizer::TokenizerError;

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong with a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file.
    #[error(transparent)]
    Gguf(#[from] monel_gguf::Error),
    /// The engine or the device.
    #[error(transparent)]
    Engine(#[from] monel::Error),
    /// The vocabulary or a text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// An architecture that is not built in.
    #[error("the model's architecture is '{found}'; known are {known}")]
    Architecture {
        /// What the file says.
        found: String,
        /// What there is.
        known: String,
    },
    /// A number in the metadata that no model can have.
    #[error("{key} is {found}, expected {expected}")]
    Metadata {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// A tensor of the wrong shape or of a type without kernels.
    #[error("tensor {name} is {found}, expected {expected}")]
    Tensor {
        /// The tensor.
        name: String,
        /// Its type and shape.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// A prompt that does not fit.
    #[error(
        "the prompt has {prompt} tokens, the context holds {context}: shorten the prompt or ask for a larger context (-c)"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens the context holds.
        context: usize,
    },
    /// Nothing to continue.
    #[error(
        "the prompt is empty and the model has no token for the begin of a text: give at least one token"
    )]
    EmptyPrompt,
    /// A token that is not in the vocabulary.
    #[error("token {id} is not in the vocabulary of {size} tokens")]
    Token {
        /// The token.
        id: u32,
        /// Tokens there are.
        size: usize,
    },
    /// Logits that are not numbers, in a perplexity.
    #[error(
        "the logits after position {position} of window {window} are not finite: the model's weights or its metadata are damaged"
    )]
    Logits {
        /// The window, from 1.
        window: usize,
        /// The position in it, from 0.
        position: usize,
    },
    /// A setting out of its range.
    #[error("{name} is {found}, expected {expected}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        found: String,
        /// What would be right.
        expected: &'static str,
    },
}

impl Error {
    /// Whether this is a cancelled submission and no failure.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Error::Engine(e) if matches!(e.root(), monel::Error::Cancelled))
    }
}
