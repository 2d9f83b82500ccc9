//! The vocabulary: what every id stands for, and which id stands for some bytes.
//!
//! A vocabulary has up to a quarter of a million tokens of a few bytes each, and it is loaded each time a model is. So there
//! is no string per token: all bytes lie in one arena with a table of offsets beside it, and the way back is a hash table
//! that holds nothing but ids and compares through the arena.
//! The arena holds what a token *means*: byte-level tokens are stored as bytes rather than in the alphabet of the file,
//! SentencePiece tokens with a space for U+2581, and byte tokens as their byte. Encoding then works on the text as it is,
//! and decoding is a copy.

use super::error::printable;
use super::{TokenId, TokenizerError, byte_alphabet};
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// A tokenizer as a model file describes it, not yet checked. The keys of the metadata are given for each field.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VocabSource<'a> {
    /// `tokenizer.ggml.model`: `gpt2` or `llama`.
    pub model: &'a str,
    /// `tokenizer.ggml.pre`: the pre-tokenizer of a `gpt2` model; absent: `default`.
    pub pre: Option<&'a str>,
    /// `tokenizer.ggml.tokens`: the text of each token, in the spelling of the file.
    pub tokens: Vec<&'a [u8]>,
    /// `tokenizer.ggml.token_type`: see [`TokenKind`]; absent: all normal.
    pub types: Option<Vec<i32>>,
    /// `tokenizer.ggml.scores`: needed by `llama`.
    pub scores: Option<Vec<f32>>,
    /// `tokenizer.ggml.merges`: needed by `gpt2`.
    pub merges: Option<Vec<&'a [u8]>>,
    /// `tokenizer.ggml.bos_token_id`: begin of sequence.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`: end of sequence.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`: end of turn.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`: end of message.
    pub eom: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unknown: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`; absent: true for `llama`. Means nothing to `gpt2`.
    pub add_space_prefix: Option<bool>,
}

/// What a token is for (`tokenizer.ggml.token_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// A piece of text. Type 1, and 0 (undefined).
    Normal,
    /// Stands for what the vocabulary cannot express.
    Unknown,
    /// Steers the model; no text, recognised in a text only where that is asked for.
    Control,
    /// A fixed string that is always recognised in a text.
    UserDefined,
    /// A place nobody uses.
    Unused,
    /// One byte, for text that the vocabulary has no piece for.
    Byte,
}

impl TokenKind {
    fn from_type(id: TokenId, found: i32) -> Result<TokenKind, TokenizerError> {
        Ok(match found {
            0 | 1 => TokenKind::Normal,
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            5 => TokenKind::Unused,
            6 => TokenKind::Byte,
            _ => return Err(TokenizerError::BadTokenType { id, found }),
        })
    }
}

/// How the texts of normal tokens are spelled in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// In the byte alphabet.
    ByteLevel,
    /// With U+2581 for the space.
    Metaspace,
}

/// U+2581, which SentencePiece writes for a space.
pub(super) const METASPACE: &[u8] = "\u{2581}".as_bytes();

/// The tokens of a model, checked.
#[derive(Clone)]
pub(super) struct Vocab {
    arena: Vec<u8>,
    /// Token `id` is `arena[offsets[id] .. offsets[id + 1]]`.
    offsets: Vec<u32>,
    kinds: Vec<TokenKind>,
    scores: Vec<f32>,
    /// Ids of the tokens that text can be made of: all normal ones that are not empty.
    pieces: HashTable<TokenId>,
    hasher: DefaultHashBuilder,
    /// Id of the byte token of each byte, where there is one.
    bytes: [Option<TokenId>; 256],
    longest_piece: usize,
}

