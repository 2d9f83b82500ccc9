//! Cutting a text at its special tokens, before anything else looks at it.
//!
//! User-defined tokens are always recognised; control tokens (and the unknown token) only where that is asked for, so that
//! text from outside cannot steer the model. The longest token in the text is taken first, wherever it stands, then the next longest
//! in what is left; among equals the leftmost.
//! Gemma has more than 6,000 of them, so the text is not searched once per token: an Aho-Corasick automaton gives the longest one at each place,
//! and a heap sorts out those that overlap.

use super::vocab::{TokenKind, Vocab};
use super::{TokenId, TokenizerError};
use aho_corasick::{AhoCorasick, AhoCorasickKind, Anchored, Input, MatchKind, StartKind};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// A part of the text, or a special token that stood in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fragment<'t> {
    /// Ordinary text; never empty.
    Text(&'t [u8]),
    /// A special token.
    Special(TokenId),
}

/// The special tokens of a vocabulary.
#[derive(Debug, Clone)]
pub(super) struct SpecialTokens {
    user_defined: Finder,
    all: Finder,
}

impl SpecialTokens {
    pub(super) fn new(vocab: &Vocab) -> Result<SpecialTokens, TokenizerError> {
        let of = |kinds: &[TokenKind]| {
            let tokens =
                vocab.iter().filter(|(_, kind, meaning)| kinds.contains(kind) && !meaning.is_empty());
            Finder::new(tokens.map(|(id, _, meaning)| (id, meaning)).collect())
        };
        Ok(SpecialTokens {
            user_defined: of(&[TokenKind::UserDefined])?,
            all: of(&[TokenKind::UserDefined, TokenKind::Control, TokenKind::Unknown])?,
        })
    }

    /// Cuts `text`; with `parse_special` at control tokens too.
    pub(super) fn split<'t>(&self, text: &'t [u8], parse_special: bool) -> Vec<Fragment<'t>> {
        match parse_special {
            true => self.all.split(text),
            false => self.user_defined.split(text),
        }
    }
}

/// Finds one set of tokens.
#[derive(Debug, Clone)]
struct Finder {
    /// `None`: nothing to find.
    automaton: Option<AhoCorasick>,
    /// By pattern number of the automaton.
    ids: Vec<TokenId>,
    /// Bytes that some token starts with.
    starts: [bool; 256],
}

impl Finder {
    fn new(tokens: Vec<(TokenId, &[u8])>) -> Result<Finder, TokenizerError> {
        let mut starts = [false; 256];
        for first in tokens.iter().filter_map(|(_, meaning)| meaning.first()) {
            starts[usize::from(*first)] = true;
        }
        let automaton = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .match_kind(MatchKind::LeftmostLongest)
            .start_kind(StartKind::Anchored)
            .build(tokens.iter().map(|(_, meaning)| meaning));
        let automaton = match (tokens.is_empty(), automaton) {
            (true, _) => None,
            (false, Ok(automaton)) => Some(automaton),
            (false, Err(error)) => {
                return Err(TokenizerError::Build {
                    part: "special token finder",
                    reason: error.to_string(),
                });
            }
        };
        Ok(Finder { automaton, ids: tokens.into_iter().map(|(id, _)| id).collect(), starts })
    }

    /// The longest token that starts at `start` and ends at or before `end`: its end and its id.
    fn longest(&self, text: &[u8], start: usize, end: usize) -> Option<(usize, TokenId)> {
        let input = Input::new(text).range(start..end).anchored(Anchored::Yes);
        // An error would say that the automaton can't search anchored, which it was built for.
        let found = self.automaton.as_ref()?.try_find(input).ok()??;
        Some((found.end(), self.ids[found.pattern().as_usize()]))
    }

    fn split<'t>(&self, text: &'t [u8]) -> Vec<Fragment<'t>> {
        let mut candidates = BinaryHeap::new();
        if self.automaton.is_some() {
            for (start, _) in text.iter().enumerate().filter(|(_, byte)| self.starts[usize::from(**byte)]) {
                if let Some((end, id)) = self.longest(text, start, text.len()) {
                    candidates.push((end - start, Reverse(start), id));
                }
            }
        }
        // Tokens taken, by their start: end and id.
        let mut taken: BTreeMap<usize, (usize, TokenId)> = BTreeMap::new();
        while let Some((len, Reverse(start), id)) = candidates.pop() {
            let before = taken.range(..=start).next_back();
            if before.is_some_and(|(_, &(end, _))| end > start) {
                continue;
            }
            match taken.range(start..).next() {
                // A longer one stands in the way: perhaps a shorter one fits before it.
                Some((&wall, _)) if wall < start + len => {
                    if let Some((end, id)) = self.longest(text, start, wall) {
                        candidates.push((end - start, Reverse(start), id));
                    }
                }
                _ => {
                    taken.insert(start, (start + len, id));
                }
            }
        }
        let mut fragments = Vec::with_capacity(2 * taken.len() + 1);
        let mut at = 0;
        for (start, (end, id)) in taken {
            if start > at {
                fragments.push(Fragment::Text(&text[at..start]));
            }
            fragments.push(Fragment::Special(id));
            at = end;
        }
        if at < text.len() {
            fragments.push(Fragment::Text(&text[at..]));
        }
        fragments
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Token by token, longest first, through all fragments.
    fn plainly<'t>(tokens: &[(TokenId, &[u8])], text: &'t [u8]) -> Vec<Fragment<'t>> {
        let longest = tokens.iter().map(|token| token.1.len()).max().unwrap_or(0);
        let mut fragments = vec![Fragment::Text(text)];
        for len in (1..=longest).rev() {
            let mut finer = Vec::new();
            for fragment in fragments {
                let Fragment::Text(mut rest) = fragment else {
                    finer.push(fragment);
                    continue;
                };
                let token_at =
                    |window: &[u8]| tokens.iter().find(|token| token.1 == window).map(|token| token.0);
                while let Some((at, id)) =
                    rest.windows(len).enumerate().find_map(|(at, w)| Some((at, token_at(w)?)))
                {
                    finer.extend([Fragment::Text(&rest[..at]), Fragment::Special(id)]);
                    rest = &rest[at + len..];
                }
                finer.push(Fragment::Text(rest));
            }
            fragments = finer;
        }
        fragments.retain(|fragment| *fragment != Fragment::Text(b""));
        fragments
    }

    proptest! {
        #[test]
        fn equals_the_plain_way(
            texts in prop::collection::hash_set("[abc]{1,4}", 0..8),
            text in "[abcd]{0,30}",
        ) {
            let tokens: Vec<(TokenId, &[u8])> = (0..).zip(texts.iter().map(|text| text.as_bytes())).collect();
            let finder = Finder::new(tokens.clone()).unwrap();
            prop_assert_eq!(finder.split(text.as_bytes()), plainly(&tokens, text.as_bytes()));
        }
    }

    #[test]
    fn the_longest_wins_wherever_it_stands() {
        let finder = Finder::new(vec![(7, b"ab"), (8, b"bcd"), (9, b"a")]).unwrap();
        assert_eq!(finder.split(b"abcd"), [Fragment::Special(9), Fragment::Special(8)]);
        assert_eq!(finder.split(b"xabx"), [Fragment::Text(b"x"), Fragment::Special(7), Fragment::Text(b"x")]);
    }

    #[test]
    fn nothing_to_find() {
        let finder = Finder::new(Vec::new()).unwrap();
        assert_eq!(finder.split(b"text"), [Fragment::Text(b"text")]);
        assert_eq!(finder.split(b""), []);
    }
}
