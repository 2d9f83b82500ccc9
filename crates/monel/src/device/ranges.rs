//! Free ranges of a block of memory: first fit by address, neighbours merged.

use std::collections::BTreeMap;

/// What is free in a block.
pub struct Ranges {
    #[cfg_attr(
        not(feature = "vulkan"),
        allow(dead_code, reason = "only blocks are asked whether they are empty")
    )]
    size: u64,
    /// Lengths by their first byte.
    free: BTreeMap<u64, u64>,
}

impl Ranges {
    /// All of a block is free.
    pub fn new(size: u64) -> Ranges {
        Ranges { size, free: BTreeMap::from([(0, size)]) }
    }

    /// Whether nothing is taken.
    #[cfg_attr(not(feature = "vulkan"), allow(dead_code, reason = "as above"))]
    pub fn is_empty(&self) -> bool {
        self.free.get(&0) == Some(&self.size)
    }

    /// Takes `size` bytes (not 0) at a multiple of `align`.
    pub fn take(&mut self, size: u64, align: u64) -> Option<u64> {
        self.take_from(0, size, align)
    }

    /// The same, nowhere before `from`.
    pub fn take_from(&mut self, from: u64, size: u64, align: u64) -> Option<u64> {
        // The range that `from` lies in, and those behind it.
        let first = self.free.range(..=from).next_back().map_or(from, |(&start, _)| start);
        let (start, length, at) = self.free.range(first..).find_map(|(&start, &length)| {
            let at = start.max(from).next_multiple_of(align);
            (at - start <= length && length - (at - start) >= size).then_some((start, length, at))
        })?;
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        let end = start + length;
        if at + size < end {
            self.free.insert(at + size, end - at - size);
        }
        Some(at)
    }

    /// Gives back what was taken.
    pub fn give(&mut self, mut at: u64, mut size: u64) {
        if let Some((&start, &length)) = self.free.range(..at).next_back()
            && start + length == at
        {
            self.free.remove(&start);
            (at, size) = (start, size + length);
        }
        if let Some(length) = self.free.remove(&(at + size)) {
            size += length;
        }
        self.free.insert(at, size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_given_back_is_whole_again() {
        let mut ranges = Ranges::new(1000);
        let a = ranges.take(100, 1).unwrap();
        let b = ranges.take(100, 256).unwrap();
        assert_eq!((a, b), (0, 256));
        assert_eq!(ranges.take(700, 1), None);
        assert_eq!(ranges.take(156, 1), Some(100));
        ranges.give(a, 100);
        ranges.give(b, 100);
        assert!(!ranges.is_empty());
        ranges.give(100, 156);
        assert!(ranges.is_empty());
    }

    proptest! {
        #[test]
        fn taken_ranges_never_overlap(ops in prop::collection::vec((1u64..400, 0u32..9, any::<bool>()), 1..200)) {
            let mut ranges = Ranges::new(4096);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (size, align, give) in ops {
                if give && !taken.is_empty() {
                    let (at, size) = taken.swap_remove(size as usize % taken.len());
                    ranges.give(at, size);
                } else if let Some(at) = ranges.take(size, 1 << align) {
                    prop_assert!(at % (1 << align) == 0 && at + size <= 4096);
                    prop_assert!(taken.iter().all(|&(a, s)| at + size <= a || a + s <= at));
                    taken.push((at, size));
                }
            }
            taken.into_iter().for_each(|(at, size)| ranges.give(at, size));
            prop_assert!(ranges.is_empty());
        }
    }
}