impl Vocab {
    pub(super) fn new(source: &VocabSource<'_>, spelling: Spelling) -> Result<Vocab, TokenizerError> {
        let len = source.tokens.len();
        let total = source.tokens.iter().map(|token| token.len()).fold(0usize, usize::saturating_add);
        // A character outside the byte alphabet keeps its length and every other gets shorter: no token grows.
        if len == 0 || u32::try_from(len).is_err() || u32::try_from(total).is_err() {
            return Err(TokenizerError::VocabularySize { tokens: len, bytes: total });
        }
        let check = |key, found: Option<usize>| match found {
            Some(found) if found != len => Err(TokenizerError::LengthMismatch { key, expected: len, found }),
            _ => Ok(()),
        };
        check("tokenizer.ggml.token_type", source.types.as_ref().map(Vec::len))?;
        check("tokenizer.ggml.scores", source.scores.as_ref().map(Vec::len))?;

        let mut vocab = Vocab {
            arena: Vec::with_capacity(total),
            offsets: Vec::with_capacity(len + 1),
            kinds: Vec::with_capacity(len),
            scores: source.scores.clone().unwrap_or_default(),
            pieces: HashTable::with_capacity(len),
            hasher: DefaultHashBuilder::default(),
            bytes: [None; 256],
            longest_piece: 0,
        };
        vocab.offsets.push(0);
        for (id, text) in (0..).zip(&source.tokens) {
            let kind = match &source.types {
                Some(types) => TokenKind::from_type(id, types[id as usize])?,
                None => TokenKind::Normal,
            };
            vocab.push(id, text, kind, spelling);
            vocab.register(id, text, source)?;
        }
        Ok(vocab)
    }

    /// Appends the meaning of the next token to the arena.
    fn push(&mut self, id: TokenId, text: &[u8], kind: TokenKind, spelling: Spelling) {
        match (kind, spelling) {
            (TokenKind::Normal, Spelling::ByteLevel) => byte_alphabet::decode_into(text, &mut self.arena),
            (TokenKind::Normal, Spelling::Metaspace) => unescape_into(text, &mut self.arena),
            (TokenKind::Byte, _) => match byte_of(text) {
                Some(byte) => self.arena.push(byte),
                None => self.arena.extend_from_slice(text), // refused by `register`
            },
            _ => self.arena.extend_from_slice(text),
        }
        debug_assert_eq!(self.kinds.len(), id as usize);
        self.kinds.push(kind);
        self.offsets.push(self.arena.len() as u32);
    }

    /// Makes the token just pushed findable.
    fn register(&mut self, id: TokenId, text: &[u8], source: &VocabSource<'_>) -> Result<(), TokenizerError> {
        match self.kinds[id as usize] {
            TokenKind::Byte => {
                let Some(byte) = byte_of(text) else {
                    return Err(TokenizerError::BadByteToken { id, text: printable(text) });
                };
                match self.bytes[usize::from(byte)] {
                    Some(first) => {
                        return Err(TokenizerError::DuplicateToken {
                            first,
                            second: id,
                            text: printable(text),
                        });
                    }
                    None => self.bytes[usize::from(byte)] = Some(id),
                }
            }
            TokenKind::Normal if !text.is_empty() => {
                let Vocab { arena, offsets, pieces, hasher, .. } = self;
                let slice =
                    |id: TokenId| &arena[offsets[id as usize] as usize..offsets[id as usize + 1] as usize];
                let meaning = slice(id);
                let hash = |id: TokenId| hasher.hash_one(slice(id));
                match pieces.entry(hash(id), |&other| slice(other) == meaning, |&other| hash(other)) {
                    hashbrown::hash_table::Entry::Vacant(place) => {
                        place.insert(id);
                    }
                    // Two spellings of the same bytes: the first is the one that text becomes.
                    hashbrown::hash_table::Entry::Occupied(other) => {
                        let first = *other.get();
                        if source.tokens[first as usize] == text {
                            return Err(TokenizerError::DuplicateToken {
                                first,
                                second: id,
                                text: printable(text),
                            });
                        }
                    }
                }
                self.longest_piece = self.longest_piece.max(meaning.len());
            }
            _ => {}
        }
        Ok(())
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.kinds.len()
    }

    /// What the token means, as bytes; `None` past the end.
    pub(super) fn meaning(&self, id: TokenId) -> Option<&[u8]> {
        let id = id as usize;
        let (start, end) = (*self.offsets.get(id)?, *self.offsets.get(id.checked_add(1)?)?);
        self.arena.get(start as usize..end as usize)
    }

    pub(super) fn kind(&self, id: TokenId) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// The score of a token; 0 where the file has none.
    pub(super) fn score(&self, id: TokenId) -> f32 {
        self.scores.get(id as usize).copied().unwrap_or(0.0)
    }

