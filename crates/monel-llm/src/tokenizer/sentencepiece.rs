//! SentencePiece-like encoding (`tokenizer.ggml.model` = `llama`): a text starts as its characters, and neighbours join to
//! the token with the highest score, as long as they are one.
//!
//! The rules know no words: in principle a join may span blanks. But a join can only give a token, and nearly every
//! vocabulary has blanks at the start of tokens only. So the tokens are looked through once for the bytes that may stand
//! in front of a blank inside of a token ([`SentencePiece::glue`]; in Gemma's a quarter of a million one), and everywhere else
//! the text may be cut in front of a blank without changing a single id. That makes words, which can be remembered.

use super::TokenId;
use super::merge::{Join, Merger, Rules, Symbol};
use super::vocab::{METASPACE, TokenKind, Vocab, unescape_into};
use std::borrow::Cow;

/// The symbol is not, or not known to be, a token.
const NO_TOKEN: u32 = u32::MAX;

/// What a vocabulary needs beside its tokens.
#[derive(Debug, Clone)]
pub(super) struct SentencePiece {
    /// Bytes that some token has right in front of a blank.
    glue: [bool; 256],
    /// A blank is put in front of the text, and of text behind a special token.
    pub(super) space_prefix: bool,
    /// Stands for characters that have neither a token nor byte tokens.
    unknown: Option<TokenId>,
}

/// The vocabulary as the rules of joining.
struct Scores<'v>(&'v Vocab);

impl Rules for Scores<'_> {
    fn join(&self, text: &[u8], left: &Symbol, right: &Symbol) -> Option<Join> {
        let id = self.0.piece(&text[left.start as usize..(right.start + right.len) as usize])?;
        Some(Join { order: highest_first(self.0.score(id)), id })
    }
}

/// A number that is lower the higher the score is. What is not a number comes last.
fn highest_first(score: f32) -> u32 {
    if score.is_nan() {
        return u32::MAX;
    }
    // Adding zero makes the two zeros equal. The bits of positive numbers ascend with them, those of negative ones descend.
    let bits = (score + 0.0).to_bits();
    match bits >> 31 {
        0 => !(bits | 1 << 31),
        _ => bits,
    }
}

impl SentencePiece {
    pub(super) fn new(vocab: &Vocab, space_prefix: bool, unknown: Option<TokenId>) -> SentencePiece {
        let mut glue = [false; 256];
        glue[usize::from(b' ')] = true;
        for (_, _, meaning) in vocab.iter().filter(|(_, kind, _)| *kind == TokenKind::Normal) {
            for pair in meaning.windows(2).filter(|pair| pair[1] == b' ') {
                glue[usize::from(pair[0])] = true;
            }
        }
        SentencePiece { glue, space_prefix, unknown }
    }

