//! What can be wrong with a vocabulary, or with what is asked of one.

use super::TokenId;

/// Why a tokenizer could not be built, or could not do what it was asked for.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The file lacks something that this kind of tokenizer cannot work without.
    #[error(
        "the model file has no `{key}`, which a `{model}` tokenizer needs; the file is incomplete, convert the model again"
    )]
    Missing {
        /// Metadata key.
        key: &'static str,
        /// `tokenizer.ggml.model`, empty where that itself is what is missing.
        model: String,
    },
    /// A metadata value is not of the type that its key says.
    #[error("the model file's description of its tokenizer can't be read: {reason}")]
    Metadata {
        /// Which key, what it should be and what it is.
        reason: String,
    },
    /// A kind of tokenizer that is not built in.
    #[error("tokenizer model `{found}` is not supported; supported are {supported}")]
    UnsupportedModel {
        /// `tokenizer.ggml.model` of the file.
        found: String,
        /// The supported names.
        supported: &'static str,
    },
    /// A pre-tokenizer that is not in the table. Guessing one would give slightly wrong ids without a sign of it.
    #[error("pre-tokenizer `{found}` (tokenizer.ggml.pre) is not supported; supported are {supported}")]
    UnsupportedPreTokenizer {
        /// `tokenizer.ggml.pre` of the file.
        found: String,
        /// The supported names, separated by commas.
        supported: String,
    },
    /// Two arrays that describe the same tokens differ in length.
    #[error("`{key}` has {found} entries for {expected} tokens")]
    LengthMismatch {
        /// Metadata key of the array.
        key: &'static str,
        /// Number of tokens.
        expected: usize,
        /// Entries found.
        found: usize,
    },
    /// The vocabulary is empty, or larger than ids or offsets can express.
    #[error(
        "a vocabulary of {tokens} tokens and {bytes} bytes can't be used; at least one token and less than 4 GiB are needed"
    )]
    VocabularySize {
        /// Number of tokens.
        tokens: usize,
        /// Bytes of all tokens.
        bytes: usize,
    },
    /// A token type outside 0 to 6.
    #[error("token {id} has type {found}; types go from 0 to 6")]
    BadTokenType {
        /// The token.
        id: TokenId,
        /// The type in the file.
        found: i32,
    },
    /// Two tokens of the same class have the same text.
    #[error("tokens {first} and {second} have the same text {text:?}")]
    DuplicateToken {
        /// The lower id.
        first: TokenId,
        /// The higher id.
        second: TokenId,
        /// Their text, made printable.
        text: String,
    },
    /// A byte token that does not look like `<0x0A>`.
    #[error("token {id} is of type byte, but its text {text:?} is not of the form <0x0A>")]
    BadByteToken {
        /// The token.
        id: TokenId,
        /// Its text, made printable.
        text: String,
    },
    /// A merge rule without its separating space, or with nothing on a side of it.
    #[error("merge {index} is {text:?}; it should be two parts separated by a space")]
    BadMerge {
        /// Index in `tokenizer.ggml.merges`.
        index: usize,
        /// The rule, made printable.
        text: String,
    },
    /// A special token's id lies outside the vocabulary.
    #[error("`{key}` is {id}, but the vocabulary has {len} tokens")]
    SpecialOutOfRange {
        /// Metadata key.
        key: &'static str,
        /// The id in the file.
        id: u32,
        /// Number of tokens.
        len: usize,
    },
    /// The file asks for a token at the start or end of every text and does not say which.
    #[error("`{flag}` is true, but `{key}` is missing")]
    NoSuchSpecial {
        /// The flag that is set.
        flag: &'static str,
        /// The key that is missing.
        key: &'static str,
    },
    /// An id outside the vocabulary was to be turned into text.
    #[error("token id {id} is out of range; the vocabulary has {len} tokens (0 to {})", len.saturating_sub(1))]
    IdOutOfRange {
        /// The id asked for.
        id: TokenId,
        /// Number of tokens.
        len: usize,
    },
    /// The text is longer than positions can express.
    #[error("the text has {bytes} bytes; at most {limit} can be tokenized at once")]
    TextTooLong {
        /// Its length.
        bytes: usize,
        /// The longest possible.
        limit: usize,
    },
    /// An engine below refused its patterns; not expected to happen with the built-in tables.
    #[error("could not build the {part} of the tokenizer: {reason}")]
    Build {
        /// Which part.
        part: &'static str,
        /// What it said.
        reason: String,
    },
}

/// Bytes made printable for a message, cut where they are long.
pub(super) fn printable(bytes: &[u8]) -> String {
    const LONGEST: usize = 60;
    let text: String = String::from_utf8_lossy(bytes).chars().take(LONGEST + 1).collect();
    match text.chars().count() > LONGEST {
        true => text.chars().take(LONGEST).chain(['…']).collect(),
        false => text,
    }
}
