//! Where a plan is cut into chunks (contract A2, A5).
//!
//! The first chunk is short, 64 ops or a tenth of them, whichever is larger, so the device starts at once. After it a
//! chunk ends before it would exceed the time budget by the device's estimates. A single step is never cut.

use super::{Chunk, Estimate, Rates, Step};

/// Ops in the first chunk at least.
const FIRST: usize = 64;

/// The chunks, and whether the whole needs more than one budget.
pub fn cut(steps: &[Step], rates: &Rates, budget_ns: f64) -> (Vec<Chunk>, bool) {
    let ops: usize = steps.iter().map(|s| s.ops.len()).sum();
    let first = FIRST.max(ops.div_ceil(10));
    let (mut chunks, mut start, mut count) = (Vec::new(), 0, 0);
    let (mut estimate, mut total) = (Estimate::default(), Estimate::default());
    for (i, step) in steps.iter().enumerate() {
        let ns = rates.estimate(step.cost);
        let mut with = estimate;
        with += ns;
        let full = i > start && rates.corrected_ns(with) > budget_ns || chunks.is_empty() && count >= first;
        if full {
            chunks.push(Chunk { steps: start..i, estimate });
            (start, count, estimate) = (i, 0, Estimate::default());
        }
        count += step.ops.len();
        estimate += ns;
        total += ns;
    }
    if start < steps.len() || steps.is_empty() {
        chunks.push(Chunk { steps: start..steps.len(), estimate });
    }
    (chunks, rates.corrected_ns(total) > budget_ns)
}
