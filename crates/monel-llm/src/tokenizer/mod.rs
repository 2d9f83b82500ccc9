//! From text to token ids and back.
//!
//! A model sees numbers; which ones a text becomes is part of the model, and its file describes it. Two families are built
//! in: byte-level BPE (`gpt2`) and the SentencePiece-like one (`llama`). The way of a text through [`Tokenizer::encode`]:
//!
//! 1. `special` cuts it at special tokens, the longest first;
//! 2. what lies between is cut into words: by the rules of [`pretokenize`] for BPE, in front of blanks where that changes
//!    nothing for `sentencepiece`;
//! 3. each word is joined from its smallest parts by `merge`, or copied from where it stood before.
//!
//! A text is bytes and need not be UTF-8. Bytes that are not become the tokens of those bytes, as any others do, and
//! decoding gives them back; what a vocabulary cannot express becomes its unknown token (`llama`) or is left out
//! (`gpt2`, see [`Tokenizer::expresses`]).
//! A vocabulary comes from a file, so nothing about it is taken for granted: [`Tokenizer::new`] refuses what is not whole, with the
//! facts, and nothing here panics afterwards.

mod bpe;
mod byte_alphabet;
mod decode;
mod encode;
mod error;
mod gguf;
mod merge;
pub mod pretokenize;
mod sentencepiece;
mod special;
mod vocab;

pub use decode::{DecodeOptions, StreamDecoder};
pub use error::TokenizerError;
pub use vocab::{TokenKind, VocabSource};

use bpe::Bpe;
use pretokenize::PreTokenizer;
use sentencepiece::SentencePiece;
use special::SpecialTokens;
use std::borrow::Cow;
use vocab::{Spelling, Vocab};

/// The number of a token in its vocabulary.
pub type TokenId = u32;

/// Control tokens that end a generation in some family of models, whatever else the file says.
const END_NAMES: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<|return|>",
    "<EOT>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
];

/// The supported values of `tokenizer.ggml.model`.
const MODELS: &str = "gpt2, llama";

/// Turns text into token ids and ids into text. Immutable: one serves any number of threads.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    vocab: Vocab,
    model: Model,
    special: SpecialTokens,
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    unknown: Option<TokenId>,
    /// Ascending.
    end_of_generation: Vec<TokenId>,
    add_bos: bool,
    add_eos: bool,
    warnings: Vec<String>,
}

#[derive(Debug, Clone)]
enum Model {
    Bpe { rules: Box<Bpe>, words: PreTokenizer },
    SentencePiece(Box<SentencePiece>),
}

impl Tokenizer {
    /// Checks a vocabulary and makes it ready.
    ///
    /// A file that names a pre-tokenizer that is not built in is refused; one that names none is read as `default`, with
    /// a warning. Text models without `add_bos_token` add one where their family does (`llama`, and some pre-tokenizers).
    ///
    /// # Errors
    /// Whatever is missing, contradictory or out of range; see [`TokenizerError`].
    pub fn new(source: &VocabSource<'_>) -> Result<Tokenizer, TokenizerError> {
        let mut warnings = Vec::new();
        let missing = |key| TokenizerError::Missing { key, model: source.model.to_owned() };
        if source.model.is_empty() {
            return Err(missing("tokenizer.ggml.model"));
        }
        let spelling = match source.model {
            "gpt2" => Spelling::ByteLevel,
            "llama" => Spelling::Metaspace,
            found => {
                return Err(TokenizerError::UnsupportedModel { found: found.to_owned(), supported: MODELS });
            }
        };
        let words = match spelling {
            Spelling::Metaspace if source.scores.is_none() => return Err(missing("tokenizer.ggml.scores")),
            Spelling::Metaspace => None,
            Spelling::ByteLevel => {
                if source.pre.is_none() {
                    warnings.push(
                        "the model file names no pre-tokenizer (tokenizer.ggml.pre); `default` is used, ids may differ from \
                         those the model was trained with"
                            .to_owned(),
                    );
                }
                Some(PreTokenizer::new(source.pre.unwrap_or("default"))?)
            }
        };
        let vocab = Vocab::new(source, spelling)?;
        let len = vocab.len();
        for (key, id) in source.special_ids() {
            if let Some(id) = id
                && id as usize >= len
            {
                return Err(TokenizerError::SpecialOutOfRange { key, id, len });
            }
        }
        let family_adds_bos = words.as_ref().is_none_or(|words| words.adds_bos);
        let add_bos = match (source.add_bos, source.bos) {
            (Some(true), None) => {
                return Err(TokenizerError::NoSuchSpecial {
                    flag: "tokenizer.ggml.add_bos_token",
                    key: "tokenizer.ggml.bos_token_id",
                });
            }
            (wanted, bos) => wanted.unwrap_or(family_adds_bos) && bos.is_some(),
        };
        let add_eos = source.add_eos.unwrap_or(false);
        if add_eos && source.eos.is_none() {
            return Err(TokenizerError::NoSuchSpecial {
                flag: "tokenizer.ggml.add_eos_token",
                key: "tokenizer.ggml.eos_token_id",
            });
        }
        let named = vocab.iter().filter(|(_, kind, meaning)| {
            *kind == TokenKind::Control && END_NAMES.iter().any(|name| name.as_bytes() == *meaning)
        });
        let mut end_of_generation: Vec<TokenId> = named
            .map(|(id, ..)| id)
            .chain([source.eos, source.eot, source.eom].into_iter().flatten())
            .collect();
        end_of_generation.sort_unstable();
        end_of_generation.dedup();
        let model = match words {
            Some(words) => {
                Model::Bpe { rules: Box::new(Bpe::new(source, &vocab, words.whole_words)?), words }
            }
            None => {
                let space_prefix = source.add_space_prefix.unwrap_or(true);
                Model::SentencePiece(Box::new(SentencePiece::new(&vocab, space_prefix, source.unknown)))
            }
        };
        Ok(Tokenizer {
            special: SpecialTokens::new(&vocab)?,
            vocab,
            model,
            bos: source.bos,
            eos: source.eos,
            unknown: source.unknown,
            end_of_generation,
            add_bos,
            add_eos,
            warnings,
        })
    }

