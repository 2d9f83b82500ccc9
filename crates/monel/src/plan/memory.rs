//! Scratch memory by lifetime: where each intermediate result lies.
//!
//! Input: sizes and the first and last phase in which each is needed. Output: offsets such that two that are alive in
//! the same phase never overlap. Largest first, each at the lowest offset that is free during its life: simple, and
//! within a few percent of the lower bound for the chains and residuals of transformer graphs.

/// A block to place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Bytes.
    pub bytes: usize,
    /// Phase that writes it first.
    pub first: usize,
    /// Last phase that uses it.
    pub last: usize,
}

/// Alignment of every block: a cache line, which is also what packed activations need.
pub const ALIGN: usize = 64;

/// Offsets for the blocks, in their order, and the bytes needed in all.
pub fn place(blocks: &[Block]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(blocks[i].bytes), blocks[i].first, i));
    let mut offsets = vec![0; blocks.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut total = 0;
    for i in order {
        let b = blocks[i];
        let bytes = b.bytes.next_multiple_of(ALIGN);
        // Neighbours in time, by offset; the first gap that is large enough is ours.
        let mut busy: Vec<(usize, usize)> = placed
            .iter()
            .filter(|&&p| blocks[p].first <= b.last && b.first <= blocks[p].last)
            .map(|&p| (offsets[p], offsets[p] + blocks[p].bytes.next_multiple_of(ALIGN)))
            .collect();
        busy.sort_unstable();
        let mut at = 0;
        for (start, end) in busy {
            if start >= at + bytes {
                break;
            }
            at = at.max(end);
        }
        offsets[i] = at;
        total = total.max(at + bytes);
        placed.push(i);
    }
    (offsets, total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_alive_together_do_not_overlap() {
        let block = |bytes, first, last| Block { bytes, first, last };
        let blocks: Vec<Block> =
            (0..200).map(|i| block((i * 7919) % 5000 + 1, i / 3, i / 3 + (i * 31) % 9)).collect();
        let (offsets, total) = place(&blocks);
        for i in 0..blocks.len() {
            assert!(offsets[i].is_multiple_of(ALIGN) && offsets[i] + blocks[i].bytes <= total);
            for j in 0..i {
                let (a, b) = (blocks[i], blocks[j]);
                let together = a.first <= b.last && b.first <= a.last;
                let apart = offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i];
                assert!(!together || apart, "{i} {j}");
            }
        }
    }

    #[test]
    fn a_chain_needs_two_blocks() {
        let chain: Vec<Block> = (0..50).map(|i| Block { bytes: 1000, first: i, last: i + 1 }).collect();
        assert_eq!(place(&chain).1, 2048);
        assert_eq!(place(&[]).1, 0);
    }
}
