//! The hazard tracker: which byte ranges were read and written since the last barrier.
//!
//! A step needs a barrier before it when it reads what was written, writes what was read, or writes what was written
//! since the last one. Ranges are kept as they come, per memory; a phase has few steps, so a scan beats a tree.

use std::ops::Range;

/// A range of bytes in one memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Which memory (a buffer's number; 0 is the graph's scratch).
    pub memory: u64,
    /// Which bytes.
    pub bytes: Range<usize>,
}

impl Span {
    fn overlaps(&self, other: &Span) -> bool {
        self.memory == other.memory
            && self.bytes.start < other.bytes.end
            && other.bytes.start < self.bytes.end
    }
}

/// Reads and writes since the last barrier.
#[derive(Default)]
pub struct Hazards {
    reads: Vec<Span>,
    writes: Vec<Span>,
}

impl Hazards {
    /// Whether a step with these accesses has to wait for what came since the last barrier.
    pub fn conflict(&self, reads: &[Span], writes: &[Span]) -> bool {
        let any = |a: &[Span], b: &[Span]| a.iter().any(|x| b.iter().any(|y| x.overlaps(y)));
        any(reads, &self.writes) || any(writes, &self.writes) || any(writes, &self.reads)
    }

    /// Adds a step's accesses.
    pub fn add(&mut self, reads: &[Span], writes: &[Span]) {
        self.reads.extend_from_slice(reads);
        self.writes.extend_from_slice(writes);
    }

    /// A barrier: everything before is finished.
    pub fn clear(&mut self) {
        self.reads.clear();
        self.writes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(memory: u64, bytes: Range<usize>) -> Span {
        Span { memory, bytes }
    }

    #[test]
    fn only_overlaps_with_a_write_conflict() {
        let mut h = Hazards::default();
        h.add(&[span(1, 0..10)], &[span(2, 0..10)]);
        assert!(!h.conflict(&[span(1, 0..10)], &[]), "read after read");
        assert!(h.conflict(&[span(2, 9..12)], &[]), "read after write");
        assert!(h.conflict(&[], &[span(1, 5..6)]), "write after read");
        assert!(h.conflict(&[], &[span(2, 0..1)]), "write after write");
        assert!(!h.conflict(&[span(2, 10..20)], &[span(1, 10..20)]), "neighbours");
        assert!(!h.conflict(&[span(3, 0..10)], &[span(3, 0..10)]), "another memory");
        h.clear();
        assert!(!h.conflict(&[span(2, 0..10)], &[span(1, 0..10)]));
    }
}