    pub(crate) fn warn(&mut self, what: &str) {
        self.warnings.push(what.to_owned());
    }

    /// Number of tokens; ids go from 0 to one below it.
    pub fn len(&self) -> usize {
        self.vocab.len()
    }

    /// Never: a vocabulary has at least one token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The token that starts a text, if the model has one.
    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    /// The token that ends a text, if the model has one.
    pub fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    /// The token for what cannot be expressed, if the model has one.
    pub fn unknown(&self) -> Option<TokenId> {
        self.unknown
    }

    /// Whether the model wants [`bos`](Self::bos) in front of every text.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether the model wants [`eos`](Self::eos) behind every text.
    pub fn adds_eos(&self) -> bool {
        self.add_eos
    }

    /// Whether generation ends with this token.
    pub fn is_eog(&self, id: TokenId) -> bool {
        self.end_of_generation.binary_search(&id).is_ok()
    }

    /// All tokens that end a generation, ascending.
    pub fn eog(&self) -> &[TokenId] {
        &self.end_of_generation
    }

    /// What a token is for.
    ///
    /// # Errors
    /// [`TokenizerError::IdOutOfRange`].
    pub fn kind(&self, id: TokenId) -> Result<TokenKind, TokenizerError> {
        self.vocab.kind(id).ok_or(TokenizerError::IdOutOfRange { id, len: self.len() })
    }

    /// The bytes of a token: its part of the text, the name of a special token.
    ///
    /// # Errors
    /// [`TokenizerError::IdOutOfRange`].
    pub fn piece_bytes(&self, id: TokenId) -> Result<&[u8], TokenizerError> {
        self.vocab.meaning(id).ok_or(TokenizerError::IdOutOfRange { id, len: self.len() })
    }

    /// A token for people to read. What is no text by itself, such as half of a character, shows as U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::IdOutOfRange`].
    pub fn piece(&self, id: TokenId) -> Result<Cow<'_, str>, TokenizerError> {
        Ok(String::from_utf8_lossy(self.piece_bytes(id)?))
    }

    /// The special token (control, user-defined or unknown) of this name; the lowest id of several.
    pub fn special_id(&self, name: &str) -> Option<TokenId> {
        let special = |kind| matches!(kind, TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown);
        self.vocab
            .iter()
            .find(|(_, kind, meaning)| special(*kind) && *meaning == name.as_bytes())
            .map(|(id, ..)| id)
    }

    /// Whether this byte survives [`encode`](Self::encode) and [`decode`](Self::decode) wherever it stands. A byte-level
    /// vocabulary without a token for a byte leaves it out; some lack control characters and the bytes UTF-8 never has.
    pub fn expresses(&self, byte: u8) -> bool {
        match &self.model {
            Model::Bpe { rules, .. } => rules.expresses(byte),
            Model::SentencePiece(_) => self.vocab.byte(byte).is_some(),
        }
    }

    /// What was odd about the file, for a log; mostly empty.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl VocabSource<'_> {
    /// Key and value of each special id that the tokenizer uses.
    fn special_ids(&self) -> [(&'static str, Option<u32>); 5] {
        [
            ("tokenizer.ggml.bos_token_id", self.bos),
            ("tokenizer.ggml.eos_token_id", self.eos),
            ("tokenizer.ggml.eot_token_id", self.eot),
            ("tokenizer.ggml.eom_token_id", self.eom),
            ("tokenizer.ggml.unknown_token_id", self.unknown),
        ]
    }
}