    /// The text as it is encoded: with a blank in front where one is wanted, and blanks for U+2581.
    pub(super) fn normalize<'t>(&self, text: &'t [u8], behind_special: bool) -> Cow<'t, [u8]> {
        let prefix = self.space_prefix && behind_special;
        if !prefix && !text.windows(METASPACE.len()).any(|window| window == METASPACE) {
            return Cow::Borrowed(text);
        }
        let mut normal = Vec::with_capacity(text.len() + 1);
        if prefix {
            normal.push(b' ');
        }
        unescape_into(text, &mut normal);
        Cow::Owned(normal)
    }

    /// Cuts where no token can reach across.
    pub(super) fn words<'t>(&self, text: &'t [u8]) -> impl Iterator<Item = &'t [u8]> {
        let mut rest = text;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let cut = rest.windows(2).position(|pair| pair[1] == b' ' && !self.glue[usize::from(pair[0])]);
            let (word, behind) = rest.split_at(cut.map_or(rest.len(), |at| at + 1));
            rest = behind;
            Some(word)
        })
    }

    /// Appends the tokens of one word.
    pub(super) fn encode(&self, word: &[u8], vocab: &Vocab, merger: &mut Merger, out: &mut Vec<TokenId>) {
        // Bytes that are not UTF-8 are symbols of their own; they never join, for tokens are text, and become byte tokens.
        let parts = word.utf8_chunks().flat_map(|chunk| {
            let characters = chunk.valid().chars().map(|character| (character.len_utf8() as u32, NO_TOKEN));
            characters.chain(chunk.invalid().iter().map(|_| (1, NO_TOKEN)))
        });
        for symbol in merger.run(word, parts, &Scores(vocab)) {
            let bytes = symbol.bytes(word);
            match symbol.id {
                NO_TOKEN => match vocab.piece(bytes) {
                    Some(id) => out.push(id),
                    None => self.spell(bytes, vocab, out),
                },
                id => out.push(id),
            }
        }
    }

    /// Appends a character without a token as bytes.
    fn spell(&self, character: &[u8], vocab: &Vocab, out: &mut Vec<TokenId>) {
        let before = out.len();
        for &byte in character {
            match vocab.byte(byte) {
                Some(id) => out.push(id),
                None => {
                    out.truncate(before);
                    out.extend(self.unknown);
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::vocab::{Spelling, VocabSource};
    use super::*;

    fn vocab(tokens: &[(&str, f32, i32)]) -> Vocab {
        let source = VocabSource {
            model: "llama",
            tokens: tokens.iter().map(|token| token.0.as_bytes()).collect(),
            scores: Some(tokens.iter().map(|token| token.1).collect()),
            types: Some(tokens.iter().map(|token| token.2).collect()),
            ..Default::default()
        };
        Vocab::new(&source, Spelling::Metaspace).unwrap()
    }

    fn encode(model: &SentencePiece, vocab: &Vocab, text: &[u8]) -> Vec<TokenId> {
        let mut out = Vec::new();
        for word in model.words(text) {
            model.encode(word, vocab, &mut Merger::default(), &mut out);
        }
        out
    }

    #[test]
    fn order_of_scores() {
        let scores = [f32::INFINITY, 2.0, 1.0, 0.0, -0.5, -3.0, f32::NEG_INFINITY, f32::NAN];
        assert!(scores.windows(2).all(|pair| highest_first(pair[0]) < highest_first(pair[1])));
        assert_eq!(highest_first(0.0), highest_first(-0.0));
    }

    #[test]
    fn highest_score_first_and_leftmost_of_equals() {
        let vocab = vocab(&[("a", 0.0, 1), ("b", 0.0, 1), ("ab", -2.0, 1), ("ba", -1.0, 1), ("aa", -1.0, 1)]);
        let model = SentencePiece::new(&vocab, false, None);
        assert_eq!(encode(&model, &vocab, b"aba"), [0, 3]);
        assert_eq!(encode(&model, &vocab, b"aaa"), [4, 0]);
    }

    #[test]
    fn what_has_no_token_is_spelled_or_unknown() {
        let mut tokens = vec![
            ("a", 0.0, 1),
            ("<unk>", 0.0, 2),
            ("<0xC3>", 0.0, 6),
            ("<0xA9>", 0.0, 6),
            ("<0xFF>", 0.0, 6),
        ];
        let some = vocab(&tokens);
        let model = SentencePiece::new(&some, false, Some(1));
        assert_eq!(encode(&model, &some, "aé".as_bytes()), [0, 2, 3]);
        // Cut characters and other bytes are spelled too.
        assert_eq!(encode(&model, &some, b"a\xC3\xFFa"), [0, 2, 4, 0]);
        // One unknown token for the whole character, also where only its second byte is missing.
        tokens.remove(3);
        let fewer = vocab(&tokens);
        assert_eq!(encode(&model, &fewer, "aé".as_bytes()), [0, 1]);
        assert_eq!(encode(&SentencePiece::new(&fewer, false, None), &fewer, "aéa".as_bytes()), [0, 0]);
    }

    #[test]
    fn words_end_where_no_token_reaches_across() {
        let vocab = vocab(&[("a", 0.0, 1), ("\u{2581}a", 0.0, 1), (">\u{2581}b", 0.0, 1)]);
        let model = SentencePiece::new(&vocab, false, None);
        let words = |text: &'static str| {
            model.words(text.as_bytes()).map(|w| std::str::from_utf8(w).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(words("ab cd  e> f g "), ["ab", " cd", "  e> f", " g", " "]);
        assert_eq!(words(""), [""; 0]);
    }

    #[test]
    fn blanks_in_front() {
        let vocab = vocab(&[("a", 0.0, 1)]);
        let model = SentencePiece::new(&vocab, true, None);
        assert_eq!(*model.normalize(b"a", true), *b" a");
        assert!(matches!(model.normalize(b"a", false), Cow::Borrowed(b"a")));
        assert_eq!(*model.normalize("x\u{2581}y".as_bytes(), false), *b"x y");
    }
}