    /// The normal token that means exactly these bytes.
    pub(super) fn piece(&self, meaning: &[u8]) -> Option<TokenId> {
        if meaning.len() > self.longest_piece {
            return None;
        }
        let same = |&id: &TokenId| self.meaning(id) == Some(meaning);
        self.pieces.find(self.hasher.hash_one(meaning), same).copied()
    }

    /// The byte token of a byte.
    pub(super) fn byte(&self, byte: u8) -> Option<TokenId> {
        self.bytes[usize::from(byte)]
    }

    /// All tokens in order: id, kind, meaning.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TokenId, TokenKind, &[u8])> {
        (0..).zip(&self.kinds).map(|(id, &kind)| (id, kind, self.meaning(id).unwrap_or_default()))
    }
}

impl std::fmt::Debug for Vocab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocab")
            .field("tokens", &self.len())
            .field("bytes", &self.arena.len())
            .finish_non_exhaustive()
    }
}

/// The byte that a byte token such as `<0x0A>` stands for.
fn byte_of(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    match digits {
        [high, low] => {
            let digit = |d: u8| char::from(d).to_digit(16);
            u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()
        }
        _ => None,
    }
}

/// Appends `text` with a space for each U+2581.
pub(super) fn unescape_into(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some(&byte) = rest.first() {
        match rest.strip_prefix(METASPACE) {
            Some(after) => {
                out.push(b' ');
                rest = after;
            }
            None => {
                out.push(byte);
                rest = &rest[1..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source<'a>(tokens: &[&'a str], types: &[i32]) -> VocabSource<'a> {
        VocabSource {
            tokens: tokens.iter().map(|text| text.as_bytes()).collect(),
            types: Some(types.to_vec()),
            ..Default::default()
        }
    }

    #[test]
    fn stores_what_tokens_mean() {
        let tokens = source(&["\u{2581}the", "<0x0a>", "<s>", "", "the"], &[1, 6, 3, 1, 0]);
        let vocab = Vocab::new(&tokens, Spelling::Metaspace).unwrap();
        assert_eq!(vocab.meaning(0), Some(&b" the"[..]));
        assert_eq!(vocab.piece(b" the"), Some(0));
        assert_eq!(vocab.piece(b"the"), Some(4));
        assert_eq!(vocab.byte(b'\n'), Some(1));
        // Neither control tokens nor empty ones can be made of text.
        assert_eq!(vocab.piece(b"<s>"), None);
        assert_eq!(vocab.piece(b""), None);
        assert_eq!(vocab.meaning(5), None);
        assert_eq!(vocab.meaning(u32::MAX), None);
    }

    #[test]
    fn the_same_string_may_be_text_and_special() {
        let vocab = Vocab::new(&source(&["ĠĠ", "  "], &[1, 4]), Spelling::ByteLevel).unwrap();
        assert_eq!(vocab.piece(b"  "), Some(0));
        assert_eq!(vocab.kind(1), Some(TokenKind::UserDefined));
    }

    #[test]
    fn refuses_what_cannot_be_meant() {
        let build = |tokens: &[&str], types: &[i32]| {
            Vocab::new(&source(tokens, types), Spelling::ByteLevel).unwrap_err()
        };
        assert_eq!(build(&[], &[]), TokenizerError::VocabularySize { tokens: 0, bytes: 0 });
        assert_eq!(
            build(&["a", "b"], &[1]),
            TokenizerError::LengthMismatch { key: "tokenizer.ggml.token_type", expected: 2, found: 1 }
        );
        assert_eq!(build(&["a"], &[7]), TokenizerError::BadTokenType { id: 0, found: 7 });
        assert_eq!(
            build(&["a", "b", "a"], &[1, 1, 1]),
            TokenizerError::DuplicateToken { first: 0, second: 2, text: "a".into() }
        );
        assert_eq!(build(&["<0x1>"], &[6]), TokenizerError::BadByteToken { id: 0, text: "<0x1>".into() });
        assert_eq!(
            build(&["<0x0A>", "<0x0a>"], &[6, 6]),
            TokenizerError::DuplicateToken { first: 0, second: 1, text: "<0x0a>".into() }
        );
    }
}
