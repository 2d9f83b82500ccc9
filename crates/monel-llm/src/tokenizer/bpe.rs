//! Byte pair encoding (`tokenizer.ggml.model` = `gpt2`): a word starts as its bytes, and the merge rules join them, the
//! earliest rule first.
//!
//! Rules are kept by the ids of their two sides, so that joining never builds or hashes strings. A side need not be a token
//! (some vocabularies were cut after training): such strings get ids behind the vocabulary while the rules are read, and a
//! symbol that is still one of them at the end is spelled out in bytes.
//! A byte without a token cannot be expressed and is left out, as the trainers' own tokenizers do: vocabularies often lack
//! the bytes that never occur in UTF-8 and some control characters.

use super::error::printable;
use super::merge::{Join, Merger, Rules, Symbol};
use super::vocab::{Vocab, VocabSource};
use super::{TokenId, TokenizerError, byte_alphabet};
use hashbrown::HashMap;

/// The merge rules of a vocabulary.
#[derive(Debug, Clone)]
pub(super) struct Bpe {
    /// By the ids of both sides.
    rules: HashMap<(u32, u32), Join>,
    /// The symbol of each byte.
    bytes: [u32; 256],
    /// Ids from here on are strings that are no tokens.
    tokens: u32,
    /// See [`super::pretokenize`].
    whole_words: bool,
}

impl Bpe {
    pub(super) fn new(
        source: &VocabSource<'_>,
        vocab: &Vocab,
        whole_words: bool,
    ) -> Result<Bpe, TokenizerError> {
        let Some(merges) = &source.merges else {
            return Err(TokenizerError::Missing {
                key: "tokenizer.ggml.merges",
                model: source.model.to_owned(),
            });
        };
        let tokens = vocab.len() as u32;
        let mut strings: HashMap<Vec<u8>, u32> = HashMap::new();
        let mut symbol = |meaning: &[u8]| match vocab.piece(meaning) {
            Some(id) => id,
            None => {
                let next = tokens.saturating_add(strings.len() as u32);
                *strings.entry_ref(meaning).or_insert(next)
            }
        };
        let bytes = std::array::from_fn(|byte| symbol(&[byte as u8]));
        let mut rules = HashMap::with_capacity(merges.len());
        let mut meaning = Vec::new();
        for (index, rule) in merges.iter().enumerate() {
            // The first character is never the separator: it could be a space that is meant.
            let space = rule.iter().skip(1).position(|&byte| byte == b' ').map(|at| at + 1);
            let (Some((left, right)), Ok(order)) = (
                space.and_then(|at| {
                    Some((rule.get(..at)?, rule.get(at + 1..).filter(|right| !right.is_empty())?))
                }),
                u32::try_from(index),
            ) else {
                return Err(TokenizerError::BadMerge { index, text: printable(rule) });
            };
            meaning.clear();
            byte_alphabet::decode_into(left, &mut meaning);
            let middle = meaning.len();
            byte_alphabet::decode_into(right, &mut meaning);
            let sides = (symbol(&meaning[..middle]), symbol(&meaning[middle..]));
            // Of two equal rules the earlier counts.
            rules.entry(sides).or_insert(Join { order, id: symbol(&meaning) });
        }
        Ok(Bpe { rules, bytes, tokens, whole_words })
    }

    /// Appends the tokens of one word.
    pub(super) fn encode(&self, word: &[u8], vocab: &Vocab, merger: &mut Merger, out: &mut Vec<TokenId>) {
        if self.whole_words
            && let Some(id) = vocab.piece(word)
        {
            out.push(id);
            return;
        }
        let parts = word.iter().map(|&byte| (1, self.bytes[usize::from(byte)]));
        for symbol in merger.run(word, parts, self) {
            if symbol.id < self.tokens {
                out.push(symbol.id);
            } else {
                let bytes = symbol.bytes(word).iter().map(|&byte| self.bytes[usize::from(byte)]);
                out.extend(bytes.filter(|&id| id < self.tokens));
            }
        }
    }

    /// Whether the vocabulary has a token for this byte alone.
    pub(super) fn expresses(&self, byte: u8) -> bool {
        self.bytes[usize::from(byte)] < self.tokens
    }
}

impl Rules for Bpe {
    fn join(&self, _: &[u8], left: &Symbol, right: &Symbol) -> Option<Join> {
        self.rules.get(&(left.id, right.id)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::super::vocab::Spelling;
    use super::*;

    fn encode(tokens: &[&str], merges: &[&str], whole_words: bool, word: &str) -> Vec<TokenId> {
        let source = VocabSource {
            model: "gpt2",
            tokens: tokens.iter().map(|text| text.as_bytes()).collect(),
            merges: Some(merges.iter().map(|text| text.as_bytes()).collect()),
            ..Default::default()
        };
        let vocab = Vocab::new(&source, Spelling::ByteLevel).unwrap();
        let mut out = Vec::new();
        let bpe = Bpe::new(&source, &vocab, whole_words).unwrap();
        bpe.encode(word.as_bytes(), &vocab, &mut Merger::default(), &mut out);
        out
    }

    #[test]
    fn earlier_rules_first() {
        let tokens = ["a", "b", "c", "ab", "bc", "abc"];
        assert_eq!(encode(&tokens, &["b c", "a b"], false, "abc"), [0, 4]);
        assert_eq!(encode(&tokens, &["a b", "b c"], false, "abc"), [3, 2]);
        assert_eq!(encode(&tokens, &["a b", "ab c"], false, "abcab"), [5, 3]);
    }

    #[test]
    fn whole_words_need_no_rule() {
        let tokens = ["a", "b", "ab"];
        assert_eq!(encode(&tokens, &[], true, "ab"), [2]);
        assert_eq!(encode(&tokens, &[], false, "ab"), [0, 1]);
    }

    #[test]
    fn sides_that_are_no_tokens() {
        // "ab" is no token: on the way to "abc" it is used, alone it is spelled out.
        let tokens = ["a", "b", "c", "abc"];
        assert_eq!(encode(&tokens, &["a b", "ab c"], false, "abcab"), [3, 0, 1]);
    }

    #[test]
    fn bytes_without_a_token_are_left_out() {
        assert_eq!(encode(&["a", "b"], &[], false, "axb"), [0, 1]);
    }

    #[test]
    fn bad_rules_are_named() {
        for rule in ["", "ab", "a ", " b"] {
            let source = VocabSource {
                merges: Some(vec![b"a b", rule.as_bytes()]),
                tokens: vec![b"a"],
                ..Default::default()
            };
            let vocab = Vocab::new(&source, Spelling::ByteLevel).unwrap();
            let error = Bpe::new(&source, &vocab, false).unwrap_err();
            assert_eq!(error, TokenizerError::BadMerge { index: 1, text: rule.to_owned() });
        }
    }
}
