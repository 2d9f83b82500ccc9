//! Text to ids.
//!
//! Words repeat: in a megabyte of English nine of ten have been seen before. So each call remembers where in its own output
//! a word was encoded, and copies from there. That needs no lock, no bound and no storage beside the table, and it ends with the call.

use super::merge::Merger;
use super::special::Fragment;
use super::{Model, TokenId, Tokenizer, TokenizerError};
use hashbrown::HashMap;
use std::borrow::Cow;
use std::ops::Range;

/// The longest text: positions are 32 bits, and a blank may be put in front.
const LONGEST_TEXT: usize = u32::MAX as usize - 1;

/// Where in the output the tokens of each word are.
type Seen<'t> = HashMap<&'t [u8], Range<usize>>;

impl Tokenizer {
    /// The ids of a text.
    ///
    /// `add_special` puts the tokens for begin and end around it that the model wants around every text. `parse_special`
    /// recognises control tokens that are written in the text; without it they are text like any other, which is what
    /// text from outside needs. Any bytes are a text, see [the module](super).
    ///
    /// # Errors
    /// [`TokenizerError::TextTooLong`] for 4 GiB and more.
    pub fn encode(
        &self,
        text: impl AsRef<[u8]>,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<TokenId>, TokenizerError> {
        let text = text.as_ref();
        if text.len() > LONGEST_TEXT {
            return Err(TokenizerError::TextTooLong { bytes: text.len(), limit: LONGEST_TEXT });
        }
        let mut out = Vec::with_capacity(text.len() / 4 + 2);
        if add_special && self.add_bos {
            out.extend(self.bos);
        }
        let mut seen = Seen::new();
        let mut merger = Merger::default();
        let mut behind_special = true;
        for fragment in self.special.split(text, parse_special) {
            match fragment {
                Fragment::Special(id) => {
                    out.push(id);
                    behind_special = true;
                }
                Fragment::Text(text) => {
                    self.encode_text(text, behind_special, &mut seen, &mut merger, &mut out);
                    behind_special = false;
                }
            }
        }
        if add_special && self.add_eos {
            out.extend(self.eos);
        }
        Ok(out)
    }

    /// The ids of a prompt that a chat template made: control tokens count, and the token for the begin is added where
    /// the model wants one and the template has not written it already.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_prompt(&self, prompt: &str) -> Result<Vec<TokenId>, TokenizerError> {
        let mut ids = self.encode(prompt, false, true)?;
        if let Some(bos) = self.bos.filter(|&bos| self.add_bos && ids.first() != Some(&bos)) {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// Appends the tokens of text without special tokens.
    fn encode_text<'t>(
        &self,
        text: &'t [u8],
        behind_special: bool,
        seen: &mut Seen<'t>,
        merger: &mut Merger,
        out: &mut Vec<TokenId>,
    ) {
        match &self.model {
            Model::Bpe { rules, words } => {
                for word in words.split(text) {
                    remembering(&text[word], seen, out, |word, out| {
                        rules.encode(word, &self.vocab, merger, out)
                    });
                }
            }
            Model::SentencePiece(model) => match model.normalize(text, behind_special) {
                Cow::Borrowed(text) => {
                    for word in model.words(text) {
                        remembering(word, seen, out, |word, out| {
                            model.encode(word, &self.vocab, merger, out)
                        });
                    }
                }
                // A text made here doesn't live as long as the words remembered by the caller.
                Cow::Owned(text) => {
                    let mut seen = Seen::new();
                    for word in model.words(&text) {
                        remembering(word, &mut seen, out, |word, out| {
                            model.encode(word, &self.vocab, merger, out)
                        });
                    }
                }
            },
        }
    }
}

/// Appends the tokens of a word: a copy of those it became before, or what `encode` makes of it.
fn remembering<'t>(
    word: &'t [u8],
    seen: &mut Seen<'t>,
    out: &mut Vec<TokenId>,
    encode: impl FnOnce(&[u8], &mut Vec<TokenId>),
) {
    if let Some(before) = seen.get(word) {
        out.extend_from_within(before.clone());
        return;
    }
    let start = out.len();
    encode(word, out);
    seen.insert(word, start..out.len());
}
