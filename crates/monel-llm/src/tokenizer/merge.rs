//! Joining neighbours, best pair first: the step that byte pair encoding and SentencePiece share.
//!
//! A text starts as a row of symbols. Of all pairs of neighbours that may be joined the best is, the leftmost of equals
//! first, until none is left. Looking through the whole row for each join would take quadratic time, and a long line without a
//! blank would hang the program. Here the row is a linked list and the candidates wait in a heap, each with the size it
//! was made for: a candidate whose symbols have changed since is dropped when it comes up. n symbols take O(n log n).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// No neighbour on this side.
const NONE: u32 = u32::MAX;

/// A part of the text that is, or may become, one token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Symbol {
    /// Offset in the text.
    pub(super) start: u32,
    /// Bytes; 0 once it has been joined to its left neighbour.
    pub(super) len: u32,
    /// Meaning left to the rules.
    pub(super) id: u32,
    previous: u32,
    next: u32,
}

impl Symbol {
    /// The bytes of the symbol in the text it was made from.
    pub(super) fn bytes<'t>(&self, text: &'t [u8]) -> &'t [u8] {
        &text[self.start as usize..(self.start + self.len) as usize]
    }
}

/// A join that the rules allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Join {
    /// Lowest first.
    pub(super) order: u32,
    /// The `id` of the joined symbol.
    pub(super) id: u32,
}

/// Which neighbours may be joined.
pub(super) trait Rules {
    /// Whether `left` and the symbol right behind it may become one.
    fn join(&self, text: &[u8], left: &Symbol, right: &Symbol) -> Option<Join>;
}

/// A candidate: order, left symbol (equal orders: leftmost first), then right symbol, length of both together and id.
type Candidate = Reverse<(u32, u32, u32, u32, u32)>;

/// The working memory, to be used for many words.
#[derive(Debug, Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    candidates: BinaryHeap<Candidate>,
}

impl Merger {
    /// Joins the symbols that `parts` (length and id, in order, covering the text) give, and returns what is left in order.
    /// The text is shorter than 4 GiB.
    pub(super) fn run(
        &mut self,
        text: &[u8],
        parts: impl Iterator<Item = (u32, u32)>,
        rules: &impl Rules,
    ) -> impl Iterator<Item = &Symbol> {
        self.symbols.clear();
        self.candidates.clear();
        let mut start = 0;
        for (index, (len, id)) in (0u32..).zip(parts) {
            let previous = index.checked_sub(1).unwrap_or(NONE);
            self.symbols.push(Symbol { start, len, id, previous, next: index + 1 });
            start += len;
        }
        if let Some(last) = self.symbols.last_mut() {
            last.next = NONE;
        }
        for left in 1..self.symbols.len() as u32 {
            self.consider(text, left - 1, left, rules);
        }
        while let Some(Reverse((_, left, right, size, id))) = self.candidates.pop() {
            let (l, r) = (self.symbols[left as usize], self.symbols[right as usize]);
            if l.len == 0 || r.len == 0 || l.len + r.len != size {
                continue;
            }
            self.symbols[left as usize] = Symbol { len: size, id, next: r.next, ..l };
            self.symbols[right as usize].len = 0;
            if r.next != NONE {
                self.symbols[r.next as usize].previous = left;
                self.consider(text, left, r.next, rules);
            }
            if l.previous != NONE {
                self.consider(text, l.previous, left, rules);
            }
        }
        self.symbols.iter().filter(|symbol| symbol.len > 0)
    }

    fn consider(&mut self, text: &[u8], left: u32, right: u32, rules: &impl Rules) {
        let (l, r) = (&self.symbols[left as usize], &self.symbols[right as usize]);
        if let Some(Join { order, id }) = rules.join(text, l, r) {
            self.candidates.push(Reverse((order, left, right, l.len + r.len, id)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// Rules over ids: a pair has an order and a result.
    struct Table(HashMap<(u32, u32), Join>);

    impl Rules for Table {
        fn join(&self, _: &[u8], left: &Symbol, right: &Symbol) -> Option<Join> {
            self.0.get(&(left.id, right.id)).copied()
        }
    }

    /// The same by looking through the whole row each time.
    fn plainly(mut row: Vec<u32>, rules: &Table) -> Vec<u32> {
        loop {
            let pairs = row.windows(2).enumerate();
            let joins = pairs.filter_map(|(at, pair)| Some((at, *rules.0.get(&(pair[0], pair[1]))?)));
            let Some((at, join)) = joins.min_by_key(|(at, join)| (join.order, *at)) else { return row };
            row.splice(at..at + 2, [join.id]);
        }
    }

    proptest! {
        #[test]
        fn equals_the_plain_way(
            row in prop::collection::vec(0u32..4, 0..40),
            rules in prop::collection::hash_map((0u32..8, 0u32..8), (0u32..6, 0u32..8), 0..40),
        ) {
            let rules = Table(rules.into_iter().map(|(pair, (order, id))| (pair, Join { order, id })).collect());
            let text = vec![0; row.len()];
            let mut merger = Merger::default();
            let found: Vec<u32> =
                merger.run(&text, row.iter().map(|&id| (1, id)), &rules).map(|symbol| symbol.id).collect();
            prop_assert_eq!(found, plainly(row, &rules));
        }
    }

    #[test]
    fn symbols_cover_the_text() {
        let join = |order, id| Join { order, id };
        let rules = Table(HashMap::from([((0, 0), join(0, 1)), ((1, 1), join(1, 2))]));
        let mut merger = Merger::default();
        let symbols: Vec<Symbol> = merger.run(b"aaaaa", (0..5).map(|_| (1, 0)), &rules).copied().collect();
        assert_eq!(
            symbols.iter().map(|s| (s.start, s.len, s.id)).collect::<Vec<_>>(),
            [(0, 4, 2), (4, 1, 0)]
        );
        assert_eq!(symbols[0].bytes(b"abcde"), b"abcd");
        assert_eq!(merger.run(b"", std::iter::empty(), &rules).count(), 0);
    }
}
