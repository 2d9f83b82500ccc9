//! Ids to text, at once or as they come.
//!
//! A token is bytes, and a character can be spread over several tokens: an emoji over four. Text that is shown while it is
//! generated must not show half of one, so [`StreamDecoder`] holds such bytes back until the rest comes.

use super::{Model, TokenId, TokenKind, Tokenizer, TokenizerError};
use std::borrow::Borrow;

/// What decoding does with tokens that are not text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DecodeOptions {
    /// Leaves out the token for the begin in front and the one for the end behind, where the model adds them itself.
    pub remove_special: bool,
    /// Writes control tokens as their names; otherwise they are left out.
    pub unparse_special: bool,
    /// The ids continue a text: a blank in front belongs to it even where the model adds one to every text.
    pub continues: bool,
}

impl Tokenizer {
    /// The bytes that the ids stand for. They are UTF-8 if the ids came from such a text; those of a model need not be.
    ///
    /// # Errors
    /// [`TokenizerError::IdOutOfRange`].
    pub fn decode(&self, ids: &[TokenId], options: DecodeOptions) -> Result<Vec<u8>, TokenizerError> {
        let mut ids = ids;
        if options.remove_special {
            if let [first, rest @ ..] = ids
                && self.add_bos
                && self.bos == Some(*first)
            {
                ids = rest;
            }
            if let [rest @ .., last] = ids
                && self.add_eos
                && self.eos == Some(*last)
            {
                ids = rest;
            }
        }
        let mut out = Vec::with_capacity(4 * ids.len());
        let mut start = !options.continues;
        for &id in ids {
            out.extend_from_slice(self.text_of(id, options, &mut start)?);
        }
        Ok(out)
    }

    /// [`decode`](Self::decode) as text, with U+FFFD for what is not UTF-8.
    ///
    /// # Errors
    /// [`TokenizerError::IdOutOfRange`].
    pub fn decode_lossy(&self, ids: &[TokenId], options: DecodeOptions) -> Result<String, TokenizerError> {
        let bytes = self.decode(ids, options)?;
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// The part of the text that a token is. `start`: whether nothing of the text came before; the blank that the model
    /// puts in front of a text is not part of it.
    fn text_of(
        &self,
        id: TokenId,
        options: DecodeOptions,
        start: &mut bool,
    ) -> Result<&[u8], TokenizerError> {
        let meaning = self.piece_bytes(id)?;
        let kind = self.kind(id)?;
        let text = match kind {
            TokenKind::Normal | TokenKind::UserDefined | TokenKind::Byte => meaning,
            TokenKind::Control | TokenKind::Unknown if options.unparse_special => meaning,
            TokenKind::Control | TokenKind::Unknown | TokenKind::Unused => b"",
        };
        let prefixed = matches!(&self.model, Model::SentencePiece(model) if model.space_prefix);
        // The begin of a sequence stands before the text, it isn't a part.
        if self.bos == Some(id) {
            return Ok(text);
        }
        match std::mem::take(start) && prefixed && kind == TokenKind::Normal {
            true => Ok(text.strip_prefix(b" ").unwrap_or(text)),
            false => Ok(text),
        }
    }
}

/// Decodes ids one by one. `T` is a `Tokenizer`, a reference to one or an `Arc` of one.
#[derive(Debug, Clone)]
pub struct StreamDecoder<T> {
    tokenizer: T,
    options: DecodeOptions,
    start: bool,
    first: bool,
    /// The begin of a character, at most three bytes between calls.
    held: Vec<u8>,
    text: String,
}

impl<T: Borrow<Tokenizer>> StreamDecoder<T> {
    /// For the text that a model generates behind a prompt, set [`DecodeOptions::continues`]. `remove_special` leaves out
    /// the token for the begin only: which token is the last isn't known here.
    pub fn new(tokenizer: T, options: DecodeOptions) -> StreamDecoder<T> {
        StreamDecoder {
            tokenizer,
            options,
            start: !options.continues,
            first: true,
            held: Vec::new(),
            text: String::new(),
        }
    }

    /// The text that this id completes; empty where it ends inside of a character. Bytes that cannot become a character any more
    /// show as U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::IdOutOfRange`]; what was held back is still there.
    pub fn push(&mut self, id: TokenId) -> Result<&str, TokenizerError> {
        let tokenizer = self.tokenizer.borrow();
        let bytes = tokenizer.text_of(id, self.options, &mut self.start)?;
        let first = std::mem::take(&mut self.first);
        self.text.clear();
        if first && self.options.remove_special && tokenizer.add_bos && tokenizer.bos == Some(id) {
            return Ok(&self.text);
        }
        self.held.extend_from_slice(bytes);
        let mut done = 0;
        while done < self.held.len() {
            match std::str::from_utf8(&self.held[done..]) {
                Ok(rest) => {
                    self.text.push_str(rest);
                    done = self.held.len();
                }
                Err(error) => {
                    let (valid, rest) = self.held[done..].split_at(error.valid_up_to());
                    self.text.push_str(&String::from_utf8_lossy(valid));
                    done += valid.len();
                    match error.error_len() {
                        Some(wrong) => {
                            self.text.push(char::REPLACEMENT_CHARACTER);
                            done += wrong.min(rest.len());
                        }
                        None => break,
                    }
                }
            }
        }
        self.held.drain(..done);
        Ok(&self.text)
    }

    /// What is still held back, at the end: U+FFFD for the begin of a character that never ended, mostly nothing.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        self.text.push_str(&String::from_utf8_lossy(&self.held));
        self.held.clear();
        &self.text
    }
}
