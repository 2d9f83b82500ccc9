//! Bytes that submissions touch, and bytes that failed submissions left damaged.
//!
//! Two submissions whose accesses conflict keep the order of their calls (contract O2). A submission that fails marks
//! what it would have written; whoever reads marked bytes fails with the same error (E2). A mark shrinks as its bytes
//! are overwritten, and goes when its stream recovers or its buffer is freed, so their number stays bounded by what
//! was in flight at the failure.

use super::state::LaneId;
use crate::error::Error;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a buffer that a submission touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The buffer's number.
    pub buffer: u64,
    /// Which bytes.
    pub range: Range<usize>,
    /// Whether they are written.
    pub write: bool,
    /// Whether every byte of the range is overwritten (then older damage in it is gone).
    pub whole: bool,
}

impl Access {
    /// Whether the order of the two matters.
    pub fn conflicts(&self, other: &Access) -> bool {
        (self.write || other.write) && self.buffer == other.buffer && overlap(&self.range, &other.range)
    }
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Whether the order of two submissions matters.
pub(super) fn conflict(a: &[Access], b: &[Access]) -> bool {
    a.iter().any(|x| b.iter().any(|y| x.conflicts(y)))
}

struct Mark {
    lane: LaneId,
    buffer: u64,
    range: Range<usize>,
    first: Arc<Error>,
}

/// Damaged bytes, and what damaged them.
#[derive(Default)]
pub(super) struct Marks {
    list: Vec<Mark>,
}

impl Marks {
    /// Marks what `access` would have written.
    pub fn add(&mut self, lane: LaneId, access: &[Access], first: &Arc<Error>) {
        for a in access.iter().filter(|a| a.write && !a.range.is_empty()) {
            let covers = |m: &Mark| {
                m.lane == lane
                    && m.buffer == a.buffer
                    && m.range.start <= a.range.start
                    && a.range.end <= m.range.end
            };
            if !self.list.iter().any(covers) {
                let (buffer, range) = (a.buffer, a.range.clone());
                self.list.push(Mark { lane, buffer, range, first: first.clone() });
            }
        }
    }

    /// The first damage among the bytes that `access` reads, or writes only in part.
    pub fn hit(&self, access: &[Access]) -> Option<Arc<Error>> {
        let hit = |m: &&Mark| {
            let reads =
                |a: &Access| !(a.write && a.whole) && a.buffer == m.buffer && overlap(&a.range, &m.range);
            access.iter().any(reads)
        };
        self.list.iter().find(hit).map(|m| m.first.clone())
    }

    /// What was overwritten completely is whole again, also where that is only a part of a mark.
    pub fn overwritten(&mut self, access: &[Access]) {
        if self.list.is_empty() {
            return;
        }
        for a in access.iter().filter(|a| a.write && a.whole) {
            let mut rest = Vec::new();
            self.list.retain_mut(|m| {
                if m.buffer != a.buffer || !overlap(&m.range, &a.range) {
                    return true;
                }
                if a.range.end < m.range.end {
                    let (buffer, first) = (m.buffer, m.first.clone());
                    rest.push(Mark { lane: m.lane, buffer, range: a.range.end..m.range.end, first });
                }
                m.range.end = a.range.start;
                m.range.start < m.range.end
            });
            self.list.append(&mut rest);
        }
    }

    /// The lane recovered.
    pub fn forget_lane(&mut self, lane: LaneId) {
        self.list.retain(|m| m.lane != lane);
    }

    /// The buffer is gone.
    pub fn forget_buffer(&mut self, buffer: u64) {
        self.list.retain(|m| m.buffer != buffer);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(range: Range<usize>, write: bool, whole: bool) -> Access {
        Access { buffer: 1, range, write, whole }
    }

    #[test]
    fn e2_marks_shrink_as_they_are_overwritten() {
        let mut marks = Marks::default();
        let first = Arc::new(Error::Cancelled);
        marks.add(1, &[access(10..40, true, false), access(50..60, false, false)], &first);
        marks.add(1, &[access(15..20, true, true)], &first);
        assert_eq!(marks.len(), 1, "a mark inside a mark of the same lane adds nothing");
        marks.overwritten(&[access(20..30, true, true)]);
        assert!(marks.hit(&[access(20..30, false, false)]).is_none());
        assert!(marks.hit(&[access(19..21, false, false)]).is_some());
        assert!(marks.hit(&[access(29..31, false, false)]).is_some());
        assert!(marks.hit(&[access(19..21, true, true)]).is_none(), "an overwrite does not read");
        assert!(marks.hit(&[access(19..21, true, false)]).is_some(), "a partial write keeps damage");
        marks.overwritten(&[access(0..20, true, true), access(30..100, true, false)]);
        assert!(marks.hit(&[access(0..30, false, false)]).is_none());
        assert!(marks.hit(&[access(30..31, false, false)]).is_some(), "not whole, so still damaged");
        marks.overwritten(&[access(0..100, true, true)]);
        assert_eq!(marks.len(), 0);
    }
}
